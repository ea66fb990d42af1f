"""Which samples become training data: asked for in waves, kept in a journal, chosen by distinct
paths, counted.
"""
