"""What a new machine gets back from a mirror, and what is refused."""

import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.base.errors import RunFolderError
from brimful.base.rundir import Lease, read_json, write_json_atomically
from brimful.mirror.files import Files
from brimful.mirror.finished import NOTE
from brimful.mirror.points import POINT, _digest_of, folder_of_step, local_steps
from brimful.mirror.restore import bring_back, refuse_fresh, set_aside
from brimful.mirror.status import STATUS
from brimful.recipe import load
from brimful.training.admission import admit, holds_no_work, status_of

Run = Any


def _contents(folder: Path) -> dict[str, bytes]:
    """Without what is this machine's knowledge of the mirror."""
    found = (
        path for path in folder.rglob("*") if path.is_file() and path.name not in {STATUS, NOTE}
    )
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _damage(run: Run, step: int) -> None:
    (folder_of_step(run.mirrored, step) / "optimizer.safetensors").write_bytes(b"rot")


def _mirrored_up_to(run: Run, *steps: int, best: int | None = None) -> None:
    for step in steps:
        run.save(step, best=best if best is not None and step >= best else None)
        run.copy()
    run.said.clear()


def _bring_back(run: Run, **options: Any) -> list[str]:
    said: list[str] = []
    bring_back(run.place, run.folder, options.pop("recipe", run.recipe), said.append, **options)
    return said


def test_nothing_is_brought_back_from_an_empty_mirror_or_where_nothing_is_newer(run: Run) -> None:
    assert _bring_back(run) == []
    _mirrored_up_to(run, 2, 4)
    before = _contents(run.folder)
    assert _bring_back(run) == []
    assert _contents(run.folder) == before


def test_a_new_machine_gets_the_newest_point_as_it_was_and_the_mirror_stays_as_it_is(
    run: Run,
) -> None:
    _mirrored_up_to(run, 2, 4, 6, best=2)
    newest = (run.folder / "metrics.jsonl").read_bytes()
    with open(run.folder / "metrics.jsonl", "a") as journal:
        journal.write('{"kind": "step", "step": 7}\n')
    before = _contents(run.folder)
    shutil.rmtree(run.folder)
    mirrored = _contents(run.mirrored)
    (run.folder).mkdir()
    (run.folder / "recipe.yaml").write_text(
        "half"
    )  # what a session leaves that died while starting

    said = _bring_back(run)
    assert said[0].startswith(f"brought back from the mirror {run.mirrored}: step 6, ")
    assert local_steps(run.folder) == [2, 6]
    expected = {
        name: content
        for name, content in before.items()
        if not name.startswith("checkpoints/step-00000004")
    } | {"metrics.jsonl": newest}
    assert _contents(run.folder) == expected
    assert _contents(run.mirrored) == mirrored
    assert [path.name for path in run.folder.parent.iterdir()] == [run.folder.name]
    assert admit(run.recipe, run.folder, fresh=False).continues


def test_a_damaged_point_is_named_and_an_older_sound_one_taken(run: Run) -> None:
    _mirrored_up_to(run, 2, 4)
    shutil.rmtree(run.folder)
    _damage(run, 4)

    said = _bring_back(run)
    assert "step 4: optimizer.safetensors has 3 bytes" in said[0]
    assert ": step 2, " in said[1]
    assert local_steps(run.folder) == [2]


def test_a_point_whose_best_checkpoint_is_damaged_is_not_used(run: Run, refuses: Refuses) -> None:
    _mirrored_up_to(run, 2, 4, best=2)
    shutil.rmtree(run.folder)
    _damage(run, 2)

    with refuses(RunFolderError, names=["step 4", "step 2", "--fresh"]):
        _bring_back(run)
    assert not run.folder.exists()


def test_where_no_point_was_ever_called_durable_the_run_starts_again(run: Run) -> None:
    _mirrored_up_to(run, 2)
    shutil.rmtree(run.folder)
    _damage(run, 2)
    values = read_json(run.mirrored / STATUS)
    write_json_atomically(run.mirrored / STATUS, {**values, "durable_step": None})

    assert "step 2: " in _bring_back(run)[0]
    assert not run.folder.exists()


def test_a_run_that_went_on_elsewhere_is_brought_back_and_the_older_one_moved_aside(
    run: Run, tmp_path: Path
) -> None:
    _mirrored_up_to(run, 2)
    shutil.copytree(run.folder, tmp_path / "older")
    _mirrored_up_to(run, 4)
    shutil.rmtree(run.folder)
    shutil.move(tmp_path / "older", run.folder)

    said = _bring_back(run)
    moved = next(path for path in run.folder.parent.iterdir() if ".behind-" in path.name)
    assert said[0] == f"the run here is older than the one in the mirror; it was moved to {moved}"
    assert (local_steps(run.folder), local_steps(moved)) == ([2, 4], [2]) or (
        local_steps(run.folder),
        local_steps(moved),
    ) == ([4], [2])


def test_a_local_run_whose_newer_checkpoints_are_damaged_is_mended_from_the_mirror(
    run: Run,
) -> None:
    _mirrored_up_to(run, 2, 4)
    (folder_of_step(run.folder, 4) / "model.safetensors").write_bytes(b"rot")

    assert ": step 4, " in _bring_back(run)[-1]
    assert admit(run.recipe, run.folder, fresh=False).continues


def test_a_run_that_is_being_written_is_not_replaced(run: Run, refuses: Refuses) -> None:
    _mirrored_up_to(run, 2, 4)
    shutil.rmtree(folder_of_step(run.folder, 4))
    with (
        Lease.acquire(run.folder),
        refuses(RunFolderError),
    ):
        _bring_back(run)
    assert local_steps(run.folder) == [2]


def test_a_finished_run_comes_back_finished_with_its_checkpoints(run: Run) -> None:
    _mirrored_up_to(run, 2, 4)
    run.finish()
    run.copy(is_finished=True)
    before = _contents(run.folder)
    shutil.rmtree(run.folder)

    assert "the finished run, " in _bring_back(run)[-1]
    assert _contents(run.folder) == before
    assert status_of(run.folder) == "finished"


@pytest.mark.parametrize("damage", ["model/model.safetensors", "finished.json"])
def test_a_damaged_finished_run_comes_back_as_its_newest_point(run: Run, damage: str) -> None:
    _mirrored_up_to(run, 2)
    run.finish()
    run.copy(is_finished=True)
    shutil.rmtree(run.folder)
    (run.mirrored / damage).write_bytes(b"rot")

    said = _bring_back(run)
    assert any("the finished run: " in told for told in said)
    assert local_steps(run.folder) == [2]
    assert status_of(run.folder) != "finished"


def test_a_point_that_was_copied_when_the_run_had_ended_is_not_finished(run: Run) -> None:
    run.save(2)
    run.finish()
    run.copy()
    shutil.rmtree(run.folder)

    _bring_back(run)
    assert status_of(run.folder) == "stopped"


def test_a_mirror_of_another_run_is_refused_whether_here_or_by_its_recipe(run: Run) -> None:
    _mirrored_up_to(run, 2)
    other = run.recipe.model_copy(update={"sequence_length": 16})
    values = read_json(run.folder / "run.json")
    write_json_atomically(run.folder / "run.json", {**values, "id": "another"}, with_checksum=True)
    for act in (lambda: _bring_back(run), lambda: refuse_fresh(run.place, run.folder)):
        with pytest.raises(
            RunFolderError, match=r"belongs to another run.*run\.mirror=PATH.*run\.name=NAME"
        ):
            act()

    shutil.rmtree(run.folder)
    with pytest.raises(
        RunFolderError,
        match=r"(?s)run in the mirror.*another recipe.*sequence_length: 32 -> 16.*run\.mirror=PATH",
    ):
        _bring_back(run, recipe=other)
    changed = run.recipe.model_copy(update={"seed": 7})
    with pytest.raises(RunFolderError, match="--accept-change seed"):
        _bring_back(run, recipe=changed)
    assert ": step 2, " in _bring_back(run, recipe=changed, accept=["seed"])[-1]


def test_a_point_of_another_run_that_nobody_called_durable_replaces_nothing(run: Run) -> None:
    _mirrored_up_to(run, 2, 4)
    for path in (run.folder / "run.json", run.mirrored / STATUS):
        values = {**read_json(path), "id": "another", "durable_step": None}
        write_json_atomically(path, values, with_checksum=True)
    shutil.rmtree(folder_of_step(run.folder, 4))

    assert "step 4: it belongs to run " in _bring_back(run)[0]
    assert local_steps(run.folder) == [2]


def test_a_finished_run_that_was_trained_on_here_is_not_replaced_by_its_older_end(run: Run) -> None:
    _mirrored_up_to(run, 2)
    run.finish()
    run.copy(is_finished=True)
    values = read_json(run.folder / "run.json")
    write_json_atomically(
        run.folder / "run.json", {**values, "status": "running"}, with_checksum=True
    )
    run.save(4)

    assert _bring_back(run) == []
    assert local_steps(run.folder) == [2, 4]


def test_a_folder_that_is_no_runs_mirror_is_refused_also_where_it_is_a_run_folder(
    run: Run, refuses: Refuses
) -> None:
    run.mirrored.mkdir()
    (run.mirrored / "thesis.docx").write_text("")
    with refuses(RunFolderError, names=["run.mirror=PATH"]):
        _bring_back(run)

    (run.mirrored / "thesis.docx").unlink()
    run.mirrored.rmdir()
    run.save(2)
    run.copy()
    (run.folder / "writer.lock").write_text("{}")
    shutil.rmtree(run.mirrored)
    shutil.copytree(run.folder, run.mirrored)  # with checkpoints and a mirror.json of its own
    for act in (lambda: _bring_back(run), lambda: refuse_fresh(run.place, run.folder)):
        with refuses(RunFolderError):
            act()


def test_a_finished_copy_without_points_is_known_by_its_own_number(run: Run) -> None:
    run.finish()
    run.copy(is_finished=True)
    (run.mirrored / STATUS).unlink()
    shutil.rmtree(run.folder)
    assert "the finished run, " in _bring_back(run)[-1]


def test_starting_over_moves_an_unfinished_run_away_and_never_a_finished_one(
    run: Run, refuses: Refuses
) -> None:
    assert set_aside(run.place) is None
    _mirrored_up_to(run, 2)
    refuse_fresh(run.place, run.folder)
    moved = set_aside(run.place)
    assert moved is not None
    assert local_steps(moved) == [2]
    assert not run.mirrored.exists()

    run.finish()
    run.copy(is_finished=True)
    with refuses(RunFolderError, names=["--fresh", "run.name=tiny-2"]):
        refuse_fresh(run.place, run.folder)


def test_a_mirror_that_cannot_be_read_now_stops_the_run_before_an_older_point_is_taken(
    run: Run,
    refuses: Refuses,
) -> None:
    class Failing(Files):
        def read(self, path: Path) -> Any:
            if path.name == "optimizer.safetensors":
                raise OSError(5, "Input/output error")
            return super().read(path)

    _mirrored_up_to(run, 2, 4)
    shutil.rmtree(run.folder)
    with refuses(RunFolderError, names=["input/output"]):
        _bring_back(run, files=Failing())
    assert not run.folder.exists()


def test_nothing_is_written_into_the_mirror_that_is_read(run: Run) -> None:
    class ReadOnly(Files):
        def write(self, descriptor: int, data: bytes) -> None:
            raise AssertionError

        rename = make_folder = remove = write  # type: ignore[assignment]

    _mirrored_up_to(run, 2, 4)
    run.finish()
    run.copy(is_finished=True)
    for damage in (None, "model/model.safetensors"):
        shutil.rmtree(run.folder, ignore_errors=True)
        if damage is not None:
            (run.mirrored / damage).write_bytes(b"rot")
        assert "brought back" in _bring_back(run, files=ReadOnly())[-1]


def test_the_identity_survives_a_lost_status_file_of_the_mirror(run: Run) -> None:
    _mirrored_up_to(run, 2)
    run_id = run.run_id
    shutil.rmtree(run.folder)
    (run.mirrored / STATUS).write_text('{"run_')

    assert ": step 2, " in _bring_back(run)[-1]
    assert run.run_id == run_id
    assert not holds_no_work(run.folder)
    assert load(str(run.folder / "recipe.yaml")) == run.recipe


LISTED: list[tuple[str, Any]] = [
    ("run//etc/hostname", {"bytes": 1, "sha256": "x"}),
    ("a\0b", {"bytes": 1, "sha256": "x"}),
    ("./run.json", {"bytes": 1, "sha256": "x"}),
    ("model.safetensors", {"bytes": "x", "sha256": "x"}),
    ("model.safetensors", None),
    ("model.safetensors", {}),
]
"""Files and their entries in a list whose hash is right."""
FORGED: list[dict[str, Any]] = [
    {"files": []},
    {"files": {}},
    {"step": "2"},
    {"step": None},
    {"best_step": [2]},
    {"run_id": ["x"]},
    {"run_id": None},
]
"""Values of such a list."""


def _attack(run: Run, outside: Path, drawn: random.Random) -> str:
    """Do what somebody who can write the mirror can do to one path of it."""
    paths = sorted(path for path in run.mirrored.rglob("*") if not path.is_symlink())
    path, kind = drawn.choice(paths), drawn.choice(["link", "pipe", "leftover", "swap", "forged"])
    if kind == "forged":
        step = drawn.choice([2, 4])
        list_file = folder_of_step(run.mirrored, step) / POINT
        values = {key: each for key, each in _json(list_file).items() if key != "sha256"}
        if drawn.random() < 0.5:
            name, entry = drawn.choice(LISTED)
            values["files"][name] = entry
        else:
            values |= drawn.choice(FORGED)
        list_file.write_text(json.dumps({**values, "sha256": _digest_of(values)}))
        return f"forged {step}"
    if kind == "leftover":
        name = drawn.choice(["step-00000002.tmp-1", "step-00000003.removed-1", "step-00000009"])
        (run.mirrored / "checkpoints" / name).symlink_to(outside)
        return kind
    if kind == "swap":
        other = drawn.choice([each for each in paths if each.is_dir() == path.is_dir()])
        if path not in {other, *other.parents} and other not in path.parents:
            aside = run.mirrored / "aside"
            path.rename(aside)
            other.rename(path)
            aside.rename(other)
        return kind
    path.rename(path.with_name(f"{path.name}.was"))
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(drawn.choice([outside, outside / "thesis", "/dev/zero", path, "/nowhere"]))
    return kind


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("seed", range(60))
def test_who_can_write_the_mirror_gets_nothing_outside_of_it(run: Run, seed: int) -> None:
    """Links, pipes, devices, swapped folders and forged lists: refused or passed over, and what the
    mirror's user has elsewhere stays as it is, also when points are removed.
    """
    outside = run.folder.parent / "outside"
    outside.mkdir()
    (outside / "thesis").write_text("ten years")
    (outside / POINT).write_text("{}")
    _mirrored_up_to(run, 2, 4)
    drawn = random.Random(seed)
    for _ in range(drawn.randint(1, 3)):
        _attack(run, outside, drawn)
    shutil.copytree(run.folder, kept := run.folder.with_name("kept"))
    shutil.rmtree(run.folder)
    with suppress(RunFolderError):
        _bring_back(run)
    if not run.folder.exists():
        kept.rename(run.folder)
    run.save(6)
    with suppress(RunFolderError):
        run.copy()
    assert _contents(outside) == {"thesis": b"ten years", POINT: b"{}"}
