"""Comparisons with other tools: one way to time them, and a module for each kind of work."""
