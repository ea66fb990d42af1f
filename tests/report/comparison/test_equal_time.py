"""Losses of runs after the same time of training."""

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.report.comparison.equal_time import at_equal_time, loss_at
from brimful.report.comparison.results import EQUAL_TIME, ComparedRun

CURVE = ((10.0, 5.0), (20.0, 3.0), (40.0, 2.0))


def result(name: str, *curve: tuple[float, float]) -> ComparedRun:
    return ComparedRun(name, None, 1, {}, {}, {}, "cpu", (), curve=curve)


@pytest.mark.parametrize(
    ("seconds", "loss"),
    [(10, 5.0), (15, 4.0), (20, 3.0), (30, 2.5), (40, 2.0), (9.9, None), (40.1, None)],
)
def test_losses_lie_on_lines_between_evaluations(seconds: float, loss: float | None) -> None:
    assert loss_at(CURVE, seconds) == loss


def test_every_run_is_read_when_the_fastest_had_ended(snapshot: SnapshotAssertion) -> None:
    results, notes = at_equal_time(
        [result("slow", *CURVE), result("fast", (4.0, 4.0), (15.0, 3.5))]
    )

    assert [each.figures[EQUAL_TIME].value for each in results] == [4.0, 3.5]
    assert notes[0] == snapshot


def test_a_run_that_was_not_evaluated_by_then_is_named(snapshot: SnapshotAssertion) -> None:
    results, notes = at_equal_time([result("slow", *CURVE), result("fast", (4.0, 4.0))])

    assert EQUAL_TIME not in results[0].figures
    assert notes[1] == snapshot


def test_nothing_is_said_of_one_run_or_of_runs_without_evaluations() -> None:
    one, other = result("one", *CURVE), result("other")

    assert at_equal_time([one]) == ([one], [])
    assert at_equal_time([one, other]) == ([one, other], [])


def test_both_runs_of_a_name_are_read() -> None:
    results, _ = at_equal_time([result("same", *CURVE), result("same", (1.0, 9.0), (20.0, 8.0))])

    assert [each.figures[EQUAL_TIME].value for each in results] == [3.0, 8.0]
