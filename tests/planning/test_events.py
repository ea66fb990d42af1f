"""Passes over a trace give the same in C and with numpy."""

from typing import Any

import numpy as np
import pytest

from brimful.planning import events as passes

pytestmark = pytest.mark.skipif(passes.extension is None, reason="the C passes were not built")


def _life(rng: np.random.Generator, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return events of storages that each live once; some never end."""
    births = np.sort(rng.random(count))
    deaths = births + rng.random(count) * 0.3
    numbers = np.arange(1, count + 1)
    ends = rng.random(count) < 0.9
    times = np.concatenate([births, deaths[ends]])
    every = np.concatenate([numbers, -numbers[ends]])
    return every[np.argsort(times, kind="stable")].astype(np.int32)


@pytest.fixture(params=range(12))
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(request.param)


def test_peaks_and_what_lives(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    count = int(rng.integers(0, 300))
    events_E = _life(rng, count)
    sizes_S = rng.choice([0, 1, 511, 512, 513, 10**6, 3 * 10**10], count).astype(np.int64)
    until = int(rng.integers(0, len(events_E) + 1))

    quick = passes.peak_bytes(events_E, sizes_S), passes.alive(events_E[:until], count)
    monkeypatch.setattr(passes, "extension", None)

    assert quick[0] == passes.peak_bytes(events_E, sizes_S)
    assert np.array_equal(quick[1], passes.alive(events_E[:until], count))
    assert quick[1].sum() == np.sign(events_E[:until]).sum()


@pytest.mark.parametrize("rows", [1, 3, 7.25, 1.0 / 3.0, 64])
@pytest.mark.parametrize(("positions", "piece"), [(2048, 512), (1000, 999), (37, 4096), (1, 1)])
def test_sizes(
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    rows: float,
    positions: int,
    piece: int,
) -> None:
    count = 200
    lines: Any = tuple(
        rng.integers(-scale, scale, count, dtype=np.int64) for scale in (2**40, 2**33, 2**20)
    )
    question = (lines, rng.random(count) < 0.3, (rows, 2 * rows), positions, piece)

    quick = passes.sizes_at(*question)
    monkeypatch.setattr(passes, "extension", None)

    assert np.array_equal(quick, passes.sizes_at(*question))


def test_runs_that_are_moved(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, count, further = 4, 60, 20
    layers_S = np.sort(rng.integers(-1, blocks, count)).astype(np.int32)
    ordinals_S = np.arange(count) - np.searchsorted(layers_S, layers_S)
    events_E = _life(rng, count)
    labels_E = rng.integers(-1, blocks, len(events_E)).astype(np.int32)
    starts = rng.integers(0, len(events_E), 12)
    ends = np.minimum(starts + rng.integers(0, 40, 12), len(events_E))
    runs = np.stack([starts, ends, rng.integers(0, further, 12)], axis=1)
    offsets = np.cumsum(rng.integers(0, 30, blocks + further + 1))
    question: Any = (runs, (events_E, labels_E), (layers_S, ordinals_S), offsets)

    quick = passes.moved_runs(*question)
    monkeypatch.setattr(passes, "extension", None)
    expected = passes.moved_runs(*question)

    assert len(quick[0]) == int((ends - starts).sum())
    for one, other in zip(quick, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize("run", [(0, 3, 0), (-1, 1, 0), (1, 0, 0), (0, 2, 5)])
def test_runs_of_what_is_not_there_are_refused(run: tuple[int, int, int]) -> None:
    events_E, zeros_S = np.array([1, -1], np.int32), np.zeros(1, np.int32)
    with pytest.raises((IndexError, ValueError)):
        passes.moved_runs(
            np.array([run]),
            (events_E, np.zeros(2, np.int32)),
            (zeros_S, np.zeros(1, np.int64)),
            np.array([0, 0]),
        )


def test_events_of_no_storage_are_refused() -> None:
    for event in (0, 3, -3):
        with pytest.raises(IndexError):
            passes.extension.peak(np.array([event], np.int32), np.array([1, 2], np.int64))
        with pytest.raises(IndexError):
            passes.extension.alive(np.array([event], np.int32), np.zeros(2, np.int8))


def test_buffers_of_different_lengths_are_refused() -> None:
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="different lengths"):
        passes.extension.sizes_at(two, two, one, np.zeros(2, np.bool_), two, 1, 2, 4, 4)


def test_an_extension_of_an_older_source_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from brimful.planning import _replay

    monkeypatch.delattr(_replay, "moved_runs")

    assert passes._built() is None
