"""Waiting for other devices: longer over slow links, hidden by computing where that is long."""

from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.hardware import fitted, links
from brimful.hardware.groups import parse
from brimful.planning.communication import Exchange, Reached, waiting_time
from brimful.planning.plan import Spread
from brimful.planning.timing import StepTime

EXCHANGE = Exchange(gathered_bytes=4 * 10**9, gradient_bytes=4 * 10**9, units=32)


def _waiting(on: str, spread: Spread = "sharded", step_s: float = 1.0, passes: int = 2) -> float:
    time = StepTime(step_s, {}, 0.0, 0.0)
    waiting = waiting_time(time, passes, parse(on), spread, EXCHANGE)
    assert waiting.low < waiting.value < waiting.high
    return waiting.value


@pytest.mark.parametrize("spread", ["sharded", "replicated"])
def test_slower_links_are_waited_for_longer(spread: Spread) -> None:
    assert _waiting("8 x H200", spread) < _waiting("8 x A100-SXM4-80GB", spread)
    assert _waiting("8 x A100-SXM4-80GB", spread) < _waiting("8 x T4", spread)
    assert _waiting("8 x H200", spread) <= _waiting("2 x 8 x H200", spread)


def test_long_computing_hides_more() -> None:
    assert _waiting("8 x A100-SXM4-80GB", step_s=8.0) < _waiting("8 x A100-SXM4-80GB", step_s=0.5)


def test_a_model_in_parts_is_gathered_in_every_pass() -> None:
    assert _waiting("8 x T4", passes=8) > _waiting("8 x T4", passes=1)
    assert _waiting("8 x T4", "replicated") < _waiting("8 x T4", "sharded")


def test_what_joins_the_devices_is_told(snapshot: SnapshotAssertion) -> None:
    time = StepTime(1.0, {}, 0.0, 0.0)

    one = waiting_time(time, 1, parse("8 x H200"), "sharded", EXCHANGE)
    several = waiting_time(time, 1, parse("2 x 8 x H200"), "sharded", EXCHANGE)

    assert several.high > one.high
    assert "NVLink 4" in one.basis
    assert several.basis == snapshot


def test_devices_whose_link_is_not_known_get_a_wide_interval(snapshot: SnapshotAssertion) -> None:
    known = parse("8 x T4")
    unknown = replace(known, device=replace(known.device, name="A card of next year"))
    time = StepTime(1.0, {}, 0.0, 0.0)

    told, guessed = (waiting_time(time, 1, each, "sharded", EXCHANGE) for each in (known, unknown))

    assert guessed.basis == snapshot
    assert guessed.high / guessed.low > 3 * told.high / told.low


def test_a_rate_that_was_measured_here_counts_in_place_of_the_catalogs() -> None:
    before = _waiting("2 x T4")
    links.save(links.MeasuredLink("Tesla T4", 2, 1e9, 1e-4, "nccl", "2.13.0", 1.7e9))

    slow = waiting_time(StepTime(1.0, {}, 0.0, 0.0), 2, parse("2 x T4"), "sharded", EXCHANGE)

    assert slow.value > before
    assert "measured here" in slow.basis


def test_what_is_expected_follows_the_fitted_figures() -> None:
    values = fitted.efficiencies().values
    slower = Reached.of({**values, "nvlink": values["nvlink"] / 4})
    time = StepTime(1.0, {}, 0.0, 0.0)

    as_fitted, with_slower = (
        waiting_time(time, 1, parse("8 x H200"), "sharded", EXCHANGE, reached)
        for reached in (None, slower)
    )

    assert with_slower.value > as_fitted.value
    assert with_slower.low == as_fitted.low
