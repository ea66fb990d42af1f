"""Training: one loop, methods as values, exact recovery."""
