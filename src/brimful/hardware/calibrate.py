"""Measure the rates of this machine's devices: square matrix products in half a second, or every
class of operator in less than a minute.
"""

import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.base.discover import did_you_mean
from brimful.base.errors import DeviceError, RunFolderError
from brimful.base.types import Numbers, Texts
from brimful.hardware.calibration import Calibration, current_versions
from brimful.hardware.device import Device
from brimful.hardware.fitting import TimedOperator, fit, sped_up
from brimful.hardware.host import keep_freed_memory
from brimful.hardware.operators import (
    CACHED_ELEMENTS,
    LARGE_ELEMENTS,
    ROW,
    TORCH_DTYPES,
    Call,
    cases,
    on_cold_operands,
    random_operand,
)
from brimful.hardware.probe import torch_device
from brimful.hardware.rates import Rates
from brimful.hardware.stopwatch import Stopwatch, synchronize

Progress = Callable[[str, int, int], None]
"""Called with the next operator, the number of operators done, and the total."""
SECONDS = 0.02
"""Time for each of about 250 operators in each pass."""
PASSES = 2
"""Every operator is measured in each pass, because other programs may slow a machine down for
seconds.
"""
SLOW_SHARE = 0.2
DISK_BYTES = 64 << 20
LOADER_BATCHES = 64
PARALLEL_S, PARALLEL_ROUNDS = 0.3, 3
SMALLEST_SIZE = 128
LARGEST_CPU_SIZE = 2048
LARGEST_GPU_SIZE = 8192
"""Larger products are no faster: a CPU's caches and a GPU's tiles are full."""
FEWEST_TIMES = 3
TURNS = 10
"""Turns in which a dtype's products are timed."""
ENOUGH_TURNS, FASTEST_TURNS, AGREE_WITHIN = 4, 3, 1.01
"""When timing ends on a CPU: nothing more is timed once the fastest products of so many of at least
so many turns took no longer than so many times the fastest of all. A GPU may need longer to raise
its clock.
"""
MOST_WAIT = 4.0
"""Time that may pass in all, as a multiple of the processor time for a dtype."""
SHORTEST_S = 1e-9
"""What a clock that stood still has measured."""


def measure_matrix_rates(
    device: torch.device, dtypes: Sequence[str], seconds: float = 0.3, size: int | None = None
) -> Numbers:
    """Measure the FLOP/s of square products C = A @ B: the fastest of as many as fit into the time,
    at least three.

    The fastest counts, because other programs only slow a product down, and the dtypes take turns,
    so that a moment in which they do slows all. On a CPU one thread is measured by its own clock,
    which stands while another program has the core, and its rate multiplied by torch's number of
    threads: each core has matrix units.

    Takes about `seconds` per dtype; less on a CPU where turns agree. Without a `size`, the side
    doubles from 128 while the next product fits several times into the time, so that an unusably
    slow dtype (fp16 on most CPUs) is measured on a small product. The global random state and the
    fp32 precision settings do not change.

    Args:
        device: Where to measure.
        dtypes: Any of "fp32" (without TF32), "tf32" (CUDA only), "bf16", "fp16".
        seconds: Time per dtype, positive.
        size: Side of the matrices; None chooses it.

    Raises:
        DeviceError: an unknown dtype, one in which the device computes no matrix product, or no
            time to measure in.
    """
    if not seconds > 0:
        raise DeviceError(f"seconds must be positive to measure in, got {seconds}.")
    for dtype in dtypes:
        _refuse_unmeasurable(device, dtype)
    with torch.no_grad(), _one_thread(device) as threads:
        timed = [_TimedProducts(device, dtype, seconds, size) for dtype in dtypes]
        while waiting := [each for each in timed if not each.is_done]:
            for products in waiting:
                products.take_turn()
    return {each.dtype: threads * each.flop_per_s for each in timed}


def _refuse_unmeasurable(device: torch.device, dtype: str) -> None:
    if dtype not in TORCH_DTYPES:
        raise DeviceError(
            f"cannot measure {dtype!r}{did_you_mean(dtype, TORCH_DTYPES)} Measurable:"
            f" {', '.join(TORCH_DTYPES)}."
        )
    if dtype == "tf32" and device.type != "cuda":
        raise DeviceError(
            f"cannot measure tf32 on {device}: it is a mode of CUDA devices. Measure fp32 instead."
        )


class _TimedProducts:
    """Products of one dtype, timed in turns until their time is used up."""

    def __init__(self, device: torch.device, dtype: str, seconds: float, size: int | None) -> None:
        self.dtype, self._device, self._seconds = dtype, device, seconds
        self._times_s: list[float] = []
        self._turns_s: list[float] = []
        self._end_s = time.monotonic() + MOST_WAIT * seconds
        with self._mode():
            self._size = size or _fitting_size(device, dtype, seconds)
            self._product = _Product(device, dtype, self._size)
            self._product.time_s()

    @property
    def is_done(self) -> bool:
        is_over = sum(self._times_s) >= self._seconds or time.monotonic() > self._end_s
        return (is_over and len(self._times_s) >= FEWEST_TIMES) or self._agree

    @property
    def _agree(self) -> bool:
        if self._device.type != "cpu" or len(self._turns_s) < ENOUGH_TURNS:
            return False
        fastest_s = sorted(self._turns_s)[:FASTEST_TURNS]
        return fastest_s[-1] <= AGREE_WITHIN * fastest_s[0]

    @property
    def flop_per_s(self) -> float:
        return float(2 * self._size**3 / min(self._times_s))

    def take_turn(self) -> None:
        """Time products for a part of the time."""
        start, enough = len(self._times_s), self._seconds / TURNS
        with self._mode():
            while not self.is_done and sum(self._times_s[start:]) < enough:
                self._times_s.append(self._product.time_s())
        self._turns_s += sorted(self._times_s[start:])[:1]  # none where the time was over

    @contextmanager
    def _mode(self) -> Iterator[None]:
        try:
            with _fp32_mode(self._device, self.dtype):
                yield
        except RuntimeError as error:
            raise DeviceError(
                f"{self._device} cannot compute a {self.dtype} matrix product: {error}"
            ) from error


@contextmanager
def _fp32_mode(device: torch.device, dtype: str) -> Iterator[None]:
    """Compute fp32 products in true fp32 or TF32 on CUDA; nothing changes elsewhere."""
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
    """Use one thread on a CPU, and yield the number of threads otherwise used; elsewhere yield
    1.
    """
    if device.type != "cpu":
        yield 1
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def _fitting_size(device: torch.device, dtype: str, seconds: float) -> int:
    size, largest = SMALLEST_SIZE, LARGEST_CPU_SIZE if device.type == "cpu" else LARGEST_GPU_SIZE
    while size < largest:
        product = _Product(device, dtype, size)
        product.time_s()
        if 8 * 2 * FEWEST_TIMES * product.time_s() > seconds:
            break
        size *= 2
    return size


class _Product:
    """One product with operands from a private generator, written to the same result."""

    def __init__(self, device: torch.device, dtype: str, size: int) -> None:
        self._a_NN, self._b_NN = (random_operand(device, dtype, size, size) for _ in range(2))
        self._c_NN = torch.empty_like(self._a_NN)
        self._device = device

    def run(self) -> None:
        torch.mm(self._a_NN, self._b_NN, out=self._c_NN)

    def time_s(self) -> float:
        clock = time.thread_time if self._device.type == "cpu" else time.perf_counter
        synchronize(self._device)
        start_s = clock()
        self.run()
        synchronize(self._device)
        return max(clock() - start_s, SHORTEST_S)


def calibrate(
    device: Device,
    folder: Path,
    *,
    threads: int | None = None,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> Calibration:
    """Measure a device of this machine: products by shape, attention, bandwidth by class, launching
    and issuing operators, optimizer, disk, loader.

    Takes under a minute. torch's number of threads does not change; on a CPU the C library keeps
    freed memory from now on, as in training.

    Args:
        device: Device, as probed.
        folder: Where checkpoints will be written.
        threads: CPU threads of the training; by default the device's. Operators are measured with
            one thread in CPU time, which other programs disturb least; the speed-up of all threads
            is measured on three operators.
        seconds: Time for an operator in each pass.
        progress: See Progress.

    Raises:
        DeviceError: not a device of this machine. RunFolderError: the folder cannot be written to.
    """
    where, report = torch_device(device), progress or (lambda *_: None)
    before, on_cpu = torch.get_num_threads(), device.kind == "cpu"
    used = threads or device.threads or before
    if on_cpu:
        torch.set_num_threads(1)
        keep_freed_memory()
    try:
        points, host_s = _measure_operators(
            where, Stopwatch(where, own_time=on_cpu, seconds=seconds), report
        )
        speed_ups = _speed_ups(where, used) if on_cpu and used > 1 else {}
    finally:
        torch.set_num_threads(before)
    report("disk and loader", PASSES * len(points), PASSES * len(points))
    extras = {
        "disk_bytes_per_s": disk_bytes_per_s(folder),
        "loader_tokens_per_s": loader_tokens_per_s(folder),
    }
    source = f"measured on this machine, {time.strftime('%Y-%m-%d')}, torch {torch.__version__}"
    rates = fit(points, host_s=host_s, overlaps=not on_cpu, cached=on_cpu, source=source)
    if speed_ups:
        rates = _half_way(rates, speed_ups)
        extras |= {f"{name}_speed_up": value for name, value in speed_ups.items()}
    return Calibration(
        device.name,
        rates,
        used if on_cpu else None,
        extras,
        _versions(where),
        time.time(),
        len(points),
    )


def _half_way(rates: Rates, speed_ups: Numbers) -> Rates:
    """Return the rates of a step on several threads: half way between one thread and the measured
    speed-ups.

    A step also has operators that are small or do not divide, and its threads wait for each other:
    quickstart on 2 threads took 1.7 times as long as with full speed-ups (one run, on an idle
    machine). The interval reaches from no speed-up to the full one.
    """
    widest = math.sqrt(max(speed_ups.values()))
    made = sped_up(rates, **{name: math.sqrt(value) for name, value in speed_ups.items()})
    return replace(made, share=(rates.share[0] / widest, rates.share[1] * widest))


def _sum(elements: int) -> Callable[[torch.device], Call]:
    def make(device: torch.device) -> Call:
        x_RW, y_RW = (random_operand(device, "fp32", elements // ROW, ROW) for _ in range(2))
        return lambda: x_RW + y_RW

    return make


def _square(device: torch.device) -> Call:
    left, right = (random_operand(device, "fp32", 256, 256) for _ in range(2))
    return lambda: left @ right


PARALLEL = {"products": _square, "cached": _sum(CACHED_ELEMENTS), "large": _sum(LARGE_ELEMENTS)}
"""An operator, by what its rate is for, that shows how threads help; short, so that some of many
runs are undisturbed.
"""
BLOCK_WIDTH, BLOCK_HEADS = 32, 2


class SmallTransformerBlock(torch.nn.Module):
    """A small decoder block as model code writes it, to see what a program needs to issue an
    operator; (B, T, W) in and out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linears = torch.nn.ModuleList(
            torch.nn.Linear(BLOCK_WIDTH, BLOCK_WIDTH, bias=False) for _ in range(7)
        )
        self.scale = torch.nn.Parameter(torch.ones(BLOCK_WIDTH))

    def _norm(self, x_BTW: Tensor) -> Tensor:
        wide = x_BTW.to(torch.float32)
        return self.scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(
            x_BTW.dtype
        )

    def forward(self, x_BTW: Tensor) -> Tensor:
        query, key, value, out, gate, up, down = self.linears
        y_BTW = self._norm(x_BTW)
        q, k, v = (
            linear(y_BTW).unflatten(-1, (BLOCK_HEADS, -1)).transpose(1, 2)
            for linear in (query, key, value)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTW = x_BTW + out(attended.transpose(1, 2).flatten(2))
        y_BTW = self._norm(x_BTW)
        result: Tensor = x_BTW + down(F.silu(gate(y_BTW)) * up(y_BTW))
        return result


def _speed_ups(device: torch.device, threads: int) -> Numbers:
    """Return the speed-ups of several threads over one, as arguments of `sped_up`: of a product,
    and of a sum of cached and of large operands.

    The fastest of many runs counts, because other programs may use a core. One thread and all
    threads take turns, because a thread that has just started is slow.
    """
    speed_ups = {}
    with torch.no_grad():
        for name, make in PARALLEL.items():
            run = make(device)
            rounds = [
                (_fastest_s(run, 1), _fastest_s(run, threads)) for _ in range(PARALLEL_ROUNDS)
            ]
            ratio = min(alone_s for alone_s, _ in rounds) / min(
                together_s for _, together_s in rounds
            )
            speed_ups[name] = min(max(ratio, 1.0), float(threads))
    return speed_ups


def _fastest_s(run: Call, threads: int) -> float:
    torch.set_num_threads(threads)
    times_s: list[float] = []
    end_s = time.perf_counter() + PARALLEL_S
    while not times_s or time.perf_counter() < end_s:
        start_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def _measure_operators(
    device: torch.device, stopwatch: Stopwatch, report: Progress
) -> tuple[list[TimedOperator], float]:
    """Return the times of all operators that fit into the free memory, and the seconds that the
    program needs to issue one.
    """
    with torch.no_grad():
        todo = cases(device, _usable_dtypes(device, stopwatch))
        times_s: list[list[float]] = [[] for _ in todo]
        for number in range(PASSES * len(todo)):
            case = todo[number % len(todo)]
            report(f"{case.name}, {case.dtype}", number, PASSES * len(todo))
            try:
                with _fp32_mode(device, case.dtype):
                    times_s[number % len(todo)].append(
                        stopwatch.time_s(on_cold_operands(case, device))
                    )
            except torch.OutOfMemoryError:  # other programs hold the device's memory
                continue
    points = [
        TimedOperator(
            case.operator,
            case.class_name,
            case.dtype,
            case.flop,
            case.num_bytes,
            case.smallest,
            stopwatch.typical(times),
        )
        for case, times in zip(todo, times_s, strict=True)
        if times
    ]
    return points, _host_s(device, stopwatch, min(point.time_s for point in points))


def _usable_dtypes(device: torch.device, stopwatch: Stopwatch) -> tuple[str, ...]:
    """Return fp32 and the other types that a plan may use. A 16-bit type that is SLOW_SHARE as fast
    as fp32 is left out.
    """
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return ("fp32", "tf32", "bf16", "fp16")
        return ("fp32", "fp16")
    fp32_s, bf16_s = (
        stopwatch.time_s(_Product(device, dtype, SMALLEST_SIZE).run) for dtype in ("fp32", "bf16")
    )
    return ("fp32", "bf16") if bf16_s * SLOW_SHARE < fp32_s else ("fp32",)


class _Counter(TorchDispatchMode):
    """Counts operators that start a kernel, which are all except views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += int(not func.is_view)
        return func(*args, **(kwargs or {}))


def _host_s(device: torch.device, stopwatch: Stopwatch, smallest_s: float) -> float:
    """Return the seconds per operator of a model's code and autograd. On a CPU the time of the
    smallest operator is subtracted.
    """
    block = SmallTransformerBlock().to(device)
    weights = list(block.parameters())
    x_BTW = torch.ones(1, 8, BLOCK_WIDTH, device=device)

    def step() -> None:
        with torch.enable_grad():
            torch.autograd.grad(block(block(x_BTW)).sum(), weights)

    counter = _Counter()
    with counter:
        step()
    per_operator_s = stopwatch.issue_s(step) / counter.count
    return per_operator_s if device.type != "cpu" else max(per_operator_s - smallest_s, 0.0)


def disk_bytes_per_s(folder: Path) -> float:
    """Measure the rate of writing and syncing a file, the faster of two; the file is removed.

    Raises:
        RunFolderError: the folder cannot be written to.
    """
    block = bytes(range(256)) * (DISK_BYTES // 256)
    times_s = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            with tempfile.TemporaryFile(dir=folder) as file:
                start_s = time.perf_counter()
                file.write(block)
                file.flush()
                os.fsync(file.fileno())
                times_s.append(time.perf_counter() - start_s)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be written to: {error}. Free space or fix the permissions;"
            " checkpoints will be written there."
        ) from error
    return DISK_BYTES / max(min(times_s), 1e-6)


def loader_tokens_per_s(folder: Path) -> float:
    """Measure the rate at which batches of token ids are read from a mapped file, as by
    `data.sequences`: windows in random order, converted to int64 twice.
    """
    sequences, length = 64, 512
    tokens = LOADER_BATCHES * sequences * length
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(np.zeros(tokens + 1, np.uint16).tobytes())
        file.flush()
        windows_NT = sliding_window_view(np.memmap(file, np.uint16, mode="r"), length + 1)
        starts_N = np.random.default_rng(0).permutation(LOADER_BATCHES * sequences) * length
        start_s = time.perf_counter()
        for starts_B in starts_N.reshape(LOADER_BATCHES, sequences):
            batch_BT = windows_NT[starts_B]
            (
                torch.from_numpy(batch_BT[:, :-1].astype(np.int64)),
                torch.from_numpy(batch_BT[:, 1:].astype(np.int64)),
            )
        seconds = max(time.perf_counter() - start_s, 1e-6)
    return float(tokens / seconds)


def _versions(device: torch.device) -> Texts:
    driver = Path("/sys/module/nvidia/version")
    return {
        **current_versions(),
        "python": platform.python_version(),
        **(
            {"driver": driver.read_text().strip()}
            if device.type == "cuda" and driver.exists()
            else {}
        ),
    }
