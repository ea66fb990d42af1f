"""The command line: one module per group of verbs. Each parses, calls one chain and prints."""

from brimful.cli.app import app, main

__all__ = ["app", "main"]
