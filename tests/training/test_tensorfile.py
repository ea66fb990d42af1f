"""Own writer of safetensors files: the library reads back every bit, and the hash is that of the
file.
"""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from brimful.base.manifest import sha256_of
from brimful.training.tensorfile import HashedFile, load_tensors, save_tensors

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def _tensors() -> dict[str, torch.Tensor]:
    made = {f"{dtype}": (torch.arange(6) % 2).to(dtype).reshape(2, 3) for dtype in DTYPES}
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    return {
        **made,
        "special": special,
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "strided": torch.arange(12.0).reshape(3, 4).T,
    }


def test_the_library_reads_every_tensor_back_bit_for_bit(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.safetensors", _tensors())

    for read in (load_file(tmp_path / "a.safetensors"), load_tensors(tmp_path / "a.safetensors")):
        assert read.keys() == _tensors().keys()
        for name, tensor in _tensors().items():
            assert read[name].dtype == tensor.dtype, name
            assert read[name].shape == tensor.shape, name
            assert (
                read[name].contiguous().reshape(-1).view(torch.uint8).tolist()
                == tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
            ), name


def test_size_and_hash_are_those_of_the_file(tmp_path: Path) -> None:
    entry = save_tensors(tmp_path / "a.safetensors", _tensors())

    content = (tmp_path / "a.safetensors").read_bytes()
    assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert sha256_of(tmp_path / "a.safetensors") == entry["sha256"]


def test_the_same_tensors_give_the_same_file_in_whatever_order_they_come(tmp_path: Path) -> None:
    forwards = save_tensors(tmp_path / "a", _tensors())
    backwards = save_tensors(tmp_path / "b", dict(reversed(_tensors().items())))

    assert forwards == backwards


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")

    with pytest.raises(FileExistsError):
        save_tensors(tmp_path / "a", {})
    assert (tmp_path / "a").read_text() == "mine"


def test_a_hashed_file_counts_what_is_written(tmp_path: Path) -> None:
    file = HashedFile(tmp_path / "a")
    file.write(b"ab")
    file.write(memoryview(b"c"))

    assert file.num_bytes == 3
    assert file.finish() == {"bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    file.abandon()
    assert (tmp_path / "a").read_bytes() == b"abc"
