"""From a trained run to text: load it, sample tokens, stream them as text."""
