"""Model files for tests."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from brimful.base.types import JsonDict

GgufWriter = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> GgufWriter:
    """`write_gguf(name="tiny.gguf", drop=(), **metadata)`: a llama of two blocks with a byte-level
    tokenizer, its matrices in Q8_0. Metadata named here replaces that of the file; `drop` leaves
    keys out; `kind` is the number of the matrices' type.
    """

    def write(
        name: str = "tiny.gguf", *, drop: tuple[str, ...] = (), kind: int = 8, **metadata: Any
    ) -> Path:
        alphabet = sorted(ByteLevel.alphabet())
        tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "Ġt", "he", "Ġthe"]
        values = {
            "general.architecture": "llama",
            "general.name": "tiny",
            "llama.context_length": 128,
            "llama.block_count": 2,
            "llama.embedding_length": 32,
            "llama.feed_forward_length": 64,
            "llama.attention.head_count": 2,
            "llama.attention.head_count_kv": 2,
            "llama.rope.freq_base": 10000.0,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
            "tokenizer.ggml.merges": ["Ġ t", "h e", "Ġt he"],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 2,
        }
        values = {
            key: value
            for key, value in (
                values | {k.replace("__", "."): v for k, v in metadata.items()}
            ).items()
            if key not in drop
        }
        shapes = {"token_embd": (len(tokens), 32), "output_norm": (32,)}
        for block in range(2):
            shapes |= {f"blk.{block}.{norm}_norm": (32,) for norm in ("attn", "ffn")}
            shapes |= {f"blk.{block}.attn_{part}": (32, 32) for part in ("q", "k", "v", "output")}
            shapes |= {f"blk.{block}.ffn_{part}": (64, 32) for part in ("gate", "up")}
            shapes[f"blk.{block}.ffn_down"] = (32, 64)
        path = tmp_path / name
        path.write_bytes(_gguf_bytes(values, shapes, kind))
        return path

    return write


def _gguf_bytes(values: JsonDict, shapes: dict[str, tuple[int, ...]], kind: int) -> bytes:
    drawn = np.random.default_rng(0)
    infos, data = b"", b""
    for name, shape in shapes.items():
        weights = drawn.normal(0, 0.05, shape).astype(np.float32)
        is_matrix = len(shape) == 2
        stored = _q8_0(weights) if is_matrix else np.ones(shape, np.float32).tobytes()
        infos += _gguf_text(f"{name}.weight") + struct.pack("<I", len(shape))
        infos += b"".join(struct.pack("<Q", size) for size in reversed(shape))
        infos += struct.pack("<IQ", kind if is_matrix else 0, len(data))
        data += stored + b"\0" * (-len(stored) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(values))
    head += b"".join(_gguf_text(key) + _gguf_value(value) for key, value in values.items()) + infos
    return head + b"\0" * (-len(head) % 32) + data


def _q8_0(weights: np.ndarray) -> bytes:
    blocks = weights.reshape(-1, 32)
    scales = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    rounded = np.round(blocks / scales.astype(np.float32)).astype(np.int8)
    return b"".join(
        scale.tobytes() + row.tobytes() for scale, row in zip(scales, rounded, strict=True)
    )


def _gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _gguf_value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _gguf_text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    inner = [_gguf_value(each) for each in value]
    return (
        struct.pack("<I", 9)
        + inner[0][:4]
        + struct.pack("<Q", len(inner))
        + b"".join(each[4:] for each in inner)
    )
