"""Files that decide a run's answers are checked where they are read, and brought back from its
checkpoints.
"""

import json
from pathlib import Path

import pytest
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.base.manifest import MANIFEST, sha256_of
from brimful.base.rundir import read_json
from brimful.chains.pipeline import train
from brimful.runs.deciding import DECIDING_FILES, problem_of, read_deciding, recipe_of_run
from brimful.training.checkpoint import STATE_FILE
from brimful.training.mending import mend


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
