"""Checkpoints are whole or absent, and a damaged one is found."""

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from safetensors.torch import load_file
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import CheckpointError, RunFolderError
from brimful.base.manifest import MANIFEST, sha256_of
from brimful.base.rundir import add_checksum, read_json
from brimful.chains.pipeline import train
from brimful.runs.deciding import DECIDING_FILES, problem_of, read_deciding, recipe_of_run
from brimful.training import checkpoint as module
from brimful.training.checkpoint import STATE_FILE, CheckpointStore, Snapshot, load, mend, verify
from brimful.training.tensorfile import load_tensors, save_tensors

IDENTITY = {"data": "d", "tokenizer": "t", "objective": "o"}


def _snapshot(step: int) -> Snapshot:
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {
            "w": torch.randn(30, 7, generator=generator),
            "b": torch.randn(5, generator=generator).bfloat16(),
        },
        "optimizer": {
            "w:exp_avg": torch.randn(30, 7, generator=generator),
            "w:step": torch.tensor(float(step)),
        },
        "random": {"cpu": torch.randint(0, 255, (100,), generator=generator, dtype=torch.uint8)},
    }
    return Snapshot(step, tensors, {"progress": {"step": step}, "journal_bytes": step}, IDENTITY)


def _store(tmp_path: Path, keep: int = 2) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=keep)


def _equal(left: Snapshot, right: Snapshot) -> bool:
    same = all(
        left.tensors[file].keys() == right.tensors[file].keys()
        and all(
            torch.equal(left.tensors[file][name], right.tensors[file][name])
            for name in left.tensors[file]
        )
        for file in module.TENSOR_FILES
    )
    return same and (left.step, left.state, left.identity) == (
        right.step,
        right.state,
        right.identity,
    )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
)
def test_a_tensor_file_is_read_back_equal_also_by_the_safetensors_library(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    tensors = {
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.zeros(0, 3).to(dtype),
        "transposed": torch.arange(6).view(2, 3).to(dtype).T,
    }
    entry = save_tensors(tmp_path / "x.safetensors", tensors)
    for loaded in (load_tensors(tmp_path / "x.safetensors"), load_file(tmp_path / "x.safetensors")):
        assert loaded.keys() == tensors.keys()
        assert all(
            torch.equal(loaded[name], tensors[name]) and loaded[name].dtype == dtype
            for name in tensors
        )
    assert entry == {
        "bytes": (tmp_path / "x.safetensors").stat().st_size,
        "sha256": sha256_of(tmp_path / "x.safetensors"),
    }


def test_a_saved_snapshot_loads_equal(tmp_path: Path) -> None:
    store = _store(tmp_path)
    num_bytes = store.save(_snapshot(5))
    loaded = store.load_newest()
    assert loaded is not None
    assert _equal(loaded.snapshot, _snapshot(5))
    assert num_bytes == sum(
        path.stat().st_size for path in store.path_of(5).iterdir() if path.name != MANIFEST
    )


def test_a_store_without_checkpoints_has_nothing_to_load(tmp_path: Path) -> None:
    assert _store(tmp_path).load_newest() is None


def test_rotation_keeps_the_newest_and_the_protected_one(tmp_path: Path) -> None:
    store = _store(tmp_path, keep=2)
    for step in range(1, 7):
        store.save(_snapshot(step), protect_step=2)
    assert store.steps() == [2, 5, 6]


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(path.name).randrange(len(data))] ^= 1 << 3
    path.write_bytes(data)


def _zero_a_page(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes(64) + data[64:])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "one flipped bit": _flip_a_bit,
    "a zeroed page": _zero_a_page,
    "truncation": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptiness": lambda path: path.write_bytes(b""),
    "absence": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json", MANIFEST],
)
def test_any_damage_to_any_file_is_found_and_the_older_checkpoint_is_used(
    tmp_path: Path, name: str, damage: str
) -> None:
    store = _store(tmp_path)
    store.save(_snapshot(1))
    store.save(_snapshot(2))
    DAMAGES[damage](store.path_of(2) / name)
    loaded = store.load_newest()
    assert loaded is not None
    assert _equal(loaded.snapshot, _snapshot(1))
    assert len(loaded.quarantined) == 1
    assert store.steps() == [1]
    assert list(store.folder.glob("quarantine-step-00000002-*"))


def test_files_of_two_steps_mixed_are_found(tmp_path: Path, refuses: Refuses) -> None:
    store = _store(tmp_path)
    store.save(_snapshot(1))
    store.save(_snapshot(2))
    shutil.copy(
        store.path_of(1) / "optimizer.safetensors", store.path_of(2) / "optimizer.safetensors"
    )
    with refuses(CheckpointError):
        verify(store.path_of(2))


def test_a_manifest_that_leaves_a_piece_out_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    store = _store(tmp_path)
    store.save(_snapshot(1))
    path = store.path_of(1) / MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["files"]["optimizer.safetensors"]
    path.write_text(json.dumps(add_checksum(manifest, MANIFEST)))
    with refuses(CheckpointError):
        load(store.path_of(1))


@pytest.mark.parametrize(
    ("written", "damaged"),
    [("data", "dbta"), ("identity", "identitz"), ('"step": 1', '"step": 0')],
    ids=["a fingerprint's key", "a key", "a digit"],
)
def test_one_wrong_letter_in_a_manifest_is_damage(
    tmp_path: Path, refuses: Refuses, written: str, damaged: str
) -> None:
    store = _store(tmp_path)
    store.save(_snapshot(1))
    path = store.path_of(1) / MANIFEST
    text = path.read_text()
    assert written in text
    path.write_text(text.replace(written, damaged, 1))
    with refuses(CheckpointError, names=["checksum"]):
        load(store.path_of(1))


def test_when_nothing_can_be_trusted_the_error_says_what_is_wrong_with_each(
    tmp_path: Path, refuses: Refuses
) -> None:
    store = _store(tmp_path)
    for step in (1, 2):
        store.save(_snapshot(step))
        (store.path_of(step) / "state.json").unlink()
    with refuses(CheckpointError):
        store.load_newest()


class _Killed(BaseException):
    """Stands for SIGKILL: no handler of the code under test may catch it."""


def _kill_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Die at the `call`-th fsync, rename or mkdir that saving makes."""
    count = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def act(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += 1
            if count == call:
                raise _Killed
            return real(*args, **kwargs)

        return act

    for name in ("fsync", "rename", "mkdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("call", range(1, 12))
def test_killed_at_any_call_of_a_save_a_whole_checkpoint_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, same_step: bool
) -> None:
    store = _store(tmp_path)
    store.save(_snapshot(1))
    with monkeypatch.context() as patch:
        _kill_at(patch, call)
        with contextlib.suppress(_Killed):
            store.save(_snapshot(1 if same_step else 2))
    loaded = _store(tmp_path).load_newest()
    assert loaded is not None
    assert loaded.snapshot.step in ((1,) if same_step else (1, 2))
    assert _equal(loaded.snapshot, _snapshot(loaded.snapshot.step))
    _store(tmp_path).save(_snapshot(3))
    assert not [
        path for path in store.folder.iterdir() if ".tmp-" in path.name or ".replaced-" in path.name
    ]


def test_a_full_disk_leaves_older_checkpoints_intact_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    store = _store(tmp_path)
    store.save(_snapshot(1))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1))  # type: ignore[attr-defined]
    with refuses(CheckpointError):
        store.save(_snapshot(2))
    loaded = store.load_newest()
    assert loaded is not None
    assert _equal(loaded.snapshot, _snapshot(1))


def test_a_write_that_fails_half_way_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    store = _store(tmp_path)
    store.save(_snapshot(1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with refuses(CheckpointError):
            store.save(_snapshot(2))
    assert [path.name for path in store.folder.iterdir()] == ["step-00000001"]


def test_a_process_that_lost_the_run_folder_commits_nothing(tmp_path: Path) -> None:
    def lost() -> None:
        raise RunFolderError("taken over")

    store = CheckpointStore(tmp_path, keep=2, check_writer=lost)
    with pytest.raises(RunFolderError):
        store.save(_snapshot(1))
    assert store.steps() == []


@pytest.fixture
def run(tiny: MakeRecipe) -> Path:
    return train(tiny(), Console(quiet=True)).folder


def _without_copies(run: Path) -> None:
    """Turn the run's checkpoints into those of a version that kept no copies."""
    for state in run.glob(f"checkpoints/step-*/{STATE_FILE}"):
        values = json.loads(state.read_text())
        del values["run_files"], values["checksum"]
        state.write_text(json.dumps(values))
        manifest = state.with_name(MANIFEST)
        listed = read_json(manifest)
        listed["files"][STATE_FILE] = {
            "bytes": state.stat().st_size,
            "sha256": sha256_of(state),
        }
        manifest.write_text(json.dumps(listed))


def test_every_deciding_file_is_brought_back_bit_for_bit(run: Path, tiny: MakeRecipe) -> None:
    before = {name: (run / name).read_bytes() for name in DECIDING_FILES}
    for name in DECIDING_FILES:
        content = before[name]
        for damaged in (None, b"", content[: len(content) // 2], content.replace(b"1", b"2", 1)):
            (run / name).unlink()
            if damaged is not None:
                (run / name).write_bytes(damaged)
            assert problem_of(run / name)
            (told,) = mend(run)
            assert name in told
            assert "brought back from the checkpoint" in told
            assert not problem_of(run / name)
            # The checkpoint was written while the run was running.
            assert (run / name).read_bytes() == before[name] or name == "run.json"
    assert mend(run) == []
    assert train(tiny(), Console(quiet=True)).folder == run
    assert read_json(run / "run.json")["status"] == "finished"
    number = json.loads(before["run.json"])["id"]
    assert read_json(run / "run.json")["id"] == number


@pytest.mark.parametrize("name", ["recipe.yaml", "data.json", "plan.json", "run.json"])
def test_a_damaged_file_is_refused_with_the_command_that_brings_it_back(
    run: Path, tiny: MakeRecipe, name: str, refuses: Refuses
) -> None:
    path = run / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    with refuses(RunFolderError):
        recipe_of_run(run) if name == "recipe.yaml" else read_deciding(run, name)

    train(tiny(), Console(quiet=True))
    assert not problem_of(path)


def test_a_file_in_the_place_of_another_is_damage(run: Path, snapshot: SnapshotAssertion) -> None:
    plan, data = (run / "plan.json").read_bytes(), (run / "data.json").read_bytes()
    (run / "plan.json").write_bytes(data)
    (run / "data.json").write_bytes(plan)
    assert problem_of(run / "plan.json") == snapshot
    assert len(mend(run)) == 2
    assert (run / "plan.json").read_bytes() == plan


def test_without_a_copy_a_finished_run_says_what_to_do(
    run: Path, tiny: MakeRecipe, refuses: Refuses
) -> None:
    _without_copies(run)
    (run / "run.json").write_text("")
    assert len(mend(run)) == 1
    assert read_json(run / "run.json")["status"] == "stopped"

    (run / "plan.json").unlink()
    with refuses(RunFolderError, names=["run.name=tiny-2"]):
        train(tiny(), Console(quiet=True))
    assert train(tiny("run.name=tiny-2"), Console(quiet=True)).trained_now
