"""A copy of a run in another place, from which a new machine continues: what is copied, when it is
durable, and how it comes back.
"""
