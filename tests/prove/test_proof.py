"""A proof goes on where it ended, tries again what failed, and keeps every outcome."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import PlanError, RequestError
from brimful.hardware.probe import cpu_device
from brimful.prove.bases import TooLarge
from brimful.prove.proof import Proof, prove
from brimful.prove.record import FAILED, HELD, SKIPPED, Outcome
from brimful.prove.trials import PARTS, Trial
from brimful.prove.workplace import Refused, TrialFailed, Workplace


def _trial(name: str, act: Callable[[Workplace], Outcome]) -> Trial:
    return Trial(name, PARTS[0], f"trial {name}", act)


def _holds(_place: Workplace) -> Outcome:
    return Outcome(status=HELD, what="it ran")


def _prove(folder: Path, *trials: Trial, limit_s: float = 600.0) -> tuple[Proof, list[str]]:
    said: list[str] = []
    return prove(folder, cpu_device(), trials, limit_s, said.append), said


def test_whatever_ends_a_trial_the_others_are_tried(tmp_path: Path) -> None:
    def fails(_place: Workplace) -> Outcome:
        raise TrialFailed("memory ran out", Outcome(facts={"micro_batch": 8}))

    def is_refused(_place: Workplace) -> Outcome:
        raise PlanError("no such model.\nsecond line")

    def has_no_room(_place: Workplace) -> Outcome:
        raise TooLarge("its weights need 16 GiB")

    def does_not_fit(_place: Workplace) -> Outcome:
        raise Refused("`brimful train` refused: it needs 44 GiB")

    def cannot_write(_place: Workplace) -> Outcome:
        raise OSError(28, "No space left on device")

    proof, said = _prove(
        tmp_path / "proof",
        _trial("a", fails),
        _trial("b", is_refused),
        _trial("c", has_no_room),
        _trial("d", cannot_write),
        _trial("e", _holds),
        _trial("f", does_not_fit),
    )

    outcomes = proof.record.outcomes
    assert [each.status for each in outcomes.values()] == [
        FAILED,
        FAILED,
        SKIPPED,
        FAILED,
        HELD,
        SKIPPED,
    ]
    assert outcomes["a"].facts == {"micro_batch": 8}
    assert outcomes["b"].what == "no such model"
    assert proof.failed == ["a", "b", "d"]
    assert "1 of 6: trial a ..." in said
    page = proof.page.read_text()
    assert "1 of 4 trials held; 2 could not be tried here." in page
    assert "No space left" in page


def test_disk_is_returned_but_for_models_that_others_start_from(tmp_path: Path) -> None:
    def writes(place: Workplace) -> Outcome:
        for name in ("documents", "documents-killed"):
            for folder in ("checkpoints", "model"):
                (place.runs / name / folder).mkdir(parents=True)
        place.exported("documents").mkdir(parents=True)
        return Outcome(status=HELD, what="it ran")

    _prove(tmp_path, _trial("documents", writes))

    left = {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "runs").rglob("*")}
    assert left == {"runs/documents", "runs/documents/model", "runs/documents-killed"}
    assert not (tmp_path / "exported" / "documents").exists()


def test_the_same_command_goes_on_and_tries_again_what_failed(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    tried: list[str] = []

    def counted(place: Workplace) -> Outcome:
        tried.append(place.device)
        return _holds(place)

    def fails_once(place: Workplace) -> Outcome:
        tried.append("again")
        if tried.count("again") == 1:
            raise TrialFailed("not yet")
        return _holds(place)

    trials = (_trial("a", counted), _trial("b", fails_once))

    first, _ = _prove(tmp_path / "proof", *trials)
    second, said = _prove(tmp_path / "proof", *trials)

    assert first.failed == ["b"]
    assert second.failed == []
    assert tried == ["cpu", "again", "again"]
    assert said[0] == snapshot


def test_nothing_begins_when_the_time_is_over(tmp_path: Path) -> None:
    proof, _ = _prove(tmp_path / "proof", _trial("a", _holds), limit_s=0.0)

    assert [each.name for each in proof.remaining] == ["a"]
    assert "1 were not reached" in proof.page.read_text()

    later, _ = _prove(tmp_path / "proof", _trial("a", _holds))
    assert later.remaining == ()


def test_an_earlier_try_leaves_nothing_behind(tmp_path: Path) -> None:
    runs = tmp_path / "proof" / "runs"
    left, other = (runs / name / "plan.json" for name in ("a", "a-choice-1"))
    kept = runs / "a-calibrated" / "plan.json"
    for each in (left, other, kept):
        each.parent.mkdir(parents=True)
        each.write_text("{}")
    (tmp_path / "proof" / "recipes").mkdir()

    _prove(tmp_path / "proof", _trial("a", _holds))

    assert not left.exists()
    assert not other.exists()
    assert kept.exists()


@pytest.mark.parametrize("is_file", [True, False])
def test_a_folder_with_something_else_is_left_alone(
    tmp_path: Path, is_file: bool, refuses: Refuses
) -> None:
    folder = tmp_path / "mine"
    if is_file:
        folder.write_text("x")
    else:
        folder.mkdir()
        (folder / "thesis.tex").write_text("x")

    with refuses(RequestError):
        _prove(folder, _trial("a", _holds))
