"""What a mirror lacks is brought to it, and only what it holds is called durable."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.mirror.copier import Copier, Patience, TakenOverError
from brimful.mirror.files import Files, IntegrityError
from brimful.mirror.place import FINISHED
from brimful.mirror.points import MirroredRun, folder_of_step
from brimful.mirror.status import STATUS, StatusBoard

Run = Any


class _Board(StatusBoard):
    """Notes the steps that are called durable."""

    def __init__(self, run: Run, noted: list[int | None]) -> None:
        super().__init__(run.folder, run.mirrored)
        self._noted = noted

    def note_durable(self, step: int | None, bytes_per_s: float | None) -> None:
        self._noted.append(step)
        super().note_durable(step, bytes_per_s)


AT_ONCE = Patience(points_s=0.0, points_share=1e9, logs_s=0.0, log_share=1e9)


def _copier(
    run: Run,
    noted: list[int | None] | None = None,
    files: Files | None = None,
    patience: Patience = AT_ONCE,
) -> Copier:
    board = _Board(run, [] if noted is None else noted)
    copier = Copier(run.place, run.folder, files or Files(), patience, board)
    copier.run_id = run.run_id
    return copier


def _steps(run: Run) -> list[int]:
    return MirroredRun(run.mirrored, Files()).steps()


def test_points_are_durable_in_turn_and_the_two_newest_and_the_best_are_kept(run: Run) -> None:
    told: list[int | None] = []
    copier = _copier(run, told)
    for step, best in ((2, None), (4, 4), (6, 4), (8, 4), (10, 4)):
        run.save(step, best=best)
        copier.bring_up_to_date(ending=False)

    assert told == [2, 4, 6, 8, 10]
    assert _steps(run) == [4, 8, 10]
    assert [MirroredRun(run.mirrored, Files()).check(step).best_step for step in (4, 8, 10)] == [
        4,
        4,
        4,
    ]


def test_a_point_is_durable_only_after_the_best_one_that_it_needs(run: Run) -> None:
    told: list[int | None] = []
    for step, best in ((2, 2), (4, 2), (6, 2), (8, 2)):
        run.save(step, best=best)
    _copier(run, told).bring_up_to_date(ending=False)

    assert told == [8]
    assert _steps(run) == [2, 8]


def test_a_new_session_reads_what_is_there_and_copies_only_what_is_not_or_is_damaged(
    run: Run,
) -> None:
    run.save(2)
    run.save(4, best=2)
    _copier(run).bring_up_to_date(ending=False)
    inode = (folder_of_step(run.mirrored, 4) / "POINT.json").stat().st_ino
    told: list[int | None] = []
    _copier(run, told).bring_up_to_date(ending=False)
    assert told == [4]
    assert (folder_of_step(run.mirrored, 4) / "POINT.json").stat().st_ino == inode

    (folder_of_step(run.mirrored, 2) / "model.safetensors").write_bytes(b"rot")
    _copier(run, told).bring_up_to_date(ending=False)
    assert told == [4, 4]
    for step in (2, 4):
        MirroredRun(run.mirrored, Files()).check(step)


def test_logs_are_copied_when_they_changed(run: Run) -> None:
    copier = _copier(run)
    (run.folder / "metrics.jsonl").write_text("{}\n")
    copier.bring_up_to_date(ending=False)
    inode = (run.mirrored / "plan.json").stat().st_ino
    (run.folder / "metrics.jsonl").write_text("{}\n{}\n")
    copier.bring_up_to_date(ending=False)

    assert (run.mirrored / "metrics.jsonl").read_text() == "{}\n{}\n"
    assert (run.mirrored / "plan.json").stat().st_ino == inode
    assert sorted(path.name for path in run.mirrored.iterdir()) == [
        "metrics.jsonl",
        STATUS,
        "plan.json",
        "recipe.yaml",
        "run.json",
    ]


def test_logs_follow_every_point_so_that_none_of_its_records_seem_lost(run: Run) -> None:
    copier = _copier(run, patience=Patience(points_s=0.0, points_share=1e9))
    for step in (2, 4):
        run.save(step)
        copier.bring_up_to_date(ending=False)
        written = (run.folder / "metrics.jsonl").read_text()
        assert f'"step": {step}' in written
        assert (run.mirrored / "metrics.jsonl").read_text() == written


class _Long(Files):
    """Takes long for a checkpoint: so much so that by the middle of it there are new logs."""

    def __init__(self, run: Run, seen: list[str]) -> None:
        super().__init__()
        self._run, self._seen = run, seen

    def write(self, descriptor: int, data: bytes) -> None:
        super().write(descriptor, data)
        copied = self._run.mirrored / "metrics.jsonl"
        if not any(self._run.mirrored.glob("checkpoints/*.tmp-*")):
            return
        if not self._seen:
            (self._run.folder / "metrics.jsonl").write_text(
                '{"kind": "step", "step": 2}\n{"kind": "step", "step": 3}\n'
            )
        if copied.exists():
            self._seen.append(copied.read_text())


def test_logs_that_are_due_are_copied_in_the_middle_of_a_point(run: Run) -> None:
    seen: list[str] = []
    run.save(2)
    _copier(run, files=_Long(run, seen)).bring_up_to_date(ending=False)
    assert seen
    assert seen[0].count("\n") == 2
    assert (folder_of_step(run.mirrored, 2) / "run" / "metrics.jsonl").read_text().count("\n") == 1


def test_a_mirror_to_which_something_long_is_copied_shows_a_sign_of_life_and_no_finished_run_yet(
    run: Run,
) -> None:
    class Watched(Files):
        def copy(self, source: Path, target: Path, limit: float = math.inf) -> Any:
            if source.name == "model.safetensors":
                (run.mirrored / STATUS).unlink()
            entry = super().copy(source, target, limit)
            if source.name == "model.safetensors":
                signs.append((run.mirrored / STATUS).exists())
                statuses.append(json.loads((run.mirrored / "run.json").read_text())["status"])
            return entry

    signs: list[bool] = []
    statuses: list[str] = []
    copier = _copier(run, files=Watched(), patience=replace(AT_ONCE, alive_s=0.0))
    copier.bring_up_to_date(ending=False)
    run.finish()
    copier.is_finished = True
    copier._check_writer = lambda: None  # type: ignore[method-assign]  # the sign of life is taken away, so that a new one is seen
    copier.bring_up_to_date(ending=True)
    assert signs == [True]
    assert statuses == ["running"]
    assert json.loads((run.mirrored / "run.json").read_text())["status"] == "finished"


def test_a_log_does_not_make_the_folder_of_a_mirrored_run_that_was_removed(run: Run) -> None:
    class Removed(Files):
        def copy(self, source: Path, target: Path, limit: float = math.inf) -> Any:
            shutil.rmtree(run.mirrored, ignore_errors=True)
            return super().copy(source, target, limit)

    with pytest.raises(FileNotFoundError):
        _copier(run, files=Removed()).bring_up_to_date(ending=False)
    assert not run.mirrored.exists()


def test_a_point_waits_for_its_turn_but_not_at_the_end(run: Run) -> None:
    told: list[int | None] = []
    copier = _copier(run, told, patience=Patience())
    for step, ending in ((2, False), (4, False), (6, True)):
        run.save(step)
        copier.bring_up_to_date(ending=ending)
    assert told == [2, 6]


def test_a_mirror_that_another_process_took_over_is_left_alone(run: Run, refuses: Refuses) -> None:
    first = _copier(run)
    run.save(2)
    first.bring_up_to_date(ending=False)
    _copier(run).bring_up_to_date(ending=False)
    run.save(4)

    with refuses(TakenOverError):
        first.bring_up_to_date(ending=False)
    assert _steps(run) == [2]


def test_it_is_asked_again_before_each_commit_whose_the_mirror_is(run: Run) -> None:
    class TakenMeanwhile(Files):
        def read(self, path: Path) -> Any:
            if path.name == "model.safetensors":  # read back aside, just before the commit
                _copier(run).publish()
            return super().read(path)

    run.save(2)
    with pytest.raises(TakenOverError):
        _copier(run, files=TakenMeanwhile()).bring_up_to_date(ending=False)
    assert _steps(run) == []


def test_another_runs_mirror_is_not_taken_over(run: Run, refuses: Refuses) -> None:
    run.save(2)
    _copier(run).bring_up_to_date(ending=False)
    other = _copier(run)
    other.run_id = "another"
    values = json.loads((run.mirrored / STATUS).read_text())
    (run.mirrored / STATUS).write_text(json.dumps({**values, "durable_step": 2}))

    with refuses(TakenOverError):
        other.bring_up_to_date(ending=False)


def test_a_mirrored_run_that_was_removed_is_written_anew_and_no_longer_called_durable(
    run: Run,
) -> None:
    told: list[int | None] = []
    copier = _copier(run, told)
    run.save(2)
    copier.bring_up_to_date(ending=False)
    shutil.rmtree(run.mirrored)
    copier.bring_up_to_date(ending=False)

    assert told == [2, None, 2]
    assert _steps(run) == [2]


def test_the_finished_run_is_copied_whole_and_again_only_where_it_changed(run: Run) -> None:
    run.save(2)
    run.finish()
    copier = _copier(run)
    copier.is_finished = True
    copier.bring_up_to_date(ending=True)
    before = MirroredRun(run.mirrored, Files()).finished()
    assert sorted(before) == [
        "evaluations/bleu.json",
        "metrics.jsonl",
        "model/model.safetensors",
        "plan.json",
        "recipe.yaml",
        "run.json",
    ]
    assert (run.mirrored / "model" / "model.safetensors").read_bytes() == b"weights"
    inode = (run.mirrored / "model" / "model.safetensors").stat().st_ino

    (run.folder / "evaluations" / "bleu.json").unlink()
    (run.folder / "report.html").write_text("page")
    again = _copier(run)
    again.goes_on, again.is_finished = False, True
    again.bring_up_to_date(ending=True)
    assert MirroredRun(run.mirrored, Files()).finished().keys() == (
        before.keys() - {"evaluations/bleu.json"}
    ) | {"report.html"}
    assert not (run.mirrored / "evaluations" / "bleu.json").exists()
    assert (run.mirrored / "model" / "model.safetensors").stat().st_ino == inode


def test_a_file_being_replaced_is_in_no_list_of_the_finished_run(run: Run) -> None:
    class Failing(Files):
        def copy(self, source: Path, target: Path, limit: float = math.inf) -> Any:
            if source.name == "report.html":
                raise IntegrityError("cut off")
            return super().copy(source, target, limit)

    run.finish()
    (run.folder / "report.html").write_text("old")
    copier = _copier(run)
    copier.is_finished = True
    copier.bring_up_to_date(ending=True)
    (run.folder / "report.html").write_text("new")
    again = _copier(run, files=Failing())
    again.goes_on, again.is_finished = False, True
    with pytest.raises(IntegrityError):
        again.bring_up_to_date(ending=True)

    assert "report.html" not in MirroredRun(run.mirrored, Files()).finished()
    assert "model/model.safetensors" in MirroredRun(run.mirrored, Files()).finished()


def test_a_run_that_is_trained_on_is_not_finished_in_the_mirror_any_more(run: Run) -> None:
    run.finish()
    copier = _copier(run)
    copier.is_finished = True
    copier.bring_up_to_date(ending=True)
    _copier(run).bring_up_to_date(ending=False)
    assert not (run.mirrored / FINISHED).exists()
