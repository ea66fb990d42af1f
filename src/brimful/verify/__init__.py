"""Running code that nobody has read: a sandbox, what it may do, and the tests that judge it."""
