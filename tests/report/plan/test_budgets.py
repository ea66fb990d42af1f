"""Answers in sentences: kept or not, by how much, and what would."""

from dataclasses import replace

from syrupy.assertion import SnapshotAssertion

from brimful.planning.budget import Budget, BudgetCheck, Offer, Sessions
from brimful.planning.memory import Verdict
from brimful.planning.plan import Prediction
from brimful.report.plan.budgets import budget_blocks, list_sentences, session_sentences
from brimful.report.terminal import told

HOUR = 3600.0


def _about(value: float, basis: str = "by hand") -> Prediction:
    return Prediction(value, value / 2, value * 2, basis)


def _answer(
    limit: float, hours: float, verdict: Verdict, steps: int = 0, others: tuple[Offer, ...] = ()
) -> BudgetCheck:
    return BudgetCheck(Budget("time", limit), verdict, _about(hours * HOUR), 1000, steps, others)


def budget_lines(check: BudgetCheck, tokens_per_step: int) -> list[str]:
    return told(budget_blocks(check, tokens_per_step)).plain.splitlines()


def test_a_budget_that_is_kept_says_what_is_left(snapshot: SnapshotAssertion) -> None:
    assert budget_lines(_answer(4 * HOUR, 1, "fits", 1000), 256) == snapshot


def test_one_that_is_not_kept_says_by_how_much_and_how_many_steps_would(
    snapshot: SnapshotAssertion,
) -> None:
    lines = budget_lines(_answer(2 * HOUR, 5, "does not fit", 123), 1000)

    assert lines == snapshot


def test_a_hopeless_budget_says_so_without_long_percentages(snapshot: SnapshotAssertion) -> None:
    lines = budget_lines(_answer(10, 5, "does not fit"), 1000)

    assert lines == snapshot


def test_devices_that_would_keep_to_it_are_named_with_time_and_dated_price(
    snapshot: SnapshotAssertion,
) -> None:
    offers = tuple(
        Offer(
            f"device {number}",
            _about(HOUR / 4),
            _about(2, "$2.00 an hour (a list, read 2026-11-21)"),
        )
        for number in range(7)
    )

    lines = budget_lines(_answer(2 * HOUR, 5, "uncertain", 123, offers), 1000)

    assert lines == snapshot
    assert lines[4].endswith(
        "15m 00s  7m 30s to 30m 00s  $2.00 at $2.00 an hour (a list, read 2026-11-21)"
    )


def test_where_no_device_would_the_nearest_is_named(snapshot: SnapshotAssertion) -> None:
    offers = (Offer("near", _about(3 * HOUR), None), Offer("far", _about(4 * HOUR), None))

    lines = budget_lines(_answer(2 * HOUR, 5, "does not fit", 123, offers), 1000)

    assert lines[2:] == snapshot


def test_money_names_only_devices_with_a_price(snapshot: SnapshotAssertion) -> None:
    answer = BudgetCheck(Budget("money", 5), "does not fit", _about(50), 1000, 7)

    lines = budget_lines(answer, 1000)

    assert lines == snapshot


def test_a_list_says_how_many_keep_to_it_and_the_best(snapshot: SnapshotAssertion) -> None:
    answers = {
        "a": _answer(3 * HOUR, 1, "fits"),
        "b": _answer(3 * HOUR, 1.2, "fits"),
        "c": _answer(3 * HOUR, 9, "does not fit"),
    }

    assert list_sentences(answers) == snapshot
    assert list_sentences({}) == []


def test_a_list_names_the_quickest_and_the_cheapest_that_keep_to_it(
    snapshot: SnapshotAssertion,
) -> None:
    quick, cheap = _answer(3 * HOUR, 1, "fits"), _answer(3 * HOUR, 2, "fits")
    answers = {
        "quick": replace(quick, beside=_about(8.0)),
        "cheap": replace(cheap, beside=_about(4.0)),
    }

    (line,) = list_sentences(answers)

    assert line == snapshot


def test_a_list_in_which_none_does_names_the_nearest(snapshot: SnapshotAssertion) -> None:
    answers = {
        "a": _answer(3 * HOUR, 4, "uncertain", 500),
        "c": _answer(3 * HOUR, 9, "does not fit"),
    }

    (line,) = list_sentences(answers)

    assert line == snapshot


def test_sessions_are_counted_with_the_interval_that_loses_least(
    snapshot: SnapshotAssertion,
) -> None:
    lines = session_sentences(Sessions(12 * HOUR, (3, 2, 5), 60, 120.0, 2.0, 0.034))

    assert lines == snapshot
    assert session_sentences(Sessions(12 * HOUR, (1, 1, 1), 60, 120.0, 2.0, 0.034))[0] == snapshot
