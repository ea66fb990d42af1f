"""Times that can be worked out by hand: 1e11 FLOP and 1e11 bytes are a second each, and every
operator issued costs the program 0.1 ms.
"""

import dataclasses
from collections.abc import Callable

import pytest
from fixture_types import MakeRates, Refuses

from brimful.base.types import JsonDict
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, SIXTEEN_BIT, THIN, Rates
from brimful.planning.timing import (
    BY_EXAMPLES,
    NEW_LENGTHS,
    PRODUCTS_WITHIN,
    StepTime,
    UnknownRate,
    operator_seconds,
    share_of,
    step_time,
)
from brimful.planning.work import GLOBAL, Work

WorkOf = Callable[..., Work]
RatesOf = MakeRates
SECOND = 10**11
"""FLOP or bytes."""
TILES = {"flop": SECOND, "kind": "matrix"}


def _time(
    work: Work, rates: Rates, *micro_batches: int, precision: str = "fp32", compiled: bool = False
) -> StepTime:
    return step_time(
        lambda _: work, micro_batches or (1,), rates, precision=precision, compiled=compiled
    )


def _one(work: Work, rates: Rates, *, precision: str = "fp32") -> float:
    (seconds,) = operator_seconds(work, rates, precision=precision, compiled=False)
    return float(seconds)


@pytest.mark.parametrize(
    ("norm", "seconds"),
    [(1.0, 7.0), (2.0, 5.0), (64.0, 4.0)],
    ids=["sum", "root of squares", "nearly the longer"],
)
def test_arithmetic_and_bytes_combine_by_the_norm(
    work_of: WorkOf, rates: RatesOf, norm: float, seconds: float
) -> None:
    work = work_of(
        {"kind": "matrix", "flop": 3 * SECOND, "bytes": 4 * SECOND, "m": 64, "n": 64, "k": 64}
    )

    assert _one(work, rates(norm=norm)) == pytest.approx(seconds)


def test_many_small_operators_take_their_launches(work_of: WorkOf, rates: RatesOf) -> None:
    work = work_of({"bytes": 8, "launches": 1000}, {"bytes": 8, "repeats": 500.0})

    assert _time(work, rates(host_s=0.0, launch_s=1e-5)).seconds == pytest.approx(1500e-5, rel=1e-3)


@pytest.mark.parametrize(
    ("overlaps", "device_s", "seconds"),
    [(True, 0.25, (0.25**4 + 1) ** 0.25), (True, 1.5, (1.5**4 + 1) ** 0.25), (False, 0.25, 1.25)],
)
def test_mostly_the_slower_of_device_and_program_decides_where_they_overlap(
    work_of: WorkOf, rates: RatesOf, *, overlaps: bool, device_s: float, seconds: float
) -> None:
    """10,000 operators of 0.1 ms are a second of the program."""
    time = _time(
        work_of({"bytes": int(device_s * SECOND), "launches": 10_000}), rates(overlaps=overlaps)
    )

    assert time.seconds == pytest.approx(seconds)
    assert time.terms.get("issuing operators", 0.0) == pytest.approx(seconds - device_s)


@pytest.mark.parametrize(
    ("device_s", "seconds", "waits"),
    [(0.25, (0.25**4 + 4**4) ** 0.25, True), (40.0, (40**4 + 4**4) ** 0.25, False)],
    ids=["small operators", "large ones"],
)
def test_a_program_that_was_not_measured_may_be_slower(
    work_of: WorkOf, rates: RatesOf, *, device_s: float, seconds: float, waits: bool
) -> None:
    """10,000 operators of 0.1 ms, or four times as long."""
    work = work_of({"bytes": int(device_s * SECOND), "launches": 10_000})
    measured, assumed = (
        _time(work, rates(overlaps=True, host_slowest=factor)) for factor in (1.0, 4.0)
    )

    assert assumed.seconds == measured.seconds == measured.slowest_host_s
    assert assumed.slowest_host_s == pytest.approx(seconds)
    assert assumed.waits_for_program == waits
    assert not _time(work, rates(overlaps=False)).waits_for_program


@pytest.mark.parametrize(("overlaps", "seconds"), [(True, 3.0), (False, 3.0 + 2.0001)])
def test_an_update_is_issued_while_the_device_works_where_it_runs_behind(
    work_of: WorkOf, rates: RatesOf, *, overlaps: bool, seconds: float
) -> None:
    work = work_of(
        {"bytes": 3 * SECOND},
        {"launches": 20_000, "part": "optimizer", "kind": "optimizer", "phase": "optimizer"},
    )

    assert _time(work, rates(overlaps=overlaps)).seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("kind", "apart", "share"),
    [
        ("dequantise", (0.5, 2.0), (0.5, 2.0)),
        ("dequantise", None, (0.7, 1.5)),
        ("copy", (0.5, 2.0), (0.7, 1.5)),
    ],
)
def test_a_step_that_unpacks_weights_has_an_interval_of_its_own_where_there_is_one(
    work_of: WorkOf,
    rates: RatesOf,
    kind: str,
    apart: tuple[float, float] | None,
    share: tuple[float, float],
) -> None:
    found = dataclasses.replace(rates(), share=(0.7, 1.5), share_unpacking=apart)

    assert share_of(found, _time(work_of({"bytes": SECOND, "kind": kind}), found)) == share


def test_what_every_step_takes_once_is_a_term_of_its_own(work_of: WorkOf, rates: RatesOf) -> None:
    time = _time(work_of({"bytes": 3 * SECOND}), rates(step_s=0.5, host_s=0.0))

    assert (time.seconds, time.terms["once a step"]) == (pytest.approx(3.5), 0.5)


def test_attention_example_by_example_takes_longer_in_each_block(
    work_of: WorkOf, rates: RatesOf
) -> None:
    work = work_of({"bytes": SECOND}, {"bytes": SECOND, "layer": 0}, {"bytes": SECOND, "layer": 1})

    time = _time(work, rates(examples_s=0.25, host_s=0.0))

    assert (time.seconds, time.terms[BY_EXAMPLES]) == (pytest.approx(3.5), 0.5)


def test_a_pass_makes_a_kernel_for_each_shape_of_its_products_where_lengths_are_new(
    work_of: WorkOf, rates: RatesOf
) -> None:
    product = {"kind": "matrix", "flop": SECOND, "m": 64, "n": 64, "k": 64}
    work = work_of(product, product, product | {"n": 32}, {"bytes": SECOND})

    time = _time(work, rates(new_product_s=1e-3), 1, 1)

    assert time.terms[NEW_LENGTHS] == pytest.approx(2 * 2 * PRODUCTS_WITHIN * 1e-3)
    assert NEW_LENGTHS not in _time(work, rates(), 1, 1).terms


def test_a_compiled_step_issues_its_kernels_at_its_own_pace_where_that_is_known(
    work_of: WorkOf, rates: RatesOf
) -> None:
    work = work_of({"bytes": 8, "fused_bytes": 8, "launches": 10_000, "fused_launches": 10_000})
    known, unknown = (
        rates(overlaps=False, host_s=1e-4, host_compiled_s=1e-5),
        rates(overlaps=False, host_s=1e-4),
    )

    assert step_time(
        lambda _: work, (1,), known, precision="fp32", compiled=True
    ).seconds == pytest.approx(0.1)
    assert step_time(
        lambda _: work, (1,), unknown, precision="fp32", compiled=True
    ).seconds == pytest.approx(1.0)


def test_compiled_chains_move_and_issue_less_and_evaluation_is_not_compiled(
    work_of: WorkOf, rates: RatesOf
) -> None:
    chain: JsonDict = {
        "bytes": 4 * SECOND,
        "fused_bytes": SECOND,
        "launches": 10_000,
        "fused_launches": 0,
    }
    work = work_of(chain, chain | {"part": "evaluation", "phase": "evaluation"})

    eager, compiled = (_time(work, rates(), compiled=on) for on in (False, True))

    assert (eager.seconds, compiled.seconds) == (pytest.approx(5.0), pytest.approx(1.0))
    assert eager.evaluation_s == compiled.evaluation_s == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("shape", "multiprocessors", "seconds"),
    [
        ({"m": 128, "n": 128, "k": 512}, 100, 100.0),
        ({"m": 128, "n": 128, "k": 51_200}, 100, 1.0),
        ({"m": 128, "n": 128, "k": 512}, None, 1.0),
        ({"m": 64, "n": 128, "k": 512, "batch": 100}, 100, 2.0),
        ({"m": 1280, "n": 1280, "k": 512}, 100, 1.0),
        ({"m": 1280, "n": 1281, "k": 512}, 100, 2.0 * 1280 / 1281),
    ],
    ids=[
        "one tile for all",
        "split along k",
        "tiles not modelled",
        "half tiles",
        "one full round",
        "one column more is another round",
    ],
)
def test_tiles_that_do_not_fill_the_device_cost_what_full_ones_would(
    work_of: WorkOf,
    rates: RatesOf,
    shape: dict[str, int],
    multiprocessors: int | None,
    seconds: float,
) -> None:
    work = work_of(TILES | {"kind": "batched matrix" if "batch" in shape else "matrix"} | shape)

    assert _one(work, rates(multiprocessors=multiprocessors)) == pytest.approx(seconds, rel=1e-6)


def test_attention_has_no_tile_loss(work_of: WorkOf, rates: RatesOf) -> None:
    work = work_of({"flop": SECOND, "kind": "attention", "m": 8, "n": 8, "k": 64, "batch": 2})

    assert _one(work, rates(multiprocessors=100)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("dtype", "precision", "seconds"),
    [("fp32", "bf16", 1.0), ("16-bit", "bf16", 0.5), ("16-bit", "fp16", 0.25)],
)
def test_precision_says_which_16_bit_type_products_have(
    work_of: WorkOf, rates: RatesOf, dtype: str, precision: str, seconds: float
) -> None:
    known = {name: {"fp32": 1e11, "bf16": 2e11, "fp16": 4e11} for name in MATRIX_CLASSES}

    assert _one(
        work_of(TILES | {"m": 64, "n": 64, "dtype": dtype}),
        rates(flop_per_s=known),
        precision=precision,
    ) == pytest.approx(seconds)


def test_thin_products_cached_operands_and_16_bit_operands_have_rates_of_their_own(
    work_of: WorkOf, rates: RatesOf
) -> None:
    moved = dict.fromkeys(CLASSES, 1e11)
    told_apart = rates(
        flop_per_s={"matrix": {"fp32": 1e11}, THIN: {"fp32": 1e10}},
        bytes_per_s=moved | {"pointwise" + SIXTEEN_BIT: 5e10},
        cached_bytes_per_s={"pointwise": 2e11},
        cache_bytes=10**6,
    )

    assert _one(work_of(TILES | {"m": 64, "n": 8, "k": 64}), told_apart) == pytest.approx(10.0)
    assert _one(work_of(TILES | {"m": 64, "n": 64, "k": 8}), told_apart) == pytest.approx(1.0)
    assert _one(work_of({"bytes": 10**6}), told_apart) == pytest.approx(10**6 / 2e11)
    assert _one(work_of({"bytes": SECOND}), told_apart) == pytest.approx(1.0)
    assert _one(work_of({"bytes": SECOND, "dtype": "16-bit"}), told_apart) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "attention", "flop": 1},
        {"kind": "gather", "bytes": 1},
    ],
    ids=["no arithmetic", "no bandwidth"],
)
def test_a_rate_that_is_not_known_is_an_error_that_names_it(
    work_of: WorkOf, rates: RatesOf, row: JsonDict, refuses: Refuses
) -> None:
    flop_per_s = {"attention": {"fp32": 1e11}}
    bytes_per_s = {name: 1e11 for name in CLASSES if name != "gather"}

    with refuses(UnknownRate):
        _time(
            work_of(row | {"dtype": "16-bit"}),
            rates(flop_per_s=flop_per_s, bytes_per_s=bytes_per_s, source="hearsay"),
            precision="bf16",
        )


def test_a_step_is_its_micro_batches_the_smaller_last_one_and_one_update(
    work_of: WorkOf, rates: RatesOf
) -> None:
    """A sequence takes a second; micro-batches after the first one more each, to add to gradients,
    and the update 10.
    """

    def work_at(micro_batch: int) -> Work:
        flop: JsonDict = {
            "kind": "matrix",
            "flop": micro_batch * SECOND,
            "m": 64,
            "n": 64,
            "k": 64,
        }
        return work_of(
            flop,
            flop | {"part": "further micro-batch"},
            {"part": "further micro-batch", "phase": "backward", "bytes": SECOND},
            {"part": "optimizer", "phase": "optimizer", "kind": "optimizer", "bytes": 10 * SECOND},
            flop | {"part": "evaluation", "phase": "evaluation", "flop": 2 * micro_batch * SECOND},
        )

    one, three = (
        step_time(work_at, sizes, rates(host_s=0.0), precision="fp32")
        for sizes in ((8,), (8, 8, 3))
    )
    half_full = step_time(work_at, (8, 8, 3), rates(host_s=0.0), precision="fp32", fill=0.5)

    assert one.seconds == pytest.approx(8 + 10)
    assert three.seconds == pytest.approx(8 + (8 + 1) + (3 + 1) + 10)
    assert three.terms == pytest.approx(
        {"matrix products": 19, "element-wise and norms": 2, "optimizer update": 10}
    )
    assert (three.model_flop, three.evaluation_s) == (19 * SECOND, pytest.approx(16.0))
    assert half_full.seconds == pytest.approx(4 + (4 + 1) + (1.5 + 1) + 10)
    assert (half_full.model_flop, half_full.evaluation_s) == (9.5 * SECOND, pytest.approx(16.0))


def test_head_and_loss_take_time_for_scored_positions_only(work_of: WorkOf, rates: RatesOf) -> None:
    """Half of the rows' positions are computed, a quarter of which has a loss."""

    def work_at(micro_batch: int) -> Work:
        of_all: JsonDict = {"bytes": micro_batch * SECOND}
        return work_of(
            of_all | {"layer": 0},
            of_all | {"layer": GLOBAL, "kind": "gather"},
            of_all | {"layer": GLOBAL},
            {"layer": GLOBAL, "bytes": SECOND},
            {"part": "optimizer", "phase": "optimizer", "kind": "optimizer", "bytes": SECOND},
        )

    whole, scored = (
        step_time(work_at, (8,), rates(host_s=0.0), precision="fp32", fill=0.5, scored=share)
        for share in (1.0, 0.25)
    )

    assert whole.seconds == pytest.approx(4 + 4 + 4 + 1 + 1)
    assert scored.seconds == pytest.approx(4 + 4 + 1 + 1 + 1)


def test_a_trace_without_further_micro_batches_repeats_its_first(
    work_of: WorkOf, rates: RatesOf
) -> None:
    assert _time(work_of({"bytes": SECOND}), rates(host_s=0.0), 2, 2, 2).seconds == pytest.approx(
        3.0
    )


def test_what_is_computed_twice_is_no_model_flop_and_a_term_of_its_own(
    work_of: WorkOf, rates: RatesOf
) -> None:
    product: JsonDict = {"kind": "matrix", "flop": SECOND, "m": 64, "n": 64, "k": 64}
    attention: JsonDict = {"kind": "attention", "flop": 2 * SECOND, "m": 64, "n": 64, "k": 64}
    work = work_of(
        product,
        attention,
        product | {"phase": "recomputation"},
        attention | {"phase": "recomputation"},
        attention | {"kind": "attention backward", "phase": "backward", "flop": 5 * SECOND},
        product | {"phase": "backward", "repeats": 2.0},
    )

    time = _time(work, rates(host_s=0.0))

    assert (
        time.model_flop == (3 + 2 + 4) * SECOND
    )  # a backward pass of attention needs four products where its kernel makes five
    assert time.terms == pytest.approx({"matrix products": 3, "attention": 7, "recomputation": 3})


def test_terms_add_up_to_the_step(work_of: WorkOf, rates: RatesOf) -> None:
    rows = [
        {"kind": kind, "bytes": SECOND, "phase": phase}
        for kind in CLASSES
        for phase in ("forward", "backward", "recomputation")
    ]

    time = _time(work_of(*rows), rates())

    assert sum(time.terms.values()) == pytest.approx(time.seconds)
    assert time.seconds == pytest.approx(3 * len(CLASSES) * (1 + 1e-4))
