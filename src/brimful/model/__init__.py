"""From the recipe's description to a transformers model."""
