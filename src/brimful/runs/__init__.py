"""A run folder as a typed value, and what the run measured."""
