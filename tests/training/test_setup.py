"""The end of a session: what fits before it is done, what does not is left to the next one."""

import dataclasses
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from finished_runs import checkpoints_of, newest_of, records_of, train
from fixture_types import MakeRecipe
from rich.console import Console

from brimful.base.errors import SessionOver
from brimful.base.types import JsonDict
from brimful.base.units import GIB, MIB
from brimful.chains import pipeline, training_session
from brimful.chains.phases import folder_of
from brimful.recipe import Recipe
from brimful.training import decisions, session
from brimful.training.checkpoint import differences
from brimful.training.setup import RESERVE_S, BaseComparison, Deadline


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_work_a_checkpoint_and_its_copy_have_to_end_before_the_reserve() -> None:
    clock = Clock()
    deadline = Deadline(1000.0, 1000.0, clock)
    needed_s = 1.25 * 40 + 2 * 10 + 30 + RESERVE_S

    clock.now_s = 1000 - needed_s
    assert deadline.leaves_room(work_s=40, save_s=10, copy_s=30)
    clock.now_s += 0.01
    assert not deadline.leaves_room(work_s=40, save_s=10, copy_s=30)


def test_the_copy_in_the_mirror_is_given_a_quarter_of_the_session_at_most() -> None:
    clock = Clock()
    deadline = Deadline(1000.0, 1000.0, clock)

    clock.now_s = 1000 - 250 - RESERVE_S
    assert deadline.leaves_room(work_s=0, save_s=0, copy_s=5000)
    clock.now_s += 0.01
    assert not deadline.leaves_room(work_s=0, save_s=0, copy_s=5000)
    assert deadline.describe(5000).endswith("of which the copy in the mirror is given 4m 10s")
    assert "mirror" not in deadline.describe(5)


def test_a_short_session_keeps_a_tenth_of_itself_free() -> None:
    clock = Clock()
    deadline = Deadline(10.0, 10.0, clock)

    clock.now_s = 8.9
    assert deadline.leaves_room(work_s=0, save_s=0)
    clock.now_s = 9.1
    assert not deadline.leaves_room(work_s=0, save_s=0)


def test_a_session_counts_from_the_start_of_the_process() -> None:
    assert Deadline.of_process(3600.0).left_s < 3600
    assert "this session of 1h 00m ends at " in Deadline.of_process(3600.0).describe()


class Ends(Clock):
    """A clock that the meter's steps move: each step takes a minute, so a session of five minutes
    holds a few.
    """

    def leave(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = session.Meter.note_step

        def note_step(meter: session.Meter, *args: Any, **values: Any) -> None:
            self.now_s += 60
            real(meter, *args, **values)

        monkeypatch.setattr(
            session.Meter,
            "step_time_s",
            property(lambda meter: 60.0, lambda meter, value: None),
            raising=False,
        )
        monkeypatch.setattr(session.Meter, "note_step", note_step)


def _cut(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, minutes: float, copy_s: float = 0.0
) -> SessionOver:
    """Train with a session of so many minutes of the clock; returns how it ended."""
    clock, setup_of = Ends(), training_session._setup
    with monkeypatch.context() as patch:
        clock.leave(patch)
        deadline = Deadline(60.0 * minutes, 60.0 * minutes, clock)
        patch.setattr(
            training_session,
            "_setup",
            lambda *values: replace(setup_of(*values), deadline=deadline),
        )
        patch.setattr(training_session.Mirroring, "seconds_to_durable", lambda mirroring: copy_s)
        with pytest.raises(SessionOver) as caught:
            train(recipe)
    assert deadline.left_s > 0
    return caught.value


def _steps(folder: Path) -> list[int]:
    return checkpoints_of(folder).steps()


def test_training_stops_before_the_end_with_a_checkpoint_and_the_next_session_ends_bit_for_bit(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _cut(tiny(), monkeypatch, minutes=5)

    assert error.exit_code == 75
    assert "a checkpoint is saved. Run the same command to continue." in str(error)
    folder = folder_of(tiny())
    stopped_at = _steps(folder)[-1]
    assert 0 < stopped_at < 5
    undisturbed = train(tiny("run.name=undisturbed"))
    assert differences(newest_of(train(tiny())), newest_of(undisturbed)) == []


@pytest.mark.parametrize(
    "left_mib", [[500, 500, 50], [900, 700, 400]], ids=["little is left", "others take it"]
)
def test_a_run_stops_with_a_checkpoint_before_memory_is_used_up_and_goes_on_later(
    left_mib: list[int], tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 4 GiB 82 MiB are kept free; in the second case two steps as the last would use it up."""
    recipe = tiny("run.name=brim", "training.steps=8")
    looks = iter(left_mib)

    with monkeypatch.context() as patch:
        patch.setattr(decisions, "LOOK_EVERY_S", 0.0)
        patch.setattr(decisions, "unmapped_bytes", lambda: 0)
        patch.setattr(decisions.host, "memory_left", lambda: (next(looks) * MIB, 4 * GIB))
        with pytest.raises(SessionOver) as caught:
            train(recipe)

    assert list(looks) == []
    assert caught.value.exit_code == 75
    assert f"only {left_mib[-1]:.4g}" in str(caught.value)
    stopped_at = _steps(folder_of(recipe))[-1]
    assert stopped_at < 8
    undisturbed = train(tiny("run.name=undisturbed", "training.steps=8"))
    assert differences(newest_of(train(recipe)), newest_of(undisturbed)) == []


def test_a_slow_mirror_makes_it_stop_earlier(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cut(tiny("run.name=quick"), monkeypatch, minutes=8)
    _cut(tiny("run.name=slow"), monkeypatch, minutes=8, copy_s=150.0)
    runs = folder_of(tiny()).parent

    assert _steps(runs / "slow")[-1] < _steps(runs / "quick")[-1]


def test_an_evaluation_that_would_end_too_late_is_left_to_the_next_session(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_evaluation = property(lambda meter: 600.0, lambda meter, value: None)
    with monkeypatch.context() as patch:
        patch.setattr(session.Meter, "evaluation_s", long_evaluation, raising=False)
        _cut(tiny(), monkeypatch, minutes=14)
    folder = folder_of(tiny())
    assert _steps(folder)[-1] == 6  # where evaluation.every=6 has one due
    assert not records_of(folder, "evaluation")

    train(tiny())

    assert [record["step"] for record in records_of(folder, "evaluation")] == [6, 12]


def test_the_start_says_when_the_session_ends_and_how_many_the_run_takes(
    tiny: MakeRecipe,
) -> None:
    said = StringIO()
    recipe = tiny("run.session=12h", "run.name=long")
    pipeline.train(recipe, Console(file=said, width=200), explain=True)

    assert "this session of 12h 00m ends at " in said.getvalue()
    assert "Sessions: 1 session of 12h 00m; the same command goes on after each." in said.getvalue()


def test_how_a_session_ended_stays_in_the_journal_where_nothing_was_trained_after_its_checkpoint(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cut(tiny(), monkeypatch, minutes=5)
    folder = train(tiny())
    kinds = [
        (record["kind"], record.get("reason")) for record in records_of(folder, "start", "end")
    ]

    assert kinds == [("start", None), ("end", "stopped"), ("start", None), ("end", "finished")]


WHOLE = BaseComparison(lambda model: {}, 1.0, None)
HALF = BaseComparison(lambda model: {}, 0.5, None)
VALUES = {"loss": 2.0, "tokens": 7, "seconds": 0.1, "batch_sizes": [4]}


def test_a_record_says_whose_score_it_is_and_of_what() -> None:
    assert HALF.record("base", 0, VALUES) == {
        "kind": "base",
        "step": 0,
        "model": "base",
        "share": 0.5,
        "max_sequences": None,
        "loss": 2.0,
        "tokens": 7,
        "seconds": 0.1,
    }


@pytest.mark.parametrize(
    ("scored", "expected"),
    [(HALF, True), (WHOLE, False), (dataclasses.replace(HALF, max_sequences=3), False)],
    ids=["same", "other-share", "other-number"],
)
def test_a_score_is_taken_over_if_it_is_of_the_same_sequences(
    scored: BaseComparison, expected: bool
) -> None:
    records = [{"kind": "step", "step": 1}, scored.record("base", 0, VALUES)]

    assert (HALF.of_base(records) is not None) is expected


def test_the_tuned_model_is_scored_once_and_only_on_a_part_of_the_sequences() -> None:
    base: JsonDict = HALF.record("base", 0, VALUES)

    assert HALF.lacks_tuned([base])
    assert not HALF.lacks_tuned([])
    assert not HALF.lacks_tuned([base, HALF.record("tuned", 8, VALUES)])
    assert not WHOLE.lacks_tuned([WHOLE.record("base", 0, VALUES)])
