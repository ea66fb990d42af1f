"""A static web page of plans: published models on every device of the catalog, computed ahead. It
needs no server, and its numbers are those of `brimful plan`.
"""
