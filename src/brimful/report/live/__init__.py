"""A run while it is under way."""
