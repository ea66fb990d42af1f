"""How long `brimful plan` takes and what memory it needs, with nothing cached and with its traces
there.

python benchmarks/plan_speed.py [--rounds N]

Each plan runs in a process of its own. A cold one begins with an empty cache folder, a warm one
with the folder of the cold one before it. Files of Python and of the libraries are in the page
cache after the first round; compiled Python files are there from the start.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.base.units import GIB
from record import summary, write_record

_LORA = [
    "plan",
    "quickstart",
    "tokenizer=null",
    "adapter.rank=16",
    "sequence_length=2048",
    "batch.sequences=16",
]
CASES = {
    "8B LoRA, one device": [*_LORA, "model=meta-llama/Llama-3.1-8B", "--on", "T4"],
    "8B LoRA, all devices of the catalog": [*_LORA, "model=meta-llama/Llama-3.1-8B", "--on", "all"],
    "70B QLoRA, one device": [
        *_LORA,
        "model=meta-llama/Llama-3.1-70B",
        "quantize=nf4",
        "--on",
        "NVIDIA H200",
    ],
    "code-lora (Gemma 2 2B), all devices of the catalog": ["plan", "code-lora", "--on", "all"],
}
TARGETS_WALL_S = {
    "8B LoRA, one device": {"cold": 1.0, "warm": 0.3},
    "8B LoRA, all devices of the catalog": {"cold": 3.0, "warm": 0.3},
    "70B QLoRA, one device": {"cold": 1.5, "warm": 0.3},
    "code-lora (Gemma 2 2B), all devices of the catalog": {"cold": 4.0, "warm": 0.3},
}
"""Wall time at most, on two cores."""
TARGET_MEMORY_BYTES = 2_000_000_000


@dataclass(frozen=True)
class Measured:
    """One process: wall and processor seconds, and the most memory it had resident."""

    wall_s: float
    cpu_s: float
    memory_bytes: int


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    load = os.getloadavg()[0]
    results = {name: _case(name, words, rounds) for name, words in CASES.items()}
    values = {
        "rounds": rounds,
        "cores": os.cpu_count(),
        "load_average_before": load,
        "target_memory_bytes": TARGET_MEMORY_BYTES,
        "results": results,
    }
    print(write_record("plan_speed", values))


def _case(name: str, words: list[str], rounds: int) -> dict[str, Any]:
    cold, warm = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(plan(words, Path(folder)))
            warm.append(plan(words, Path(folder)))
    result: dict[str, Any] = {
        "command": " ".join(["brimful", *words]),
        "cold": _spread(cold),
        "warm": _spread(warm),
        "target_wall_s": TARGETS_WALL_S[name],
    }
    for kind, runs in (("cold", cold), ("warm", warm)):
        shown = ", ".join(
            f"{run.wall_s:.1f} s ({run.cpu_s:.1f} s CPU, {run.memory_bytes / GIB:.2f} GiB)"
            for run in runs
        )
        print(f"{name}, {kind}: {shown}", flush=True)
    return result


def _spread(runs: list[Measured]) -> dict[str, Any]:
    return {
        key: summary([getattr(run, key) for run in runs])
        for key in ("wall_s", "cpu_s", "memory_bytes")
    }


def plan(words: list[str], cache: Path) -> Measured:
    """Run the command in a fresh process with this cache folder.

    Raises:
        RuntimeError: it could not estimate anything, or crashed.
    """
    command = [sys.executable, "-c", "from brimful.cli import main; main()", *words]
    environment = os.environ | {"BRIMFUL_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as errors:
        start_s = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            errors.seek(0)
            raise RuntimeError(
                f"brimful {' '.join(words)} ended with {process.returncode}:"
                f" {errors.read().decode(errors='replace')[-2000:]}"
            )
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


if __name__ == "__main__":
    main()
