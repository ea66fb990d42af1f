"""Real passes of few blocks: their time is that of all blocks, by stamps made by hand; every kind of
step runs.
"""

import pytest
import torch
from fixture_types import MakeStep
from torch import nn

from brimful.base.types import JsonDict
from brimful.hardware.contention import CoreWatch
from brimful.rehearsal import timed_steps
from brimful.rehearsal.timed_steps import _blocks_to_run, _size, _Stamps, time_passes, timed_passes


@pytest.mark.parametrize(
    ("whole", "kinds", "run"),
    [
        (4, None, 4),
        (30, None, 3),
        (30, ["full"] * 30, 3),
        (6, ["near", "near", "full"] * 2, 4),
        (5, ["near", "full", "near", "full", "near"], 3),
        (5, ["a", "b", "c", "d", "e"], 5),
    ],
)
def test_one_block_and_a_period_of_their_kinds_are_run(
    whole: int, kinds: list[str] | None, run: int
) -> None:
    assert _blocks_to_run(whole, kinds) == run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    for name in ("perf_counter", "thread_time"):
        monkeypatch.setattr(f"brimful.hardware.contention.time.{name}", lambda: now[0])
    return now


def _watch(lost_share: float = 0.0, own_over_clock: float = 1.0) -> CoreWatch:
    watch = CoreWatch()
    watch.lost_share, watch.own_over_clock = lost_share, own_over_clock
    return watch


def _pass(stamps: _Stamps, clock: list[float], outside_s: float, block_s: float) -> None:
    """A pass through three blocks; backward takes twice as long as forward."""
    stamps.begin("inputs")
    stamps.begin("forward")
    block, outputs = nn.Identity(), []
    for index in range(3):
        clock[0] += block_s / 3
        outputs.append(torch.zeros(1, requires_grad=True))
        stamps.made(index, block, (), (outputs[-1],))
    clock[0] += outside_s
    stamps.begin("backward")
    for index in reversed(range(3)):
        outputs[index].sum().backward()
        clock[0] += 2 * block_s / 3


def _stamps(length: int = 32) -> _Stamps:
    return _Stamps(micro_batch=2, length=length, blocks=3, trainable=(100, 50))


def _take(stamps: _Stamps, clock: list[float], outside_s: float, block_s: float) -> None:
    """A pass and its update, which takes a tenth of a second."""
    _pass(stamps, clock, outside_s, block_s)
    stamps.begin("optimizer")
    clock[0] += 0.1
    stamps.begin("between updates")


def test_blocks_after_the_first_stand_for_all_others(clock: list[float]) -> None:
    stamps = _stamps()
    for _ in range(3):
        _take(stamps, clock, outside_s=1.0, block_s=0.3)

    timed = timed_passes([stamps], 32, whole=10, watch=_watch())

    assert timed is not None
    assert (timed.first_s, timed.further_s) == pytest.approx((4.0, 4.0))  # 1.0 + 10 x 0.3
    assert timed.update_s == pytest.approx(0.1 * 600 / 250)  # by trained parameters
    assert (timed.tries, timed.blocks, timed.micro_batch) == (3, (3, 10), 2)
    assert timed.positions == (32, 32)


def test_the_faster_half_of_the_passes_counts(clock: list[float]) -> None:
    stamps = _stamps()
    for seconds in (1.0, 1.5, 5.0, 7.0, 1.0):
        _take(stamps, clock, outside_s=seconds, block_s=0.0)

    timed = timed_passes([stamps], 32, whole=3, watch=_watch(0.5))

    assert timed is not None
    assert timed.first_s == pytest.approx(1.0)
    assert timed.spread == pytest.approx(7.0)


def test_what_threads_slept_counts_and_what_other_programs_took_does_not(
    clock: list[float],
) -> None:
    stamps = _stamps()
    _take(stamps, clock, outside_s=1.0, block_s=0.3)

    alone, slept = (
        timed_passes([stamps], 32, whole=10, watch=_watch(0.5, each)) for each in (1.0, 1.1)
    )

    assert alone is not None
    assert slept is not None
    assert slept.first_s == pytest.approx(1.1 * alone.first_s)
    assert slept.update_s == pytest.approx(1.1 * alone.update_s)
    assert slept.spread == alone.spread


@pytest.mark.parametrize(
    ("passes_s", "agree"),
    [
        ([9.0, 1.0, 1.02, 1.04], False),  # too few
        ([9.0, 1.0, 1.02, 1.04, 8.0], True),  # the slower half does not count
        ([9.0, 1.0, 1.02, 1.06, 8.0], False),
        ([1.0] * 5, True),
    ],
)
def test_timing_ends_early_where_passes_agree(
    clock: list[float], passes_s: list[float], agree: bool
) -> None:
    stamps = _stamps()
    for seconds in passes_s:
        _take(stamps, clock, outside_s=seconds, block_s=0.0)

    assert stamps.agree is agree


@pytest.mark.parametrize(
    ("short_s", "long_s", "whole_s"),
    [
        (1.0, 4.0, 16.0),  # in proportion
        (2.5, 4.0, 10.0),  # 2.0, and 0.5 for each 64
        (4.2, 4.0, 7.0),  # nonsense from a disturbed machine: a quarter at least grows
        (0.5, 4.0, 16.0),  # never more than in proportion
    ],
)
def test_longer_rows_than_timed_ones_take_a_constant_and_a_share_that_grows(
    clock: list[float], short_s: float, long_s: float, whole_s: float
) -> None:
    short, long = _stamps(64), _stamps(256)
    _take(short, clock, outside_s=short_s, block_s=0.0)
    _take(long, clock, outside_s=long_s, block_s=0.0)

    timed = timed_passes([short, long], 1024, whole=3, watch=_watch())

    assert timed is not None
    assert timed.first_s == pytest.approx(whole_s)
    assert timed.positions == (256, 1024)


@pytest.mark.parametrize(
    ("long_s", "fixed_s"),
    [
        (4.0, 0.0),  # four times the positions, four times the time
        (2.5, 0.5),  # 2.0 for each 64
        (0.9, 0.675),  # nonsense from a disturbed machine: a quarter at least grows
    ],
)
def test_two_sizes_of_passes_tell_what_does_not_grow(
    clock: list[float], long_s: float, fixed_s: float
) -> None:
    short, long = _stamps(64), _stamps(256)
    _take(short, clock, outside_s=1.0, block_s=0.0)
    _take(long, clock, outside_s=long_s, block_s=0.0)

    both = timed_passes([short, long], 256, whole=3, watch=_watch())
    one = timed_passes([long], 256, whole=3, watch=_watch())

    assert both is not None
    assert one is not None
    assert both.fixed_s == pytest.approx(fixed_s)
    assert one.fixed_s is None


def test_the_first_pass_of_a_length_makes_its_kernels(clock: list[float]) -> None:
    stamps = _stamps()
    for seconds in (1.4, 1.0, 1.0):
        _take(stamps, clock, outside_s=seconds, block_s=0.0)

    timed = timed_passes([stamps], 32, whole=30, watch=_watch())

    assert timed is not None
    assert timed.new_length_s == pytest.approx(0.4)  # once, however many blocks there are


@pytest.mark.parametrize(
    ("positions", "length", "size"),
    [
        (5000, 1024, (3, 1024)),  # no more than the step's own micro-batch
        (2100, 1024, (2, 1024)),
        (900, 1024, (1, 896)),
        (10, 1024, (1, 128)),  # longer than the first rows, else nothing could be worked out
        (10, 128, (1, 128)),
        (10, 32, (1, 32)),
    ],
)
def test_passes_are_as_large_as_there_is_time(
    positions: int, length: int, size: tuple[int, int]
) -> None:
    assert _size(positions, 3, length) == size


def test_a_pass_is_in_its_blocks_between_the_first_and_the_last(clock: list[float]) -> None:
    stamps, block, outputs, parts = _stamps(), nn.Identity(), [], [_stamps().part()]
    stamps.begin("forward")
    for index in range(3):
        parts.append(stamps.part())
        outputs.append(torch.zeros(1, requires_grad=True))
        stamps.made(index, block, (), (outputs[-1],))
    parts.append(stamps.part())
    stamps.begin("backward")
    for index in reversed(range(3)):
        parts.append(stamps.part())
        outputs[index].sum().backward()
    parts.append(stamps.part())

    inside = ["blocks"] * 2
    assert parts == ["", "outside", *inside, "outside", "outside", *inside, "outside"]


def test_a_block_without_a_gradient_cannot_be_timed(clock: list[float]) -> None:
    stamps = _stamps()
    for _ in range(3):
        stamps.begin("inputs")
        stamps.begin("forward")
        stamps.begin("backward")
        stamps.begin("optimizer")
        stamps.begin("between updates")

    assert timed_passes([stamps], 32, whole=10, watch=_watch()) is None


def _looks_take(seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let every look at the clock take so long, and nothing else; return the time, as one value."""
    now = [0.0]

    def tick() -> float:
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(timed_steps.time, "perf_counter", tick)
    monkeypatch.setattr(timed_steps.time, "thread_time", lambda: now[0])
    return now


def test_timing_ends_when_its_time_is_over_and_what_was_timed_counts(
    step: MakeStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at the clock takes a second: after some looks there is no time left."""
    now = _looks_take(1.0, monkeypatch)
    monkeypatch.setattr(timed_steps, "keep_freed_memory", lambda: None)

    too_short = time_passes(step(cuda=False), 2, 0.5, threads=1)
    begun = now[0]
    timed = time_passes(step(cuda=False), 2, 8.0, threads=1)

    assert too_short is None
    assert begun < 15
    assert timed is not None
    assert timed.tries <= 3
    assert now[0] - begun < 40


@pytest.mark.parametrize(
    "changes",
    [{}, {"recompute": True}, {"accumulates": False}, {"autocast": "bf16"}],
    ids=["plain", "recomputed", "one pass", "bf16"],
)
def test_every_way_of_running_a_step_is_timed(
    step: MakeStep, changes: JsonDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_steps, "keep_freed_memory", lambda: None)
    _looks_take(0.001, monkeypatch)
    before = torch.get_rng_state()

    timed = time_passes(step(cuda=False, **changes), 2, 0.2, threads=1)

    assert timed is not None
    assert min(timed.first_s, timed.further_s, timed.update_s) > 0
    assert timed.micro_batch <= 2
    assert timed.fusible is not None
    assert 0 < timed.fusible < 1
    assert torch.equal(torch.get_rng_state(), before)


def test_what_has_no_real_kernel_here_is_not_timed(step: MakeStep) -> None:
    assert time_passes(step(cuda=False, optimizer="8bit"), 2, 0.05, threads=1) is None
    assert time_passes(step(cuda=False, options={"feedback": "block"}), 2, 0.05, threads=1) is None
