"""The identity of a model in a folder: a hash of every file that decides what it computes."""

import re
from collections.abc import Sequence
from pathlib import Path

import xxhash

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_OTHERS = (
    "*config.json",
    "*.safetensors.index.json",
    "*token*.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "*.jinja",
    "chat_template*",
    "additional_chat_templates/*",
    "*.py",
)
"""Files beside the weights that transformers and peft read from a model's folder."""
_WRITTEN_BY = re.compile(rb'"transformers_version": *"[^"]*",?')
_HASH_OF_OTHERS = re.compile(r"\+[0-9a-f]{32}")


def folder_fingerprint(folder: Path) -> str:
    """Return the identity of the model or adapters in a folder: a hash of the weights, "+", and a
    hash of the other files that decide what is computed. The version of transformers that wrote
    them decides nothing.
    """
    weights, others = xxhash.xxh3_128(), xxhash.xxh3_128()
    for path in _found(folder, _WEIGHTS):
        weights.update(path.name.encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                weights.update(block)
    for path in _found(folder, _OTHERS):
        content = _WRITTEN_BY.sub(b"", path.read_bytes())
        others.update(f"{path.relative_to(folder)} {len(content)} ".encode() + content)
    return f"{weights.hexdigest()}+{others.hexdigest()}"


def is_same_model(stored: object, now: str) -> bool:
    """Return whether a stored fingerprint, or a text that starts with one, is that of now. Earlier
    versions stored the hash of the weights alone.
    """
    return stored in {now, _HASH_OF_OTHERS.sub("", now, count=1)}


def _found(folder: Path, patterns: Sequence[str]) -> list[Path]:
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in found if path.is_file())
