"""Checkpoints and models read back: sound ones are told as sound, and a changed bit, a missing file
or a quarantine is found.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from brimful.base.manifest import MANIFEST, NOTED_AS, note_hashes, sha256_of
from brimful.base.types import JsonDict
from brimful.report.listing import checking
from brimful.report.listing.checking import CheckResult, check_run
from brimful.training import checkpoint
from brimful.training.checkpoint import CheckpointStore, Snapshot, verify

WEIGHTS = {"layer.weight": torch.arange(6.0).reshape(2, 3), "scale": torch.tensor(2.0)}


def snapshot(step: int, best_step: int, weights: dict[str, Tensor]) -> Snapshot:
    tensors = {
        "model": weights,
        "optimizer": {"m": torch.zeros(2)},
        "random": {"cpu": torch.zeros(4, dtype=torch.uint8)},
    }
    return Snapshot(
        step, tensors, {"progress": {"best_step": best_step}, "journal_bytes": 0}, {"data": "d"}
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two checkpoints, and a model made from the better one, without hashes as older versions left
    it.
    """
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    store.save(snapshot(10, 10, WEIGHTS))
    store.save(snapshot(20, 10, {name: tensor + 1 for name, tensor in WEIGHTS.items()}))
    (tmp_path / "model").mkdir()
    save_file(WEIGHTS, tmp_path / "model" / "model.safetensors")
    return tmp_path


@pytest.fixture
def hashed(run: Path) -> Path:
    """The same with the hashes of the model's files beside them."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in (run / "model").iterdir()
    }
    (run / "model" / "MANIFEST.json").write_text(json.dumps({"files": files}))
    return run


def flip(path: Path) -> None:
    """One bit of the last byte."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def verdicts(run: Path) -> dict[str, bool | None]:
    return {each.what: each.is_sound for each in check_run(run)}


def test_everything_that_is_sound_is_told_as_sound(hashed: Path) -> None:
    assert check_run(hashed) == (
        CheckResult("checkpoints/step-00000010", True, "every SHA-256 as noted (4 files)"),
        CheckResult("checkpoints/step-00000020", True, "every SHA-256 as noted (4 files)"),
        CheckResult("model", True, "every SHA-256 as noted (1 file)"),
    )


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"]
)
def test_a_changed_bit_in_a_checkpoint_is_found(hashed: Path, name: str) -> None:
    flip(hashed / "checkpoints" / "step-00000020" / name)
    found = {each.what: each for each in check_run(hashed)}
    assert found["checkpoints/step-00000020"].is_sound is False
    assert name in found["checkpoints/step-00000020"].told
    assert found["checkpoints/step-00000010"].is_sound is True


@pytest.mark.parametrize("kind", ["hashed", "run"])
def test_a_changed_bit_in_the_model_is_found_with_and_without_hashes(
    kind: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(kind)
    assert verdicts(folder)["model"] is True
    flip(folder / "model" / "model.safetensors")
    assert verdicts(folder)["model"] is False


def test_a_model_without_hashes_is_compared_with_the_checkpoint_it_was_made_from(
    run: Path, snapshot: SnapshotAssertion
) -> None:
    assert check_run(run)[-1].told == snapshot


def test_adapters_are_compared_under_the_names_that_peft_saves_them_by(run: Path) -> None:
    stored = run / "checkpoints" / "step-00000030"
    CheckpointStore(run / "checkpoints", keep=9).save(
        snapshot(30, 30, {"q.lora_A.default.weight": WEIGHTS["layer.weight"]})
    )
    (run / "model" / "model.safetensors").unlink()
    save_file(
        {"q.lora_A.weight": WEIGHTS["layer.weight"]}, run / "model" / "adapter_model.safetensors"
    )
    assert stored.is_dir()
    assert check_run(run)[-1] == CheckResult(
        "model", True, "equal to checkpoints/step-00000030 to the last bit (1 tensor)"
    )


def test_a_model_that_nothing_is_left_to_compare_with_is_not_called_sound(run: Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        folder.rename(run / f"away-{folder.name}")
    assert verdicts(run) == {"model": None}


def test_a_cut_off_model_is_damaged_in_any_case(run: Path) -> None:
    path = run / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    assert verdicts(run)["model"] is False


def test_what_is_missing_is_named(hashed: Path, snapshot: SnapshotAssertion) -> None:
    (hashed / "model" / "model.safetensors").unlink()
    (hashed / "checkpoints" / "step-00000010" / "MANIFEST.json").unlink()
    told = {each.what: each.told for each in check_run(hashed)}
    assert told["model"] == snapshot
    assert told["checkpoints/step-00000010"] == snapshot


def test_a_checkpoint_that_is_being_removed_meanwhile_is_no_damage(
    hashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotation, or a mirror's pruning, has begun when the first is read and is done when the second
    is.
    """
    first, second = (hashed / "checkpoints" / f"step-{step:08d}" for step in (10, 20))

    def while_it_is_removed(folder: Path) -> JsonDict:
        if folder == second:
            shutil.rmtree(first)
        else:
            (folder / "MANIFEST.json").unlink()
        return verify(folder)

    monkeypatch.setattr(checkpoint, "verify", while_it_is_removed)
    assert verdicts(hashed) == {"checkpoints/step-00000020": True, "model": True}


def test_a_model_whose_checkpoint_is_removed_meanwhile_is_not_damaged(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed(run_folder: Path) -> Path:
        shutil.rmtree(run_folder / "checkpoints" / "step-00000010")
        return run_folder / "checkpoints" / "step-00000010"

    monkeypatch.setattr(checking, "_made_from", removed)
    assert verdicts(run)["model"] is None


def test_a_checkpoint_in_quarantine_is_told(run: Path) -> None:
    (run / "checkpoints" / "step-00000020").rename(
        run / "checkpoints" / "quarantine-step-00000020-abc"
    )
    assert verdicts(run)["checkpoints/quarantine-step-00000020-abc"] is False


def test_in_a_mirror_the_files_beside_a_checkpoint_and_those_of_the_finished_run_are_read_back(
    hashed: Path,
) -> None:
    (hashed / "model" / "MANIFEST.json").unlink()
    point = hashed / "checkpoints" / "step-00000010"
    (point / "run").mkdir()
    (point / "run" / "recipe.yaml").write_text("name: tiny\n")
    entry: Callable[[Path], dict[str, object]] = lambda path: {  # noqa: E731
        "bytes": path.stat().st_size,
        "sha256": sha256_of(path),
    }
    (point / "POINT.json").write_text(
        json.dumps({"files": {"run/recipe.yaml": entry(point / "run" / "recipe.yaml")}})
    )
    (hashed / "finished.json").write_text(
        json.dumps(
            {"files": {"model/model.safetensors": entry(hashed / "model" / "model.safetensors")}}
        )
    )
    assert verdicts(hashed) == {
        "checkpoints/step-00000010": True,
        "checkpoints/step-00000020": True,
        "model": True,
    }
    (point / "run" / "recipe.yaml").write_text("name: tino\n")
    save_file(
        {
            name: tensor * 1 + 1
            for name, tensor in load_file(hashed / "model" / "model.safetensors").items()
        },
        hashed / "model" / "model.safetensors",
    )
    assert verdicts(hashed) == {
        "checkpoints/step-00000010": False,
        "checkpoints/step-00000020": True,
        "model": False,
    }
    (point / "POINT.json").write_text("{")
    assert verdicts(hashed)["checkpoints/step-00000010"] is False


def test_exports_are_read_back_like_the_model(hashed: Path) -> None:
    for name in ("export", "merged"):
        shutil.copytree(hashed / "model", hashed / name)
    (hashed / "merged" / "MANIFEST.json").unlink()
    flip(hashed / "export" / "model.safetensors")
    found = {name: verdict for name, verdict in verdicts(hashed).items() if "/" not in name}
    assert found == {"model": True, "export": False, "merged": None}


def test_a_run_that_kept_nothing_has_nothing_to_check(tmp_path: Path) -> None:
    assert check_run(tmp_path) == ()


def test_a_wrong_digit_in_a_models_manifest_is_damage(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    note_hashes(model)
    assert [result.is_sound for result in check_run(tmp_path)] == [True]

    path = model / MANIFEST
    path.write_text(path.read_text().replace('"bytes": 2', '"bytes": 3'))
    (result,) = check_run(tmp_path)
    assert result.is_sound is False
    assert "checksum" in result.told


def test_a_model_whose_manifest_is_lost_is_damaged_where_the_run_knows_of_one(hashed: Path) -> None:
    manifest = hashed / "model" / MANIFEST
    (hashed / "run.json").write_text(json.dumps({NOTED_AS: {"model": sha256_of(manifest)}}))
    assert verdicts(hashed)["model"] is True

    manifest.unlink()
    assert verdicts(hashed)["model"] is False
