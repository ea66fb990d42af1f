"""The exported model is complete or absent, durable before it has its name, and what its checkpoint
says.
"""

import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import Make, Refuses
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from brimful.base.errors import CheckpointError
from brimful.base.manifest import require_sound
from brimful.training.export import export_model
from brimful.training.tensorfile import save_tensors


class Export:
    """A model with its checkpoint, exported once; `write` exports it again with other weights."""

    def __init__(self, base: Path, run_folder: Path) -> None:
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(base)
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        self.folder, self.checkpoint = run_folder / "model", run_folder / "step-00000001"
        self.checkpoint.mkdir(parents=True)
        self.write()
        self.old = self.weights()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1.0)

    def write(self) -> None:
        file = self.checkpoint / "model.safetensors"
        file.unlink(missing_ok=True)
        save_tensors(file, dict(self.model.named_parameters()))
        export_model(self.model, self.tokenizer, self.folder, checkpoint=self.checkpoint)

    def weights(self) -> bytes:
        require_sound(self.folder)
        return (self.folder / "model.safetensors").read_bytes()


@pytest.fixture
def export(base_model: Path, tmp_path: Path) -> Export:
    return Export(base_model, tmp_path / "run")


def _killed_before(call: int, act: Callable[[], object]) -> bool:
    """Run `act` in a child that is SIGKILL before its `call`-th fsync or rename; return whether it
    came so far.
    """
    child = os.fork()
    if child == 0:
        count = 0

        def counted(real: Make) -> Make:
            def instead(*args: Any) -> Any:
                nonlocal count
                count += 1
                if count == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args)

            return instead

        os.fsync, os.rename = counted(os.fsync), counted(os.rename)
        try:
            act()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_killed_at_any_point_of_an_export_the_model_is_the_old_one_none_or_the_new_one(
    export: Export,
) -> None:
    kept = shutil.copytree(export.folder, export.folder.with_name("kept"))
    found: list[bytes | None] = []
    while _killed_before(len(found) + 1, export.write):
        found.append(export.weights() if export.folder.exists() else None)
        shutil.rmtree(export.folder, ignore_errors=True)
        shutil.copytree(kept, export.folder)
    shutil.rmtree(kept)

    export.write()
    new = export.weights()
    assert found == [export.old] * (len(found) - 2) + [None, new] != [None, new]
    assert sorted(path.name for path in export.folder.parent.iterdir()) == [
        "model",
        "step-00000001",
    ]


def test_every_file_is_durable_before_the_model_has_its_name(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def noted_rename(source: Path, target: Path) -> None:
        rename(source, target)
        calls.append(f"is {target.name}")

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    export.write()

    named = calls.index("is model")
    assert {path.name for path in export.folder.iterdir()} <= set(calls[:named])
    assert calls[named + 1 :] == ["run"]


def test_a_model_that_reads_back_otherwise_than_its_checkpoint_is_no_export(
    export: Export, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    save = export.model.save_pretrained

    def damaged(folder: Path) -> None:
        save(folder)
        path = folder / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)

    monkeypatch.setattr(export.model, "save_pretrained", damaged)
    with refuses(CheckpointError, names=["model.norm.weight differs", "step-00000001"]):
        export.write()
    assert export.weights() == export.old


def test_a_full_disk_is_told_before_a_byte_is_written(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil._ntuple_diskusage(100, 99, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(CheckpointError, match=r"only 1 B free.*same command"):
        export.write()
    assert export.weights() == export.old


def test_a_disk_that_fills_up_meanwhile_leaves_the_old_model(export: Export) -> None:
    """A real refusal by the system: files may not grow beyond 100 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="could not be written"):
            export_model(
                export.model, export.tokenizer, export.folder, checkpoint=export.checkpoint
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert export.weights() == export.old
    assert not list(export.folder.parent.glob("model.*"))


def test_the_exported_weights_are_those_of_the_model(export: Export) -> None:
    export.write()
    stored = load_file(export.folder / "model.safetensors")
    own = dict(export.model.named_parameters())
    assert stored
    assert all(torch.equal(stored[name], own[name]) for name in stored)
