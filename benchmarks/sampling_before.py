"""Whether sampling on a CPU is slower than it was: brimful's contestant of sampling_cpu.py in this
checkout beside the one of an older checkout, in turns, and the ratio as a record.

    git worktree add --detach OLD c1d6ac5
    python benchmarks/sampling_before.py OLD [--rounds 5] [--prompts 8]

Both read the same prompts with the same weights and seeds, on one thread, in CPU time; the older
one with the libraries of this one.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from contestant import Contestant, interleaved
from record import commit, ratio_interval, summary, write_record

NOW, BEFORE = "now", "before"


def main() -> None:
    """Ask both in turns and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("old", type=Path, help="folder of the older checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8)
    options = parser.parse_args()
    folders = {NOW: Path(__file__).parents[1], BEFORE: options.old.resolve()}
    runs: dict[str, list[dict[str, Any]]] = {NOW: [], BEFORE: []}
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as logs:
        contestants = [
            _contestant(name, folder, Path(logs), options.prompts)
            for name, folder in folders.items()
        ]
        for each in interleaved(contestants, options.rounds, loads):
            run = each.ask(f"run {len(loads) - 1}")
            runs[each.name].append(run)
            print(f"{each.name}: {run['tokens'] / run['cpu_s']:,.0f} useful tokens/s", flush=True)
        for each in contestants:
            each.quit()
    rates = {name: [run["tokens"] / run["cpu_s"] for run in runs[name]] for name in runs}
    values = {
        "before": commit(options.old),
        "rounds": options.rounds,
        "prompts": options.prompts,
        "useful_tokens_per_cpu_s": {name: summary(rates[name]) for name in rates},
        "now_over_before": ratio_interval(rates[NOW], rates[BEFORE]),
        "mean_length": {
            name: statistics.mean(length for run in runs[name] for length in run["lengths"])
            for name in runs
        },
        "loads": loads,
    }
    print(values["now_over_before"], values["mean_length"])
    print(write_record("sampling_before", values))


def _contestant(name: str, folder: Path, logs: Path, prompts: int) -> Contestant:
    script = folder / "benchmarks" / "sampling_cpu.py"
    command = [sys.executable, str(script), "--prompts", str(prompts), "--worker", "brimful"]
    return Contestant(name, logs, command, {"PYTHONPATH": str(folder / "src")})


if __name__ == "__main__":
    main()
