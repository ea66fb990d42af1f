"""The overviews: whole chains of stages, read from top to bottom. They alone see every stage."""
