"""One file for each tool, found by its name."""
