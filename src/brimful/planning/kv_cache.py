"""How many texts a device can write at the same time: bytes of their keys and values, and of the logits of a step."""

from dataclasses import dataclass
from typing import Any

MEMORY_SHARE = 0.8
"""Of the free memory. The rest is for activations, for reading prompts, and for the copy that a growing store needs."""
CPU_MEMORY_SHARE = 0.5
"""A machine that swaps is lost, and other programs need memory too."""
CPU_ROWS, GPU_ROWS = 64, 512
"""On one core of an EPYC 9005, 15M parameters, 1024 texts of 1 to 256 tokens, 32, 64 and 128 rows wrote 660, 830 and 750 tokens per second of CPU
time (2026-11-21): more rows share the weights, and read more keys of the longest of them. The GPU's number is an assumption."""
LOGITS_BYTES = 4 + 4 + 4 + 1
"""Per row and token of the vocabulary in a step: logits in fp32, what is left of them after penalty and filters, weights, and a flag."""


@dataclass(frozen=True)
class KvShape:
    """Keys and values of a model, as its config describes them.

    Attributes:
        layers: Layers with a store that grows with the text.
        kv_heads: Heads of keys and of values.
        head_size: Numbers per head.
        vocabulary: Tokens it knows.
    """

    layers: int
    kv_heads: int
    head_size: int
    vocabulary: int

    def bytes_per_token(self, element_bytes: int) -> int:
        """Of one position of one text."""
        return 2 * self.layers * self.kv_heads * self.head_size * element_bytes


def kv_shape(config: Any) -> KvShape:
    """Of a transformers config; layers with a recurrent state or a window of their own count as if they kept every position.

    Args:
        config: Of the text model. Fields it lacks are taken as the usual ones: as many key/value heads as heads, their size from the width.
    """
    heads = int(getattr(config, "num_attention_heads", 1) or 1)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_size = int(getattr(config, "head_dim", None) or int(config.hidden_size) // heads)
    return KvShape(int(config.num_hidden_layers), kv_heads, head_size, int(config.vocab_size))


def room_for_rows(config: Any, element_bytes: int, free_bytes: int, *, is_cpu: bool) -> tuple[int, int]:
    """How much may run at the same time.

    Args:
        config: Of the text model.
        element_bytes: Of one number of the cache.
        free_bytes: Of the device, beside the model.
        is_cpu: Its kind decides how many rows are worth it and how much memory is left to others.

    Returns:
        Texts, and positions of all of them together; at least one of each.
    """
    shape = kv_shape(config)
    usable_bytes = free_bytes * (CPU_MEMORY_SHARE if is_cpu else MEMORY_SHARE)
    step_bytes = shape.vocabulary * LOGITS_BYTES
    rows = max(1, min(CPU_ROWS if is_cpu else GPU_ROWS, int(usable_bytes / 2 / step_bytes)))
    return rows, max(1, int((usable_bytes - rows * step_bytes) / shape.bytes_per_token(element_bytes)))
