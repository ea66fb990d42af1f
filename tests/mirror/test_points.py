"""Recovery points in a mirror: whole or absent."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.mirror.files import Files, IntegrityError
from brimful.mirror.place import FINISHED
from brimful.mirror.points import (
    PINS,
    POINT,
    MirroredRun,
    RecoveryPoint,
    _signed,
    all_files,
    drop_pins,
    folder_of_step,
    local_steps,
    pinned,
    run_files,
)

Run = Any


def _mirrored(run: Run, files: Files | None = None) -> MirroredRun:
    run.mirrored.mkdir(exist_ok=True)
    return MirroredRun(run.mirrored, files or Files())


def _add(run: Run, step: int, files: Files | None = None, best: int | None = None) -> RecoveryPoint:
    with pinned(run.folder, step) as source:
        return _mirrored(run, files).add(source, run.folder, run_id=run.run_id, best_step=best)


def test_a_point_holds_the_checkpoint_and_the_runs_files_as_of_its_step(run: Run) -> None:
    run.save(2)
    before = (run.folder / "metrics.jsonl").read_bytes()
    with pinned(run.folder, 2) as source:
        run.save(4)
        point = _mirrored(run).add(source, run.folder, run_id=run.run_id, best_step=None)
    folder = folder_of_step(run.mirrored, 2)

    assert _mirrored(run).check(2) == point
    assert (folder / "run" / "metrics.jsonl").read_bytes() == before
    assert (folder / "run" / "recipe.yaml").read_bytes() == (
        run.folder / "recipe.yaml"
    ).read_bytes()
    assert (folder / "model.safetensors").read_bytes() == (
        folder_of_step(run.folder, 2) / "model.safetensors"
    ).read_bytes()
    assert point.num_bytes == sum(
        path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != POINT
    )
    assert _mirrored(run).steps() == [2]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "state.json", "MANIFEST.json", "run/recipe.yaml", POINT]
)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_anywhere_in_a_point_is_found(run: Run, name: str, damage: str) -> None:
    run.save(2)
    _add(run, 2)
    path = folder_of_step(run.mirrored, 2) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink() if damage == "remove" else path.write_bytes(
        content if damage == "flip" else content[:-3]
    )

    with pytest.raises(IntegrityError):
        _mirrored(run).check(2)


def test_a_list_of_files_that_leads_out_of_its_folder_is_refused(
    run: Run, refuses: Refuses
) -> None:
    run.save(2)
    files = dict(_add(run, 2).files)
    files["../../evil"] = files.pop("state.json")
    with refuses(IntegrityError, names=["outside"]):
        RecoveryPoint.from_json(_signed(files, step=2, best_step=None, run_id="x"))


class _Failing(Files):
    """Fails in the n-th use of one operation, or lets it do nothing."""

    def __init__(self, name: str, at: int, *, silently: bool = False) -> None:
        super().__init__()
        real, self.count = getattr(self, name), 0

        def act(*arguments: Any) -> Any:
            self.count += 1
            if self.count != at:
                return real(*arguments)
            if not silently:
                raise OSError(28, "No space left on device")
            return None

        setattr(self, name, act)


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_whatever_operation_fails_the_old_points_stay_and_the_new_one_is_whole_or_absent(
    run: Run, operation: str, silently: bool
) -> None:
    run.save(2)
    _add(run, 2)
    run.save(4)
    counted = _Failing(operation, -1)
    _add(run, 4, counted)
    shutil.rmtree(folder_of_step(run.mirrored, 4))

    for at in range(1, counted.count + 1):
        try:
            point = _add(run, 4, _Failing(operation, at, silently=silently))
        except (OSError, IntegrityError):
            assert _mirrored(run).steps() in ([2], [2, 4])
        else:
            assert silently
            assert _mirrored(run).check(4) == point
        _mirrored(run).check(2)
        shutil.rmtree(folder_of_step(run.mirrored, 4), ignore_errors=True)


def test_a_newer_checkpoint_of_the_same_step_replaces_the_older_and_a_cut_replacement_is_read(
    run: Run,
    refuses: Refuses,
) -> None:
    run.save(2)
    _add(run, 2)
    run.save(2, best=2)
    with refuses(OSError, names=["space"]):
        _add(run, 2, _Failing("rename", 3), best=2)  # the list of files, the old point, the new one
    assert _mirrored(run).check(2).best_step is None
    assert _mirrored(run).path_of(2).name.startswith("step-00000002.replaced-")

    _add(run, 2, best=2)
    assert _mirrored(run).check(2).best_step == 2
    assert [path.name for path in (run.mirrored / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_damaged_local_checkpoint_is_not_copied(run: Run, refuses: Refuses) -> None:
    run.save(2)
    path = folder_of_step(run.folder, 2) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    with refuses(IntegrityError, names=["step 2", "model.safetensors"]):
        _add(run, 2)
    assert list((run.mirrored / "checkpoints").iterdir()) == []


def test_only_what_is_wanted_is_kept_and_what_was_cut_off_is_removed(run: Run) -> None:
    for step in (2, 4, 6):
        run.save(step)
        _add(run, step)
    for name in ("step-00000008.tmp-ab", "step-00000002.replaced-ab", "step-00000001.removed-ab"):
        (run.mirrored / "checkpoints" / name).mkdir()
    (run.mirrored / ".metrics.jsonl.ab.tmp").write_text("")
    _mirrored(run).remove_leftovers()
    _mirrored(run).keep({2, 6})

    assert [path.name for path in sorted((run.mirrored / "checkpoints").iterdir())] == [
        "step-00000002",
        "step-00000006",
    ]
    assert not list(run.mirrored.glob(".*"))


def test_the_list_of_a_finished_run_comes_back_or_is_told_to_be_damaged(
    run: Run, refuses: Refuses
) -> None:
    mirrored = _mirrored(run)
    assert mirrored.finished() == {}
    entries = {"model/x": mirrored.put(run.folder / "recipe.yaml", "model/x")}
    mirrored.note_finished(entries)
    assert mirrored.finished() == entries

    values = json.loads((run.mirrored / FINISHED).read_text())
    values["files"]["model/x"]["bytes"] += 1
    Path(run.mirrored / FINISHED).write_text(json.dumps(values))
    with refuses(IntegrityError, names=["damaged"]):
        mirrored.finished()


def test_a_checkpoint_that_is_held_outlives_rotation(run: Run) -> None:
    run.save(2)
    with pinned(run.folder, 2) as held:
        for step in (4, 6):
            run.save(step)
        assert local_steps(run.folder) == [4, 6]
        assert {path.name for path in held.folder.iterdir()} >= {
            "MANIFEST.json",
            "model.safetensors",
            "state.json",
        }
        assert (held.step, held.best_step) == (2, None)
    assert not any((run.folder / PINS).iterdir())
    with pytest.raises(FileNotFoundError), pinned(run.folder, 2):
        pass


def test_without_hard_links_the_files_are_used_as_they_lie(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: object) -> None:
        raise OSError("not here")

    monkeypatch.setattr(os, "link", refuse)
    run.save(2, best=2)
    with pinned(run.folder, 2) as held:
        assert held.folder == folder_of_step(run.folder, 2)
        assert held.best_step == 2
    assert held.folder.is_dir()


def test_two_checkpoints_of_a_step_are_told_apart(run: Run) -> None:
    versions = []
    for best in (None, 2):
        run.save(2, best=best)
        with pinned(run.folder, 2) as held:
            versions.append(held.version)
    assert versions[0] != versions[1]


def test_leases_pins_checkpoints_and_half_written_files_are_not_the_runs(run: Run) -> None:
    run.save(2)
    run.finish()
    for name in (
        "writer.lock",
        "mirror.json",
        ".plan.json.1.tmp",
        "model.tmp-12/x",
        "model.replaced-12/x",
        f"{PINS}/2/x",
    ):
        path: Path = run.folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("")
    own = ["metrics.jsonl", "plan.json", "recipe.yaml", "run.json"]

    assert [path.name for path in run_files(run.folder)] == own
    assert sorted(path.name for path in all_files(run.folder).values()) == sorted(
        [*own, "model.safetensors", "bleu.json"]
    )
    drop_pins(run.folder)
    assert not (run.folder / PINS).exists()
    shutil.rmtree(run.folder / "checkpoints")
    assert local_steps(run.folder) == []
