"""Budgets of time and money, and runs that are cut into sessions."""

import json
import math

import pytest
from fixture_types import Refuses

from brimful.base.errors import BrimfulError, DeviceError, RequestError
from brimful.planning.budget import (
    Budget,
    Offer,
    answer,
    checkpoint_interval_s,
    parse_budget,
    parse_prices,
    ranked,
    session_seconds,
    sessions,
)
from brimful.planning.plan import Prediction, Predictions

HOUR = 3600.0


def _about(value: float) -> Prediction:
    return Prediction(value, 0.8 * value, 1.25 * value, "by hand")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45s", 45),
        ("90m", 5400),
        ("90min", 5400),
        ("3h", 3 * HOUR),
        ("1.5d", 36 * HOUR),
        ("1h30m", 5400),
        (" 2 H ", 2 * HOUR),
    ],
)
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    assert session_seconds(text) == seconds
    assert parse_budget(text) == Budget("time", seconds)


@pytest.mark.parametrize(
    ("text", "usd"), [("$5", 5), ("5$", 5), ("$0.50", 0.5), ("5usd", 5), ("12 USD", 12)]
)
def test_money_has_its_sign(text: str, usd: float) -> None:
    assert parse_budget(text) == Budget("money", usd)


@pytest.mark.parametrize("text", ["", "3", "three hours", "3 weeks", "-3h", "0h", "h", "3h2"])
def test_what_is_no_time_is_refused_with_examples(text: str, refuses: Refuses) -> None:
    with refuses(RequestError):
        session_seconds(text)


@pytest.mark.parametrize("text", ["€5", "5 dollars", "$", "$-5", "$0", "5x", "3h for $5"])
def test_what_is_neither_time_nor_money_is_refused_with_examples(
    text: str, refuses: Refuses
) -> None:
    with refuses(RequestError):
        parse_budget(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "--budget is empty"), ("0", "'0' has no unit"), (".50", "'.50' has no unit")],
)
def test_money_that_the_shell_swallowed_is_told(text: str, said: str, refuses: Refuses) -> None:
    with refuses(RequestError) as error:
        parse_budget(text)
    assert said in str(error.value)


def test_prices_are_for_every_device_or_for_one_of_exact_name() -> None:
    assert parse_prices([]) == {}
    assert parse_prices(["2.5", "nvidia l4=$0.8"]) == {"": 2.5, "NVIDIA L4": 0.8}


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (["cheap"], RequestError),
        (["-1"], RequestError),
        (["nan"], RequestError),
        (["NVIDIA L4="], RequestError),
        (["L5=1"], DeviceError),
        (["RTX 6000=1"], DeviceError),
        (["1", "2"], RequestError),
    ],
)
def test_a_wrong_price_is_refused(
    texts: list[str], error: type[BrimfulError], refuses: Refuses
) -> None:
    with refuses(error):
        parse_prices(texts)


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [(125, "fits"), (124, "uncertain"), (80, "uncertain"), (79, "does not fit")],
)
def test_a_budget_is_surely_kept_only_by_the_whole_interval(limit: float, verdict: str) -> None:
    assert Budget("time", limit).verdict(_about(100)) == verdict


def test_the_answer_says_how_many_steps_surely_keep_to_it() -> None:
    found = answer(Budget("time", 100), lambda steps: {"total_time_s": _about(10 + steps)}, 1000)

    assert (found.verdict, found.amount.value, found.over, found.total_steps) == (
        "does not fit",
        1010,
        910,
        1000,
    )
    assert 1.25 * (10 + found.steps) <= 100 < 1.25 * (10 + found.steps + 1)
    assert json.loads(json.dumps(found.to_json()))["over"] == 910


def test_all_steps_keep_to_a_large_budget_and_none_to_a_tiny_one() -> None:
    def money(steps: int) -> Predictions:
        return {"cost_usd": _about(1 + steps)}

    assert answer(Budget("money", 1e6), money, 50).steps == 50
    assert answer(Budget("money", 1), money, 50).steps == 0


def test_steps_that_keep_to_it_do_so_even_where_time_does_not_grow_evenly() -> None:
    def uneven(steps: int) -> Predictions:
        return {"total_time_s": _about(steps + (5 if steps % 7 == 3 else 0))}

    for limit in range(5, 60):
        found = answer(Budget("time", limit), uneven, 100)
        assert uneven(found.steps)["total_time_s"].high <= limit


def test_among_those_that_keep_to_a_time_the_cheapest_comes_first_and_to_money_the_quickest() -> (
    None
):
    offers = [
        Offer("slow", _about(1000), _about(1)),
        Offer("quick and dear", _about(10), _about(90)),
        Offer("quick", _about(20), _about(2)),
        Offer("unpriced", _about(5), None),
    ]

    assert [offer.device for offer in ranked(offers, Budget("time", 100))] == [
        "quick",
        "quick and dear",
        "unpriced",
        "slow",
    ]
    assert [offer.device for offer in ranked(offers, Budget("money", 4))] == [
        "quick",
        "slow",
        "quick and dear",
    ]
    assert [offer.device for offer in ranked(offers, Budget("time", 1))] == [
        "unpriced",
        "quick and dear",
        "quick",
        "slow",
    ]


def _predicted(training_s: float, step_s: float = 2.0, start_s: float = 20.0) -> Predictions:
    parts = {
        "step_time_s": step_s,
        "training_time_s": training_s,
        "evaluation_time_s": 0.1 * training_s,
        "start_time_s": start_s,
    }
    return {name: _about(value) for name, value in parts.items()}


def test_the_checkpoint_interval_is_youngs() -> None:
    assert checkpoint_interval_s(2, 3600) == 120
    found = sessions(3600, _predicted(1000), 2)

    assert (found.every, found.interval_s, found.checkpoint_s) == (60, 120, 2)


def test_no_other_interval_loses_less() -> None:
    def lost_s(interval_s: float) -> float:
        return 3600 / interval_s * 5 + interval_s / 2

    best = checkpoint_interval_s(5, 3600)

    assert all(lost_s(best) <= lost_s(best * factor) for factor in (0.5, 0.9, 1.1, 2))


def test_a_run_shorter_than_a_session_takes_one() -> None:
    assert sessions(12 * HOUR, _predicted(HOUR), 2).count == (1, 1, 1)


def test_a_long_run_takes_as_many_sessions_as_its_work_and_what_each_loses() -> None:
    found = sessions(HOUR, _predicted(10 * HOUR), 2)
    share = found.interval_s / (found.interval_s + 2)
    each = (HOUR - 20 - found.interval_s / 2) * share

    expected = 1 + math.ceil((11 * HOUR - (HOUR - 20) * share) / each)
    assert found.count[0] == expected
    assert found.count[1] < expected < found.count[2]
    assert found.lost_share == pytest.approx(1 - each / (HOUR - 20))
    assert json.loads(json.dumps(found.to_json()))["count"] == list(found.count)


def test_a_slow_step_is_saved_every_time() -> None:
    assert sessions(12 * HOUR, _predicted(50 * HOUR, step_s=2000), 2).every == 1


def test_where_the_best_interval_does_not_fit_a_session_it_is_the_longest_that_does() -> None:
    found = sessions(
        40, _predicted(1000, step_s=1.0), 15
    )  # 20 s to start, so that 5 s of work and its checkpoint fit

    assert (found.every, found.interval_s) == (5, 5)


@pytest.mark.parametrize("session_s", [10, 21, 23.9])
def test_a_session_that_ends_before_its_first_step_is_saved_is_refused_with_the_numbers(
    session_s: float,
    refuses: Refuses,
) -> None:
    with refuses(RequestError):
        sessions(session_s, _predicted(1000), 2)
