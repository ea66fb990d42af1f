"""One training step of this code and of an earlier commit, on a CPU: brimful's side of
`pretrain_cpu.py` as each checkout has it, on the same sequences, in turns.

    git worktree add --detach BEFORE COMMIT
    python benchmarks/pretrain_commits.py BEFORE [--rounds 7] [--steps 10]

Rules as in `pretrain_cpu.py`: one thread each, CPU time, warm-up and compiling excluded. The first
commit with that benchmark is c8366b5. Validity gate: the training loss over the last 10 of 53 steps
agrees within `LOSS_TOLERANCE`.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from contestant import Contestant, interleaved
from pretrain_cpu import GATE_STEPS, LOSS_TOLERANCE, OURS, prepare
from record import commit, ratio_interval, summary, write_record

HERE = Path(__file__).resolve().parent.parent

NAMES = [name for name in OURS if name != "brimful, bf16"]
"""Of brimful's contestants, those of every checkout."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("before", type=Path, help="checkout of the earlier commit")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _compare(Path(folder), options)


def _compare(folder: Path, options: argparse.Namespace) -> None:
    prepare(folder)
    checkouts = {"now": HERE, "before": options.before.resolve()}
    contestants = {
        (side, name): _contestant(side, checkout, name, folder)
        for name in NAMES
        for side, checkout in checkouts.items()
    }
    losses = {key: each.ask(f"losses {GATE_STEPS}") for key, each in contestants.items()}
    step_s: dict[tuple[str, str], list[float]] = {key: [] for key in contestants}
    loads: list[float] = []
    keys = {each: key for key, each in contestants.items()}
    for each in interleaved([*contestants.values()], options.rounds, loads):
        step_s[keys[each]].append(_seconds(each.ask(f"run {options.steps}")) / options.steps)
    for each in contestants.values():
        each.quit()
    results = {}
    for name in NAMES:
        now, before = step_s["now", name], step_s["before", name]
        last = [statistics.mean(losses[side, name][-10:]) for side in checkouts]
        results[name] = {
            "step_cpu_s": {"now": summary(now), "before": summary(before)},
            "speed_over_before": ratio_interval(before, now),
            "losses_of_the_last_10_of_53_steps": last,
            "valid": abs(last[0] / last[1] - 1) < LOSS_TOLERANCE,
        }
        ratio = results[name]["speed_over_before"]
        print(
            f"{name:<24} {1000 * statistics.median(before):.0f} ->"
            f" {1000 * statistics.median(now):.0f} ms a step, {ratio['median']:.2f}x"
            f" [{ratio['low']:.2f}, {ratio['high']:.2f}], losses {last[1]:.4f} and {last[0]:.4f}"
        )
    values = {
        "before": commit(checkouts["before"]),
        "rounds": options.rounds,
        "steps": options.steps,
        "contestant_threads": 1,
        "loads": loads,
        "results": results,
    }
    print(write_record("pretrain_commits", values))


def _contestant(side: str, checkout: Path, name: str, folder: Path) -> Contestant:
    """With the checkout's own code."""
    script = checkout / "benchmarks/pretrain_cpu.py"
    words = [sys.executable, str(script), "--worker", name, "--folder", str(folder)]
    variables = {"PYTHONPATH": str(checkout / "src"), "BRIMFUL_CACHE": str(folder / side)}
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"{side}.inductor")}
    return Contestant(f"{side}: {name}", folder, words, {**os.environ, **variables, **cache})


def _seconds(answer: Any) -> float:
    """CPU seconds of a worker's answer; those of early commits give nothing else."""
    return float(answer[0] if isinstance(answer, list) else answer)


if __name__ == "__main__":
    main()
