"""Which runs there are, and whether their files are whole."""
