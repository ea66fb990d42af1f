"""Text to batches: sources, splits, leakage, tokenizer, token cache, sequences. Start reading at
prepare.py.
"""
