"""Writing safetensors files tensor by tensor, hashed as they are written. Reading uses the
safetensors library.

Format: 8 bytes header length, JSON header, raw little-endian data
(https://github.com/huggingface/safetensors#format). There is an own writer because the library's
needs all bytes at once, or writes without a hash.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

Tensors = Mapping[str, Tensor]
"""Tensors by name."""
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class HashedFile:
    """A new file whose size and SHA-256 are known when it is closed, durable on disk."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb")  # noqa: SIM115 - closed by finish()
        self._hash = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.num_bytes += len(data)

    def finish(self) -> dict[str, str | int]:
        """Flush, fsync and close the file; return its entry for the manifest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"bytes": self.num_bytes, "sha256": self._hash.hexdigest()}

    def abandon(self) -> None:
        self._file.close()


def save_tensors(path: Path, tensors: Tensors) -> dict[str, str | int]:
    """Write a safetensors file; return its size and SHA-256. One tensor at a time is copied to the
    host.
    """
    header: dict[str, object] = {}
    offset = 0
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    for name, tensor in ordered:
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file = HashedFile(path)
    try:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for _, tensor in ordered:
            flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
            file.write(flat.numpy().data)
        return file.finish()
    finally:
        file.abandon()


def load_tensors(path: Path) -> Tensors:
    """Return all tensors of a safetensors file, on the host."""
    with safe_open(path, framework="pt", device="cpu") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict


class JoinedTensors(Mapping[str, Tensor]):
    """The tensors of files of which each holds some rows of every tensor, or the whole of it in one
    file. Each is read, and its parts joined, when it is asked for.

    Attributes:
        num_bytes: Bytes of the files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.num_bytes = sum(path.stat().st_size for path in paths)
        self._files: list[Any] = [safe_open(path, framework="pt", device="cpu") for path in paths]
        self._places: dict[str, list[Any]] = {}
        for file in self._files:
            for name in file.keys():  # noqa: SIM118 - not a dict
                self._places.setdefault(name, []).append(file)

    def __getitem__(self, name: str) -> Tensor:
        parts = [file.get_tensor(name) for file in self._places[name]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def compare_model(model_folder: Path, weights: Tensors) -> tuple[str, int]:
    """Return the first tensor of a model that differs from the weights of the checkpoint it was
    made from, "" where none does, and how many are equal before it.
    """
    num_equal = 0
    for path in sorted(model_folder.glob("*.safetensors")):
        for name, is_same in _compared(path, weights):
            if not is_same:
                return name, num_equal
            num_equal += 1
    return "", num_equal


def _compared(model: Path, weights: Tensors) -> Iterator[tuple[str, bool]]:
    """Return names of tensors that both have (PEFT leaves the adapter's name out), and whether they
    are equal to the last bit.
    """
    stored = {name.replace(".default.", "."): name for name in weights}
    with safe_open(model, framework="pt") as ours:
        for name in sorted(stored.keys() & set(ours.keys())):
            yield name, same_bits(ours.get_tensor(name), weights[stored[name]])


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors are of one type and shape and equal to the last bit."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
