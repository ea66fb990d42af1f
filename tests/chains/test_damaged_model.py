"""A finished run whose model was damaged answers nothing, and the same command repairs it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from rich.console import Console

from brimful.base.errors import RunFolderError
from brimful.base.manifest import MANIFEST, note_hashes
from brimful.chains.pipeline import train
from brimful.generation.export import export
from brimful.generation.load import load_run

CPU = torch.device("cpu")


def _flip_a_bit(model: Path) -> None:
    path = model / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def _change_a_digit(model: Path) -> None:
    path = model / "config.json"
    text = path.read_text()
    assert '"rms_norm_eps": 1e-' in text
    path.write_text(text.replace('"rms_norm_eps": 1e-', '"rms_norm_eps": 2e-'))


def _add_adapters(model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")


def _lose_the_manifest(model: Path) -> None:
    (model / MANIFEST).unlink()


def _become_another_model(model: Path) -> None:
    _change_a_digit(model)
    note_hashes(model)


@pytest.mark.parametrize(
    "damage",
    [
        _flip_a_bit,
        _change_a_digit,
        _add_adapters,
        _lose_the_manifest,
        _become_another_model,
        shutil.rmtree,
    ],
)
def test_a_damaged_model_is_refused_until_the_same_command_wrote_it_again(
    tiny: MakeRecipe,
    tmp_path: Path,
    refuses: Refuses,
    damage: Callable[[Path], None],
) -> None:
    recipe, printed = tiny(), Console(record=True, width=400)
    folder = train(recipe, Console(quiet=True)).folder
    model = folder / "model"
    names = {path.name for path in model.iterdir()}
    before = [(model / name).read_bytes() for name in ("model.safetensors", "config.json")]
    damage(model)

    with pytest.raises(RunFolderError, match="command"):
        load_run(folder, CPU, torch.float32)
    with pytest.raises(RunFolderError):
        export(folder, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()

    repaired = train(recipe, printed)
    assert repaired.trained_now
    assert "written again from its checkpoint" in " ".join(printed.export_text().split())
    assert {path.name for path in model.iterdir()} == names
    assert [(model / name).read_bytes() for name in ("model.safetensors", "config.json")] == before
    load_run(folder, CPU, torch.float32)
    assert not train(recipe, Console(quiet=True)).trained_now


def test_a_model_damaged_here_and_in_the_mirror_is_written_again_in_both(
    tiny: MakeRecipe, tmp_path: Path
) -> None:
    drive, printed = tmp_path / "drive", Console(record=True, width=400)
    recipe = tiny(f"run.mirror={drive}")
    folder = train(recipe, Console(quiet=True)).folder
    models = [folder / "model", drive / folder.name / "model"]
    before = (models[0] / "model.safetensors").read_bytes()
    for model in models:
        _flip_a_bit(model)

    assert train(recipe, printed).trained_now
    assert "so is the copy" in printed.export_text()
    assert [(model / "model.safetensors").read_bytes() for model in models] == [before, before]
    assert not train(recipe, Console(quiet=True)).trained_now
