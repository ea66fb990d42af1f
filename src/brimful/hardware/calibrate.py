"""Measured rates of the device at hand: how fast square matrix products really are, per dtype."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from brimful.base.discover import did_you_mean
from brimful.base.errors import DeviceError

TORCH_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SMALLEST_SIZE = 128
LARGEST_CPU_SIZE = 2048
LARGEST_GPU_SIZE = 8192
"""Beyond these, products gain nothing measurable: a CPU's caches and a GPU's tiles are full."""
FEWEST_TIMES = 3


def measure_matrix_rates(device: torch.device, dtypes: Sequence[str], seconds: float = 0.3, size: int | None = None) -> dict[str, float]:
    """FLOP/s of square products C = A @ B, from the fastest of as many as fit into the time, at least three.

    The fastest, because whatever else the machine does only slows a product down. On a CPU one thread is measured and the rate
    multiplied by torch's number of threads: cores have matrix units of their own, and threads that wait for a core somebody else
    holds would measure that somebody.

    Takes about `seconds` per dtype. Without a `size`, the side doubles from 128 as long as the next product would fit several
    times into the time, so that a dtype which is unusably slow (fp16 on most CPUs) is measured on a small product.
    Leaves the global random state and the fp32 precision settings as they were.

    Args:
        device: Where to measure.
        dtypes: Any of "fp32" (without TF32), "tf32" (CUDA only), "bf16", "fp16".
        seconds: Time per dtype, positive.
        size: Side of the matrices; None chooses it.

    Raises:
        DeviceError: an unknown dtype, one the device cannot multiply in, or no time to measure in.
    """
    if not seconds > 0:
        raise DeviceError(f"seconds must be positive to measure in, got {seconds}.")
    rates = {}
    for dtype in dtypes:
        if dtype not in TORCH_DTYPES:
            raise DeviceError(f"cannot measure {dtype!r}{did_you_mean(dtype, TORCH_DTYPES)} Measurable: {', '.join(TORCH_DTYPES)}.")
        if dtype == "tf32" and device.type != "cuda":
            raise DeviceError(f"cannot measure tf32 on {device}: it is a mode of CUDA devices. Measure fp32 instead.")
        try:
            with torch.no_grad(), _fp32_mode(device, dtype), _one_thread(device) as threads:
                rates[dtype] = threads * _measure(device, TORCH_DTYPES[dtype], seconds, size)
        except RuntimeError as error:
            raise DeviceError(f"{device} cannot multiply {dtype} matrices: {error}") from error
    return rates


@contextmanager
def _fp32_mode(device: torch.device, dtype: str) -> Iterator[None]:
    """fp32 products in true fp32 or TF32 while measuring; a no-op elsewhere."""
    if device.type != "cuda" or dtype not in {"fp32", "tf32"}:
        yield
        return
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "ieee" if dtype == "fp32" else "tf32"
    try:
        yield
    finally:
        settings.fp32_precision = before


@contextmanager
def _one_thread(device: torch.device) -> Iterator[int]:
    """On a CPU one thread while measuring; gives the number of threads there otherwise are. Elsewhere 1, and nothing changes."""
    if device.type != "cpu":
        yield 1
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def _measure(device: torch.device, dtype: torch.dtype, seconds: float, size: int | None) -> float:
    if size is None:
        size = _fitting_size(device, dtype, seconds)
    product = _Product(device, dtype, size)
    product.time_s()
    times_s: list[float] = []
    while len(times_s) < FEWEST_TIMES or sum(times_s) < seconds:
        times_s.append(product.time_s())
    return 2 * size**3 / min(times_s)


def _fitting_size(device: torch.device, dtype: torch.dtype, seconds: float) -> int:
    size, largest = SMALLEST_SIZE, LARGEST_CPU_SIZE if device.type == "cpu" else LARGEST_GPU_SIZE
    while size < largest:
        product = _Product(device, dtype, size)
        product.time_s()
        if 8 * 2 * FEWEST_TIMES * product.time_s() > seconds:
            break
        size *= 2
    return size


class _Product:
    """One product, its operands drawn from a private generator and its result written in place."""

    def __init__(self, device: torch.device, dtype: torch.dtype, size: int) -> None:
        generator = torch.Generator(device).manual_seed(0)
        self._a_NN = torch.randn(size, size, generator=generator, device=device).to(dtype)
        self._b_NN = torch.randn(size, size, generator=generator, device=device).to(dtype)
        self._c_NN = torch.empty_like(self._a_NN)
        self._device = device

    def time_s(self) -> float:
        self._synchronize()
        start_s = time.perf_counter()
        torch.mm(self._a_NN, self._b_NN, out=self._c_NN)
        self._synchronize()
        return time.perf_counter() - start_s

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()
