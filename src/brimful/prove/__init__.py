"""`brimful prove`: does what brimful says hold on this machine? Runs are killed and continued, and
predictions stand beside measurements, in a record that grows.
"""
