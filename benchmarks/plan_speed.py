"""How long plans take and what memory they need, each in a process of its own: asked for the first
time, changed, and asked again; with and without recordings that come with brimful.

    python benchmarks/plan_speed.py [--rounds N] [--cases WORD ...]

Each case begins with an empty cache folder, which its later questions share. CPU seconds count, of
all threads; wall seconds depend on what else the machine does. Files of Python and of the libraries
are in the page cache after the first process, which is not measured, and compiled Python files are
there.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fresh_process import brimful

_LORA = ("plan", "quickstart", "tokenizer=null", "sequence_length=2048", "adapter.rank=16")
_SIXTEEN = (*_LORA, "batch.sequences=16")
_8B = (*_SIXTEEN, "model=meta-llama/Llama-3.1-8B")
_70B = (*_SIXTEEN, "model=meta-llama/Llama-3.1-70B", "quantize=nf4", "--on", "NVIDIA H200")
_EIGHT = "8 x NVIDIA H100 80GB HBM3"
_PARTS = (*_LORA, "batch.sequences=64", "model=meta-llama/Llama-3.1-70B")
CASES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "8B LoRA, one device": {"first": (*_8B, "--on", "T4"), "again": (*_8B, "--on", "T4")},
    "8B LoRA, all devices": {"first": (*_8B, "--on", "all")},
    "code-lora (Gemma 2 2B), all devices": {"first": ("plan", "code-lora", "--on", "all")},
    "70B QLoRA, one device": {"first": _70B, "another rank": (*_70B, "adapter.rank=24")},
    "70B in parts, LoRA": {
        "first": (*_PARTS, "--on", _EIGHT),
        "16 devices": (*_PARTS, "--on", f"2 x {_EIGHT}"),
        "64 devices": (*_PARTS, "--on", f"8 x {_EIGHT}"),
    },
    "70B in parts, QLoRA": {"first": (*_PARTS, "quantize=nf4", "--on", "2 x NVIDIA L4")},
    "pythia-1b LoRA, no recording ships, one device": {
        "first": (*_SIXTEEN, "model=EleutherAI/pythia-1b", "--on", "T4")
    },
}
"""Questions by case: the words of the command."""


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=[""], help="words in their names; all")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    chosen = [name for name in CASES if any(word in name for word in asked.cases)]
    with tempfile.TemporaryDirectory() as folder:
        plan(CASES[chosen[0]]["first"], Path(folder))  # Python compiles what plans import
    # This process has no torch meanwhile: a process that it starts counts its memory, too.
    measured = {name: _case(name, asked.rounds) for name in chosen}
    from record import summary, write_record  # brings torch

    results = {
        name: {
            kind: {"command": " ".join(["brimful", *CASES[name][kind]])}
            | {key: summary([run[key] for run in runs]) for key in runs[0]}
            for kind, runs in each.items()
        }
        for name, each in measured.items()
    }
    if len(chosen) == len(CASES):
        values = {"cores": os.cpu_count(), "load_average_before": load, "results": results}
        print(write_record("plan_speed", {"rounds": asked.rounds, **values}))


def _case(name: str, rounds: int) -> dict[str, list[dict[str, float]]]:
    measured: dict[str, list[dict[str, float]]] = {kind: [] for kind in CASES[name]}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for kind, words in CASES[name].items():
                measured[kind].append(plan(words, Path(folder)))
                print(f"{name}, {kind}: {measured[kind][-1]}", flush=True)
    return measured


def plan(words: Sequence[str], folder: Path) -> dict[str, float]:
    """Return the processor and wall seconds of a plan, and the most memory that it had resident.

    Raises:
        RuntimeError: it could not estimate anything, or crashed.
    """
    done = brimful(words, folder)
    if done.code not in (0, 1):
        raise RuntimeError(f"brimful {' '.join(words)} ended with {done.code}: {done.errors}")
    return {"cpu_s": done.cpu_s, "wall_s": done.wall_s, "memory_bytes": done.memory_bytes}


if __name__ == "__main__":
    main()
