"""Calibration: real products, in bounded time, without side effects."""

import dataclasses
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from fixture_types import Refuses

from brimful.base.errors import DeviceError, RunFolderError
from brimful.hardware import catalog
from brimful.hardware.calibrate import (
    PASSES,
    SmallTransformerBlock,
    _half_way,
    calibrate,
    disk_bytes_per_s,
    measure_matrix_rates,
)
from brimful.hardware.calibration import Calibration
from brimful.hardware.operators import Call, Case
from brimful.hardware.probe import cpu_device
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, Rates

CPU = torch.device("cpu")


def test_rates_are_positive_and_of_this_planet() -> None:
    rates = measure_matrix_rates(CPU, ["fp32", "bf16"], seconds=0.05)
    assert list(rates) == ["fp32", "bf16"]
    assert all(1e7 < rate < 1e15 for rate in rates.values())


def test_an_unusably_slow_dtype_does_not_take_longer_than_it_may() -> None:
    start_s = time.process_time()
    rates = measure_matrix_rates(CPU, ["fp16"], seconds=0.1)
    assert rates["fp16"] > 0
    assert time.process_time() - start_s < 3


def test_the_rate_is_operations_over_the_fastest_time_for_every_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    durations_s = iter(
        [0.5, 1.0, 2.0, 6.0, 7.0]
    )  # the first warms up; the next three reach the 8 seconds
    clock_s = [0.0]
    starting = [True]

    def tick() -> float:
        if not starting[0]:
            clock_s[0] += next(durations_s)
        starting[0] = not starting[0]
        return clock_s[0]

    monkeypatch.setattr("brimful.hardware.calibrate.time.thread_time", tick)
    assert measure_matrix_rates(CPU, ["fp32"], seconds=8, size=10) == {
        "fp32": torch.get_num_threads() * 2 * 10**3 / 1.0
    }


@pytest.mark.parametrize(
    ("turns_s", "timed"),
    [
        ([1.0] * 10, 4),
        ([1.0, 1.0, 1.005, 1.005, 1.0], 4),
        ([1.0, 1.0, 1.02, 1.02, 1.02, 1.0, 1.0], 6),
    ],
)
def test_measuring_ends_early_where_turns_agree(
    monkeypatch: pytest.MonkeyPatch, turns_s: list[float], timed: int
) -> None:
    """Every product is a turn; the first one warms up."""
    durations_s = [5.0, *turns_s]
    times_s = iter(durations_s)
    monkeypatch.setattr("brimful.hardware.calibrate._Product.time_s", lambda product: next(times_s))
    rates = measure_matrix_rates(CPU, ["fp32"], seconds=9.0, size=10)
    assert rates == {"fp32": torch.get_num_threads() * 2 * 10**3 / 1.0}
    assert len(list(times_s)) == len(turns_s) - timed


@pytest.mark.parametrize("looks", range(10, 30))
def test_time_may_be_over_at_any_look_at_the_clock(
    monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Also between two looks before a turn, which then times nothing."""
    now_s = iter([0.0] * looks)
    monkeypatch.setattr("brimful.hardware.calibrate.time.monotonic", lambda: next(now_s, 1000.0))
    monkeypatch.setattr("brimful.hardware.calibrate._Product.time_s", lambda product: 0.1)
    rates = measure_matrix_rates(CPU, ["fp32"], seconds=9.0, size=10)
    assert rates == {"fp32": pytest.approx(torch.get_num_threads() * 2 * 10**3 / 0.1)}


def test_measuring_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    measure_matrix_rates(CPU, ["fp32"], seconds=0.01, size=16)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("dtypes", "seconds", "message"),
    [
        (["bf61"], 0.1, "cannot measure 'bf61' - did you mean 'bf16'"),
        (["fp8"], 0.1, "cannot measure 'fp8'"),
        (["tf32"], 0.1, "cannot measure tf32 on cpu"),
        (["fp32"], 0.0, "seconds must be positive"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    dtypes: list[str], seconds: float, message: str
) -> None:
    with pytest.raises(DeviceError, match=message):
        measure_matrix_rates(CPU, dtypes, seconds)


@pytest.mark.usefixtures("few_operators")
def test_a_calibration_has_a_rate_for_every_class_and_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which types are worth it is measured; beside other programs bf16 may look too slow.
    monkeypatch.setattr(
        "brimful.hardware.calibrate._usable_dtypes", lambda device, stopwatch: ("fp32", "bf16")
    )
    monkeypatch.setattr("brimful.hardware.calibrate.keep_freed_memory", lambda: None)
    told: list[tuple[str, int, int]] = []
    threads = torch.get_num_threads()

    measured = calibrate(
        cpu_device(),
        tmp_path / "runs",
        threads=1,
        seconds=0.001,
        progress=lambda *news: told.append(news),
    )

    rates = measured.rates
    needs_bitsandbytes: set[str] = set() if find_spec("bitsandbytes") else {"dequantise"}
    assert set(rates.bytes_per_s) >= set(CLASSES) - needs_bitsandbytes
    assert all(rates.computing(name, "fp32", smallest=512) > 0 for name in MATRIX_CLASSES)
    assert (measured.device, measured.threads, measured.mismatch(1)) == (cpu_device().name, 1, "")
    assert set(measured.extras) == {"disk_bytes_per_s", "loader_tokens_per_s"}
    assert not rates.overlaps
    assert rates.host_s > 0
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1][1] == told[-1][2] == PASSES * measured.points
    assert torch.get_num_threads() == threads
    assert Calibration.from_json(measured.to_json()) == measured
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.long
@pytest.mark.usefixtures("few_operators")
def test_two_threads_are_at_most_twice_as_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.hardware.calibrate.keep_freed_memory", lambda: None)

    measured = calibrate(cpu_device(), tmp_path, threads=2, seconds=0.001)

    assert measured.threads == 2
    assert all(
        1.0 <= measured.extras[f"{name}_speed_up"] <= 2.0
        for name in ("products", "cached", "large")
    )
    assert torch.get_num_threads() == 1


@pytest.mark.long
def test_an_operator_that_there_is_no_memory_for_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_operators: Callable[..., list[Case]]
) -> None:
    def no_room(_: torch.device) -> Call:
        raise torch.OutOfMemoryError

    def some(device: torch.device, dtypes: tuple[str, ...]) -> list[Case]:
        few = few_operators(device, dtypes)
        return [*few, dataclasses.replace(few[0], name="huge", make=no_room)]

    monkeypatch.setattr("brimful.hardware.calibrate.cases", some)
    monkeypatch.setattr("brimful.hardware.calibrate.keep_freed_memory", lambda: None)

    dtypes = ("fp32", "bf16")
    assert calibrate(cpu_device(), tmp_path, threads=1, seconds=0.001).points in {
        len(few_operators(CPU, dtypes)),
        len(few_operators(CPU, dtypes[:1])),
    }


def test_a_device_of_the_catalog_cannot_be_calibrated(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="row of the catalog"):
        calibrate(catalog.get("Tesla T4"), tmp_path)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "file").write_text("")
    with refuses(RunFolderError):
        disk_bytes_per_s(tmp_path / "file" / "runs")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_measured_with_and_without_tf32_and_keeps_its_setting() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    rates = measure_matrix_rates(torch.device("cuda"), ["fp32", "tf32", "fp16"])
    assert all(rate > 1e11 for rate in rates.values())
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_rates_for_several_threads_lie_half_way_and_the_interval_holds_both_ends() -> None:
    one = Rates(
        {"matrix": {"fp32": 1e11}},
        {"copy": 1e10},
        {"copy": 4e10},
        cache_bytes=1 << 20,
        overlaps=False,
        share=(0.8, 1.25),
        source="by hand",
    )

    two = _half_way(one, {"products": 2.0, "cached": 1.5, "large": 1.2})

    assert two.flop_per_s["matrix"]["fp32"] == pytest.approx(2**0.5 * 1e11)
    assert (two.bytes_per_s["copy"], two.cached_bytes_per_s["copy"]) == (
        pytest.approx(1.2**0.5 * 1e10),
        pytest.approx(1.5**0.5 * 4e10),
    )
    assert two.share == (pytest.approx(0.8 / 2**0.5), pytest.approx(1.25 * 2**0.5))


def test_the_block_trains() -> None:
    block = SmallTransformerBlock()
    block(torch.ones(1, 8, 32)).sum().backward()

    assert all(parameter.grad is not None for parameter in block.parameters())
