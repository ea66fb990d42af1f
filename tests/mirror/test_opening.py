"""Whole runs with a mirror: the machine is lost, the same command continues, and ends bit for bit
where an undisturbed run does.
"""

import shutil
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MakeRecipe, Refuses
from rich.console import Console

from brimful.base.errors import Interrupted, RunFolderError
from brimful.chains import pipeline
from brimful.mirror.status import MirrorStatus, read_status
from brimful.recipe import Recipe
from brimful.training import loop
from brimful.training.admission import run_id_of
from faulty_drive import FAULTS, Drive
from mirror_faults import Bench

FEW = {"write cut": 3, "rename dropped": 15, "folder removed": 20, "no space left": 13}
"""Kinds of faults, and a trial of each in which a process is killed."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize(("kind", "number"), FEW.items())
@pytest.mark.long_but("rename dropped-15", "no space left-13")
def test_whatever_goes_wrong_the_point_called_durable_loads_and_the_run_ends_like_an_undisturbed_one(
    bench: Bench, kind: str, number: int
) -> None:
    """All kinds, 200 trials: benchmarks/mirror_faults.py."""
    assert bench.trial(number, kind)["odd"] == []


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    if (problem := Drive.problem(tmp_path_factory.mktemp("drive"))) is not None:
        pytest.skip(problem)


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize("fault", FAULTS[1:])
@pytest.mark.long_but("quota", "lost by drive")
def test_on_a_real_file_system_that_misbehaves_training_goes_on_and_what_is_durable_is_told(
    bench: Bench, fault: str
) -> None:
    result = bench.drive_trial(0, fault)

    assert result["odd"] == []
    assert result["could_end"] or "hangs" in fault


def _run(recipe: Recipe, **options: Any) -> str:
    console = Console(file=StringIO(), width=200)
    pipeline.train(recipe, console, **options)
    told: str = console.file.getvalue()  # type: ignore[attr-defined]
    return told


def test_a_finished_run_comes_back_and_a_new_one_of_the_name_is_told_from_it(
    tiny: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    drive, folder = tmp_path / "drive", tmp_path / "runs" / "tiny"
    recipe = tiny(f"run.mirror={drive}")
    assert "the finished run is in" in _run(recipe)
    model = (folder / "model" / "model.safetensors").read_bytes()
    status = read_status(folder)
    assert status is not None
    assert (status.state, status.durable_step, status.finished) == ("ok", 12, True)

    (folder / "model" / "model.safetensors").unlink()  # lost here, and not taken from the mirror
    assert "the run here was damaged (model/model.safetensors is missing)" in _run(recipe)
    assert (folder / "model" / "model.safetensors").read_bytes() == model

    shutil.rmtree(folder)
    told = _run(recipe)
    assert "brought back from the mirror" in told
    assert "is finished; nothing to train" in told
    assert (folder / "model" / "model.safetensors").read_bytes() == model

    with refuses(RunFolderError, names=["finished run"]):
        _run(recipe, fresh=True)
    shutil.rmtree(folder)
    with refuses(RunFolderError, names=["finished run"]):
        _run(recipe, fresh=True)
    with refuses(RunFolderError, names=["another recipe"]):
        _run(tiny(f"run.mirror={drive}", "sequence_length=16"))


def test_what_is_interrupted_is_durable_and_starting_over_moves_both_copies_away(
    tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive, folder, real, steps = (
        tmp_path / "drive",
        tmp_path / "runs" / "tiny",
        loop.guarded_update,
        [],
    )

    def update(*arguments: Any, **options: Any) -> Any:
        steps.append(1)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments, **options)

    recipe = tiny(f"run.mirror={drive}")
    monkeypatch.setattr(loop, "guarded_update", update)
    with pytest.raises(Interrupted):
        _run(recipe)
    first = run_id_of(folder)
    assert (read_status(folder) or MirrorStatus("", "failing", 0)).durable_step == 3

    told = _run(recipe, fresh=True)
    moved = {path.name.partition("-")[0] for path in (*folder.parent.iterdir(), *drive.iterdir())}
    assert moved == {"tiny", "tiny.replaced"}
    assert "the unfinished run in the mirror was moved to" in told
    assert run_id_of(folder) == run_id_of(drive / "tiny") != first


def test_a_mirror_that_cannot_be_used_is_an_error_before_the_model_loads(
    tiny: MakeRecipe, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for mirror, told in (
        ("file", "is a file"),
        ("missing/drive", "is the drive mounted"),
        ("runs", "holds the run itself"),
    ):
        with pytest.raises(RunFolderError, match=told):
            _run(tiny(f"run.mirror={tmp_path / mirror}"))
    assert not (tmp_path / "runs" / "tiny").exists()
