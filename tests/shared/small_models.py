"""Tiny published models in folders."""

from pathlib import Path

import torch
from trained_tokenizers import train_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM


def write_base_model(folder: Path, vocabulary: int = 280, context: int = 128) -> Path:
    """Write a Llama of random weights with a byte-level tokenizer, and return its folder."""
    text = "say red twice green blue three times\n" * 20
    tokenizer = train_tokenizer("bpe", vocabulary, 2, [text])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=context,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
