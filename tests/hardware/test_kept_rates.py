"""Rates kept from one start to the next: the fastest counts, doubts and disturbed ones are measured
again.
"""

import json

import pytest

from brimful.base.rundir import read_json
from brimful.base.types import JsonDict
from brimful.hardware import kept_rates
from brimful.hardware.kept_rates import BUSY_FROM, KEPT_S, KeptRates, MatrixRates, read_kept

NAME = "a CPU"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds since the epoch, in a list of one."""
    now = [1_000_000.0]
    monkeypatch.setattr("brimful.hardware.kept_rates.time.time", lambda: now[0])
    return now


def test_the_fastest_products_ever_seen_are_the_rate(clock: list[float]) -> None:
    kept_rates.keep_matrix_rates(NAME, {"fp32": 2e11, "bf16": 3e11}, 0.0)
    clock[0] += 1
    slower = kept_rates.keep_matrix_rates(NAME, {"fp32": 1e11, "bf16": 4e11}, 0.4)

    assert dict(slower.flop_per_s) == {"fp32": 2e11, "bf16": 4e11}
    assert (slower.lost_share, slower.made) == (0.0, clock[0] - 1)  # the sounder one still holds
    assert read_kept(NAME).matrix == slower


def test_a_disturbed_measurement_is_no_longer_fresh_nor_is_an_old_or_a_doubted_one(
    clock: list[float],
) -> None:
    now = clock[0]
    kept = KeptRates(doubted=now - 100)

    assert kept.is_fresh(now - 50, 0.0, now)
    assert not kept.is_fresh(now - 50, BUSY_FROM, now)
    assert not kept.is_fresh(now - 150, 0.0, now)
    assert not KeptRates().is_fresh(now - KEPT_S - 1, 0.0, now)
    assert not kept.is_fresh(now + 50, 0.0, now)  # the clock was set back


def test_a_doubt_keeps_the_rates_as_a_lower_bound(clock: list[float]) -> None:
    kept_rates.keep_matrix_rates(NAME, {"fp32": 2e11}, 0.0)
    kept_rates.keep_step(NAME, "a step", {"first_s": 1.0})
    clock[0] += 1
    kept_rates.doubt(NAME)
    kept = read_kept(NAME)

    assert kept.matrix is not None
    assert not kept.is_fresh(kept.matrix.made, kept.matrix.lost_share, clock[0] + 1)
    assert kept.steps[kept_rates.digest("a step")] == {"first_s": 1.0}


def test_a_run_raises_a_rate_and_never_lowers_it() -> None:
    assert not kept_rates.raise_matrix_rate(NAME, "fp32", 1e11)  # nothing was measured yet
    kept_rates.keep_matrix_rates(NAME, {"fp32": 2e11}, 0.0)

    assert kept_rates.raise_matrix_rate(NAME, "fp32", 3e11)
    assert not kept_rates.raise_matrix_rate(NAME, "fp32", 1e11)
    kept = read_kept(NAME)
    assert kept.matrix is not None
    assert dict(kept.matrix.flop_per_s) == {"fp32": 3e11}


def test_steps_are_replaced_by_name_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rates, "MOST_STEPS", 2)
    for name, seconds in (("a", 1.0), ("b", 2.0), ("a", 3.0), ("c", 4.0)):
        kept_rates.keep_step(NAME, name, {"first_s": seconds})

    kept = {name: kept_rates.digest(name) for name in "abc"}
    assert read_kept(NAME).steps == {kept["a"]: {"first_s": 3.0}, kept["c"]: {"first_s": 4.0}}
    assert kept_rates.forget(NAME)
    assert not kept_rates.forget(NAME)
    assert read_kept(NAME) == KeptRates()


@pytest.mark.parametrize(
    "changes",
    [{"schema": 99}, {"steps": 3}, {"doubted": "yes"}, {"matrix": {"rates": 1}}],
)
def test_a_file_that_says_nothing_is_measured_again(changes: JsonDict) -> None:
    kept_rates.keep_matrix_rates(NAME, {"fp32": 2e11}, 0.0)
    path = kept_rates.kept_path(NAME)
    path.write_text(json.dumps(read_json(path) | changes))

    assert read_kept(NAME) == KeptRates()


def test_rates_of_another_torch_do_not_hold() -> None:
    made = kept_rates.keep_matrix_rates(NAME, {"fp32": 2e11}, 0.0)
    path = kept_rates.kept_path(NAME)
    values = read_json(path)
    values["matrix"]["torch"] = "1.0.0"
    path.write_text(json.dumps(values))

    assert isinstance(made, MatrixRates)
    assert read_kept(NAME) == KeptRates()


@pytest.mark.parametrize(
    ("gain", "lost_share", "has_instructions", "pays"),
    [
        (0.52, 0.0, True, False),  # a Xeon with AVX512_BF16 that computes bf16 slowly
        (0.52, 0.9, True, False),  # beside other programs both types are slowed down alike
        (2.2, 0.9, False, True),
        (1.35, 0.0, False, True),
        (1.35, 0.5, False, False),
        (1.25, 0.5, True, True),
        (1.25, 0.0, True, False),
    ],
)
def test_the_measured_rates_say_whether_bf16_pays_and_instructions_only_in_doubt(
    gain: float, lost_share: float, has_instructions: bool, pays: bool
) -> None:
    rates = {"fp32": 1e11, "bf16": gain * 1e11}
    kept = kept_rates.keep_matrix_rates(
        NAME, rates, lost_share, has_bf16_instructions=has_instructions
    )

    assert kept.bf16_pays is pays
    assert read_kept(NAME).matrix == kept


def test_near_the_border_the_decision_stays_and_clear_rates_change_it() -> None:
    decided = [
        kept_rates.keep_matrix_rates(NAME, {"fp32": 1e11, "bf16": rate}, 0.0).bf16_pays
        for rate in (1.25e11, 1.35e11, 2e11)
    ]

    assert decided == [False, False, True]


def test_a_cpu_that_hides_instructions_has_rates_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept_rates.keep_matrix_rates(NAME, {"fp32": 1e11, "bf16": 2e11}, 0.0)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")

    assert read_kept(NAME).matrix is None
