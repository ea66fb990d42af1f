"""Answers in sentences: kept or not, by how much, and what would."""

from dataclasses import replace

from brimful.planning.budget import Budget, BudgetCheck, Offer, Sessions
from brimful.planning.memory import Verdict
from brimful.planning.plan import Prediction
from brimful.report.plan.budgets import budget_lines, list_lines, session_lines

HOUR = 3600.0


def _about(value: float, basis: str = "by hand") -> Prediction:
    return Prediction(value, value / 2, value * 2, basis)


def _answer(
    limit: float, hours: float, verdict: Verdict, steps: int = 0, others: tuple[Offer, ...] = ()
) -> BudgetCheck:
    return BudgetCheck(Budget("time", limit), verdict, _about(hours * HOUR), 1000, steps, others)


def test_a_budget_that_is_kept_says_what_is_left() -> None:
    assert budget_lines(_answer(4 * HOUR, 1, "fits", 1000), 256) == [
        "Budget 4h 00m is kept: 1h 00m expected, 30m 00s to 2h 00m; 3h 00m left, 25% of the budget."
    ]


def test_one_that_is_not_kept_says_by_how_much_and_how_many_steps_would() -> None:
    lines = budget_lines(_answer(2 * HOUR, 5, "does not fit", 123), 1000)

    assert (
        lines[0]
        == "Budget 2h 00m is not kept: 5h 00m expected, 2h 30m to 10h 00m; 3h 00m over, 250% of the"
        " budget."
    )
    assert (
        lines[1]
        == "  Fewer steps: training.steps=123 surely keeps to it, 12.3% of 1,000 steps, 123.0k"
        " tokens."
    )
    assert lines[2] == "  No other device of the catalog holds it."


def test_a_hopeless_budget_says_so_without_long_percentages() -> None:
    lines = budget_lines(_answer(10, 5, "does not fit"), 1000)

    assert "1,800 times the budget" in lines[0]
    assert (
        lines[1]
        == "  Fewer steps: not even one surely keeps to it, as the start alone may take longer."
    )


def test_devices_that_would_keep_to_it_are_named_with_time_and_dated_price() -> None:
    offers = tuple(
        Offer(
            f"device {number}",
            _about(HOUR / 4),
            _about(2, "$2.00 an hour (a list, read 2026-11-21)"),
        )
        for number in range(7)
    )

    lines = budget_lines(_answer(2 * HOUR, 5, "uncertain", 123, offers), 1000)

    assert "may or may not be kept" in lines[0]
    assert lines[2] == "  Other devices that surely keep to it, the cheapest first:"
    assert (
        lines[3]
        == "    device 0  15m 00s (7m 30s to 30m 00s)  $2.00 at $2.00 an hour (a list, read"
        " 2026-11-21)"
    )
    assert lines[-1] == "    and 2 more"


def test_where_no_device_would_the_nearest_is_named() -> None:
    offers = (Offer("near", _about(3 * HOUR), None), Offer("far", _about(4 * HOUR), None))

    lines = budget_lines(_answer(2 * HOUR, 5, "does not fit", 123, offers), 1000)

    assert lines[2:] == [
        "  No device of the catalog surely keeps to it; nearest:",
        "    near  3h 00m (1h 30m to 6h 00m)  no price known",
    ]


def test_money_names_only_devices_with_a_price() -> None:
    answer = BudgetCheck(Budget("money", 5), "does not fit", _about(50), 1000, 7)

    lines = budget_lines(answer, 1000)

    assert lines[0].startswith(
        "Budget $5.00 is not kept: $50.00 expected, $25.00 to $100.00; $45.00 over"
    )
    assert lines[-1].endswith("holds it and has a known price.")


def test_a_list_says_how_many_keep_to_it_and_the_best() -> None:
    answers = {
        "a": _answer(3 * HOUR, 1, "fits"),
        "b": _answer(3 * HOUR, 1.2, "fits"),
        "c": _answer(3 * HOUR, 9, "does not fit"),
    }

    assert list_lines(answers) == [
        "Budget 3h 00m: 2 of 3 devices that can hold it surely keep to it: quickest a with 1h 00m."
    ]
    assert list_lines({}) == []


def test_a_list_names_the_quickest_and_the_cheapest_that_keep_to_it() -> None:
    quick, cheap = _answer(3 * HOUR, 1, "fits"), _answer(3 * HOUR, 2, "fits")
    answers = {
        "quick": replace(quick, beside=_about(8.0)),
        "cheap": replace(cheap, beside=_about(4.0)),
    }

    (line,) = list_lines(answers)

    assert line.endswith(
        ": quickest quick with 1h 00m and $8.00; cheapest cheap with 2h 00m and $4.00."
    )


def test_a_list_in_which_none_does_names_the_nearest() -> None:
    answers = {
        "a": _answer(3 * HOUR, 4, "uncertain", 500),
        "c": _answer(3 * HOUR, 9, "does not fit"),
    }

    (line,) = list_lines(answers)

    assert line.startswith(
        "Budget 3h 00m: none of 2 devices that can hold it surely keeps to it; nearest is a with 4h"
        " 00m (1h 00m over)"
    )
    assert line.endswith("training.steps=500 of 1,000 would surely do there.")


def test_sessions_are_counted_with_the_interval_that_loses_least() -> None:
    lines = session_lines(Sessions(12 * HOUR, (3, 2, 5), 60, 120.0, 2.0, 0.034))

    assert lines[0].startswith("Sessions: 3 sessions of 12h 00m (2 to 5)")
    assert (
        "checkpoint.every=60 loses least: every 2m 00s, as a checkpoint takes 2.0 s; 3.4% of a"
        " session" in lines[1]
    )
    assert session_lines(Sessions(12 * HOUR, (1, 1, 1), 60, 120.0, 2.0, 0.034))[0].startswith(
        "Sessions: 1 session of 12h 00m;"
    )
