"""Calibration: real products, in bounded time, without side effects."""

import time

import pytest
import torch

from brimful.base.errors import DeviceError
from brimful.hardware.calibrate import measure_matrix_rates

CPU = torch.device("cpu")


def test_rates_are_positive_and_of_this_planet() -> None:
    rates = measure_matrix_rates(CPU, ["fp32", "bf16"], seconds=0.05)
    assert list(rates) == ["fp32", "bf16"]
    assert all(1e7 < rate < 1e15 for rate in rates.values())


def test_an_unusably_slow_dtype_does_not_take_longer_than_it_may() -> None:
    start_s = time.perf_counter()
    rates = measure_matrix_rates(CPU, ["fp16"], seconds=0.1)
    assert rates["fp16"] > 0
    assert time.perf_counter() - start_s < 3


def test_the_rate_is_operations_over_the_fastest_time_for_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    durations_s = iter([0.5, 1.0, 2.0, 6.0, 7.0])  # the first warms up; the next three reach the 8 seconds
    clock_s = [0.0]
    starting = [True]

    def tick() -> float:
        if not starting[0]:
            clock_s[0] += next(durations_s)
        starting[0] = not starting[0]
        return clock_s[0]

    monkeypatch.setattr("brimful.hardware.calibrate.time.perf_counter", tick)
    assert measure_matrix_rates(CPU, ["fp32"], seconds=8, size=10) == {"fp32": torch.get_num_threads() * 2 * 10**3 / 1.0}


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
def test_what_cannot_be_measured_is_refused(dtypes: list[str], seconds: float, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        measure_matrix_rates(CPU, dtypes, seconds)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_measured_with_and_without_tf32_and_keeps_its_setting() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    rates = measure_matrix_rates(torch.device("cuda"), ["fp32", "tf32", "fp16"])
    assert all(rate > 1e11 for rate in rates.values())
    assert torch.backends.cuda.matmul.fp32_precision == before
