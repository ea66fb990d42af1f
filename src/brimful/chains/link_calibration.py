"""Measures the links between devices of this machine: one process for each device, which adds up
tensors with the others as training adds up gradients.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from brimful.base.errors import DeviceError
from brimful.base.rundir import read_json, write_json_atomically
from brimful.hardware.device import Device
from brimful.hardware.links import MeasuredLink
from brimful.training.world import BACKENDS, World, join, leave

LARGE_BYTES, SMALL_BYTES = 64 * 2**20, 1024
"""Above 25 MiB, the pieces in which gradients are added up, rates hardly grow (NCCL's tests)."""
WARM_UP, RUNS = 2, 7
PATIENCE_S = 120.0


def measure_links(device: Device, devices: int, large_bytes: int = LARGE_BYTES) -> MeasuredLink:
    """Return how fast so many devices of this machine exchange what they add up.

    Args:
        device: One of them, as probed; CPU processes share the processor.
        devices: Devices, at least two.
        large_bytes: The bytes of the sum that the rate is taken from.

    Raises:
        DeviceError: there are fewer devices, or one of the processes ended.
    """
    if devices < 2:
        raise DeviceError(
            f"--devices {devices}: a link joins at least two devices, and this machine has"
            f" {devices}. On a processor --devices 2 measures two processes that share it."
        )
    with tempfile.TemporaryDirectory() as folder:
        arguments = (devices, device.kind, folder, large_bytes)
        try:
            spawn(_in_rank, arguments, nprocs=devices)
        except (ProcessRaisedException, ProcessExitedException) as error:
            last = str(error).strip().splitlines()[-1]
            raise DeviceError(
                f"links between {devices} x {device.name} could not be measured: {last}. Check that"
                " no other program holds a device, then run the same command again."
            ) from error
        told = read_json(Path(folder) / "times.json")
    share = 2 * (1 - 1 / devices)
    return MeasuredLink(
        device.name,
        devices,
        share * large_bytes / told["large_s"],
        told["small_s"],
        BACKENDS[device.kind],
        torch.__version__,
        time.time(),
    )


def _in_rank(rank: int, devices: int, kind: str, folder: str, large_bytes: int) -> None:
    if kind == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "meeting"), devices)  # type: ignore[attr-defined]
    where = (rank, devices)
    world = join(rank, devices, local=where, store=store, kind=kind, timeout_s=PATIENCE_S)
    try:
        times = {
            "large_s": _slowest(world, _timed(world, kind, large_bytes)),
            "small_s": _slowest(world, _timed(world, kind, SMALL_BYTES)),
        }
        world.first(lambda: write_json_atomically(Path(folder) / "times.json", times))
    finally:
        leave(world)


def _slowest(world: World, seconds: float) -> float:
    """Return the most that a sum took on any rank."""
    slowest: float = max(world.gather(seconds))
    return slowest


def _timed(world: World, kind: str, num_bytes: int) -> float:
    """Return the seconds of the quickest sum: what others did meanwhile only adds."""
    tensor = torch.zeros(num_bytes // 4, device=kind)
    wait: Callable[[], object] = torch.cuda.synchronize if kind == "cuda" else (lambda: None)
    best_s = float("inf")
    for run in range(WARM_UP + RUNS):
        world.any(False)  # all begin together
        started_s = time.perf_counter()
        world.add_up(tensor)
        wait()
        if run >= WARM_UP:
            best_s = min(best_s, time.perf_counter() - started_s)
    return best_s
