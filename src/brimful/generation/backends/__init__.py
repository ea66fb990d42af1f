"""What else writes texts than our engine, behind the same protocol, and how one is chosen."""
