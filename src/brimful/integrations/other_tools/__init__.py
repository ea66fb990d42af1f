"""Jobs of other training tools: configurations read into facts, steps traced, and planned for a
device.
"""
