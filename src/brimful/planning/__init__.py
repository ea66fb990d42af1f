"""How a recipe runs on a device: derived, explained, predicted."""
