"""The number of texts that a device can generate at the same time, from the bytes of their KV cache
or states and of the logits of a step.
"""

import sys
from dataclasses import dataclass
from typing import Any

MEMORY_SHARE = 0.8
"""Share of the free memory. The rest is for activations, for prompts, and for the copy that a
growing cache needs.
"""
CPU_MEMORY_SHARE = 0.5
"""The same on a CPU, where other programs need memory too and swapping must be avoided."""
CPU_ROWS, GPU_ROWS = 64, 512
"""On one core of an EPYC 9005, 15M parameters, 1024 texts of 1 to 256 tokens, 32, 64 and 128 rows
wrote 660, 830 and 750 tokens per second of CPU time (2026-11-21): more rows share the weights, and
read more keys of the longest of them. The GPU's number is an assumption.
"""
QUICK_CPU_ROWS = 128
"""Of models that write in bf16 with quick blocks: operations that cost something whatever the
number of rows are shared by more of them, and a row's keys are read up to its own bank's end.
"""
QUICK_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2"})
"""Types whose blocks have a quick form, as far as plans know; the engine looks at the blocks."""
BF16_LEAST_WIDTH = 256
"""Narrower models write in fp32 on a CPU, as they do in `brimful predict`: their products are quick
in any type.
"""
STATE_ELEMENT_BYTES = 4
LOGITS_BYTES = 4 + 4 + 4 + 1
"""Per row and token of the vocabulary in a step: logits in fp32, what is left of them after penalty
and filters, weights, and a flag.
"""


@dataclass(frozen=True)
class KvShape:
    """What a model keeps of a text, as its config describes it.

    Attributes:
        layers: Layers with a store that grows with the text.
        kv_heads: Heads of keys and of values.
        head_size: Numbers per head.
        vocabulary: Tokens it knows.
        state_layers: Layers of kernel attention, which keep a sum however long the text is.
        features: The number of features of a head of kernel attention.
    """

    layers: int
    kv_heads: int
    head_size: int
    vocabulary: int
    state_layers: int = 0
    features: int = 0

    def bytes_per_token(self, element_bytes: int) -> int:
        """Of one position of one text."""
        return 2 * self.layers * self.kv_heads * self.head_size * element_bytes

    def state_bytes(self, element_bytes: int) -> int:
        """Of one text, however long: for each feature a sum of values and one of weights, in fp32
        or more.
        """
        return (
            self.state_layers
            * self.kv_heads
            * self.features
            * (self.head_size + 1)
            * max(element_bytes, STATE_ELEMENT_BYTES)
        )


def kv_shape(config: Any) -> KvShape:
    """Of a transformers config, or of its plain values; layers with a window of their own or a
    recurrent state count as if they kept every position, except kernel attention.

    Args:
        config: Config of the text model. Fields it lacks are taken as the usual ones: as many
            key/value heads as heads, their size from the width.
    """
    heads = _value(config, "num_attention_heads", "n_head") or 1
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    width = _value(config, "hidden_size", "n_embd")
    head_size = int(getattr(config, "head_dim", None) or width // heads)
    layers = _value(config, "num_hidden_layers", "n_layer")
    features = int(getattr(config, "num_features", None) or 0)
    state_layers = 0
    if features:
        state_layers = list(config.layer_types).count("linear_attention")
    return KvShape(
        layers - state_layers, kv_heads, head_size, int(config.vocab_size), state_layers, features
    )


def _value(config: Any, *names: str) -> int:
    """Return the first of these fields that a config has, 0 for none: GPT-2 has its own names."""
    return next((int(found) for name in names if (found := getattr(config, name, None))), 0)


def room_for_rows(
    config: Any, element_bytes: int, free_bytes: int, *, is_cpu: bool, is_quick: bool = False
) -> tuple[int, int]:
    """How much may run at the same time.

    Args:
        config: The config of the text model.
        element_bytes: The bytes of one number of the cache.
        free_bytes: The free bytes of the device, beside the model.
        is_cpu: Its kind decides how many rows are worth it and how much memory is left to others.
        is_quick: Whether the blocks are quick ones in bf16, on a CPU.

    Returns:
        Texts, and positions of all of them together; at least one of each. sys.maxsize positions
        where none is kept.
    """
    shape = kv_shape(config)
    memory_share, most_rows = MEMORY_SHARE, GPU_ROWS
    if is_cpu:
        memory_share, most_rows = CPU_MEMORY_SHARE, QUICK_CPU_ROWS if is_quick else CPU_ROWS
    usable_bytes = free_bytes * memory_share
    step_bytes = shape.vocabulary * LOGITS_BYTES
    state_bytes = shape.state_bytes(element_bytes)
    token_bytes = shape.bytes_per_token(element_bytes)
    fitting = min(usable_bytes / 2 / step_bytes, usable_bytes / (step_bytes + state_bytes))
    rows = max(1, min(most_rows, int(fitting)))
    if not token_bytes:
        return rows, sys.maxsize
    cache_bytes = usable_bytes - rows * (step_bytes + state_bytes)
    return rows, max(1, int(cache_bytes / token_bytes))
