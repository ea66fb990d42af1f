"""A finished run that lost something here replaces nothing that the mirror has."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.manifest import note_hashes
from brimful.mirror.files import Files
from brimful.mirror.finished import NOTE, FinishedRun
from brimful.mirror.mirroring import catch_up
from brimful.mirror.points import MirroredRun
from brimful.mirror.restore import bring_back

Run = Any
MODEL = "model/model.safetensors"


@pytest.fixture
def finished(run: Run) -> Run:
    """Copied whole."""
    run.save(2)
    run.finish()
    note_hashes(run.folder / "model")
    run.copy(is_finished=True)
    run.said.clear()
    return run


class _Counted(Files):
    """Notes which files of the mirror are read."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def read(self, path: Path) -> Iterator[bytes]:
        self.opened.append(path.name)
        return super().read(path)


def _lose(path: Path, damage: bytes | None) -> None:
    path.unlink() if damage is None else path.write_bytes(damage)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (MODEL, None),
        (MODEL, b"weighty"),
        ("model/MANIFEST.json", b"{"),
        ("recipe.yaml", None),
        ("metrics.jsonl", b""),
    ],
)
def test_what_a_finished_run_lost_here_comes_back_from_the_mirror(
    finished: Run, name: str, damage: bytes | None
) -> None:
    whole = (finished.folder / name).read_bytes()
    _lose(finished.folder / name, damage)
    bring_back(finished.place, finished.folder, finished.recipe, finished.said.append)
    assert (finished.folder / name).read_bytes() == whole == (finished.mirrored / name).read_bytes()
    assert len(finished.said) == 1
    assert f"the run here was damaged ({name} " in finished.said[0]
    assert not list(finished.folder.rglob("*.fetched"))


@pytest.mark.parametrize("damage", [None, b"weighty"])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_damaged_run_is_not_copied_over_the_good_copy(
    finished: Run, damage: bytes | None, has_manifest: bool, snapshot: SnapshotAssertion
) -> None:
    if not has_manifest:
        (finished.folder / "model" / "MANIFEST.json").unlink()
        finished.copy(is_finished=True)
    before = {path: path.stat().st_mtime_ns for path in finished.mirrored.rglob("*")}
    finished.said.clear()
    _lose(finished.folder / MODEL, damage)
    catch_up(finished.recipe, finished.folder, finished.said.append)

    assert {path: path.stat().st_mtime_ns for path in finished.mirrored.rglob("*")} == before
    assert (finished.mirrored / MODEL).read_bytes() == b"weights"
    assert len(finished.said) == 1
    assert f"{MODEL} is" in finished.said[0]
    assert finished.said[0] == snapshot


def test_where_both_are_damaged_that_is_said_and_nothing_changes(
    finished: Run, snapshot: SnapshotAssertion
) -> None:
    for folder in (finished.folder, finished.mirrored):
        (folder / MODEL).write_bytes(b"weighty")
    bring_back(finished.place, finished.folder, finished.recipe, finished.said.append)
    assert finished.said[0] == snapshot
    assert (finished.folder / MODEL).read_bytes() == b"weighty"


def test_a_run_that_was_trained_on_out_of_the_mirrors_sight_is_whole_and_copied(
    finished: Run,
) -> None:
    (finished.folder / MODEL).write_bytes(b"better weights")
    note_hashes(finished.folder / "model")
    (finished.folder / "metrics.jsonl").write_text("{}\n" * 9)
    mirrored = MirroredRun(finished.mirrored, Files())
    assert FinishedRun(mirrored, finished.folder).damage() == {}
    catch_up(finished.recipe, finished.folder, finished.said.append)
    assert (finished.mirrored / MODEL).read_bytes() == b"better weights"


def test_a_model_is_never_removed_from_a_mirror_but_what_can_be_made_again_is(
    finished: Run,
) -> None:
    (finished.folder / "evaluations" / "bleu.json").unlink()
    catch_up(finished.recipe, finished.folder, finished.said.append)
    assert not (finished.mirrored / "evaluations" / "bleu.json").exists()
    assert (finished.mirrored / MODEL).exists()


def test_what_was_read_back_is_not_read_again_until_it_changes(
    finished: Run, snapshot: SnapshotAssertion
) -> None:
    state = FinishedRun(MirroredRun(finished.mirrored, Files()), finished.folder)
    assert state.is_up_to_date()
    before = (finished.mirrored / "mirror.json").stat().st_ino
    catch_up(finished.recipe, finished.folder, finished.said.append)
    assert (finished.mirrored / "mirror.json").stat().st_ino == before  # not even that
    assert finished.said == []

    (finished.folder / "report.html").write_text("page")
    files = _Counted()
    assert finished.copy(is_finished=True, files=files).status.durable_step == 2
    assert finished.said == snapshot
    assert "model.safetensors" not in files.opened
    assert (finished.mirrored / "report.html").read_text() == "page"
    told = json.loads((finished.mirrored / "mirror.json").read_text())
    assert (told["durable_step"], told["state"], told["finished"]) == (2, "ok", True)

    (finished.mirrored / MODEL).write_bytes(b"weighty")
    assert not state.is_up_to_date()
    assert MODEL not in state.unchanged()
    catch_up(finished.recipe, finished.folder, finished.said.append)
    assert (finished.mirrored / MODEL).read_bytes() == b"weights"

    (finished.folder / NOTE).write_text("[]")
    assert state.unchanged() == frozenset()
