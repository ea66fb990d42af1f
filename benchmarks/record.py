"""A benchmark's result as a record: what was measured, with what, how often, how spread."""

import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brimful.base.env import hidden_instructions
from brimful.hardware.calibrate import measure_matrix_rates
from brimful.hardware.environment import describe_environment
from brimful.hardware.host import cpu_flags
from brimful.hardware.probe import probe
from tables import SLOW_BF16, WITHOUT_AMX

RECORDS = Path(__file__).parent / "records"
INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "avx512_fp16", "avx512f", "avx2")
"""Of a CPU, what decides how quick its products are in which precision."""


@functools.cache
def commit(checkout: Path | None = None) -> str:
    """Return the short hash of what is checked out in a folder.

    Args:
        checkout: None: this project; empty where it lies in no repository.

    Raises:
        CalledProcessError: the given folder lies in no repository.
    """
    command = ["git", "-C", str(checkout or RECORDS), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=checkout is not None)
    return done.stdout.strip()


@functools.cache
def cpu() -> dict[str, Any]:
    """The instructions that the CPU has, the variables that hide some of them, and the rates of
    matrix products on one thread.
    """
    flags = cpu_flags()
    threads = torch.get_num_threads()
    rates = measure_matrix_rates(torch.device("cpu"), ("fp32", "bf16"))
    return {
        "instructions": [name for name in INSTRUCTIONS if name in flags],
        "hidden_by": hidden_instructions(),
        "matrix_flop_per_s": {dtype: rate / threads for dtype, rate in rates.items()},
    }


def of_this_kind_of_cpu(name: str) -> str:
    """The name of a record that is kept for each kind of CPU (`tables.CPU_KINDS`): bf16 is slow
    where its products are no faster than those in fp32; hidden AMX counts as none.
    """
    here = cpu()
    rates = here["matrix_flop_per_s"]
    if rates["bf16"] <= rates["fp32"]:
        return name + SLOW_BF16
    return name + WITHOUT_AMX * bool("amx_bf16" not in here["instructions"] or here["hidden_by"])


def write_record(name: str, values: Mapping[str, Any]) -> Path:
    """Write `records/NAME.json`: the values with date, commit, command, hardware and versions
    beside them.
    """
    environment = describe_environment(probe("auto"))
    record = {
        "benchmark": name,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": " ".join(
            ["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(without_folders, sys.argv[1:])]
        ),
        "device": environment["device"]["name"],
        "cpu": cpu(),
        "threads": torch.get_num_threads(),
        "packages": {"python": environment["python"], **environment["packages"]},
        **values,
    }
    path = RECORDS / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def without_folders(word: str) -> str:
    """`data.path=/home/me/wikitext-2` -> `data.path=.../wikitext-2`: a record is about the data,
    not about a machine's folders.
    """
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}.../{Path(value).name}" if "/" in value else word


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median with its spread."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], seed: int = 0
) -> dict[str, float]:
    """Median of paired ratios and its 95 % bootstrap interval over rounds."""
    ratios = np.array(numerators) / np.array(denominators)
    drawn = np.random.default_rng(seed).integers(0, len(ratios), (10_000, len(ratios)))
    low, high = np.quantile(np.median(ratios[drawn], axis=1), [0.025, 0.975])
    return {
        "median": float(np.median(ratios)),
        "low": float(low),
        "high": float(high),
        "n": len(ratios),
    }


def timed(run: Callable[[], None], device: torch.device) -> float:
    """Seconds that a call takes: CPU time on a CPU, wall time around a synchronised GPU."""
    if device.type == "cpu":
        started_s = time.process_time()
        run()
        return time.process_time() - started_s
    torch.cuda.synchronize(device)
    started_s = time.perf_counter()
    run()
    torch.cuda.synchronize(device)
    return time.perf_counter() - started_s
