"""How soon training reaches a loss: a recipe as it is beside the same recipe with another optimizer
or fewer steps.

    python benchmarks/time_to_loss.py shakespeare-char data.path=.../tinyshakespeare/input.txt
    --rivals muon "muon, half the steps" --seeds 3 --folder RESULTS [--loss 1.898]

Every run trains with its own seed, in turns, and evaluates `EVALUATIONS` times on the recipe's
validation split. Steps to a loss follow from a straight line between two evaluations; they do not
depend on the machine. Seconds are these steps at the CPU time of a step on one thread, without
evaluations and checkpoints: each way of training is a process of its own on random tokens, and
steps are timed in turns, because a machine shared with others changes from run to run. The losses
asked for are `--loss`, and the mean final loss of the recipe as it is. A run that never reaches one
says so.

Every run's result is kept in RESULTS as it ends; the same command goes on from there.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from brimful.base.env import wait_politely

wait_politely()

from brimful.base.rundir import read_journal  # noqa: E402
from brimful.recipe import load  # noqa: E402
from contestant import Contestant, Worker, interleaved  # noqa: E402
from record import ratio_interval, summary, write_record  # noqa: E402

AS_IT_IS = "as it is"
EVALUATIONS = 20
ROUNDS, TIMED_STEPS, SETTLING = 7, 20, 10
MUON = "optimizer.kind=muon"
RIVALS: Mapping[str, tuple[float, list[str]]] = {
    AS_IT_IS: (1.0, []),
    "muon": (1.0, [MUON]),
    "muon, half the steps": (0.5, [MUON]),
    "muon, a third of the steps": (1 / 3, [MUON]),
    "muon, wsd": (1.0, [MUON, "optimizer.schedule=wsd"]),
    "half the steps": (0.5, []),
}
"""Share of the recipe's steps, and changes to it."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--rivals", nargs="*", default=["muon"], choices=list(RIVALS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--loss", type=float, action="append", default=[], help="nats a token")
    parser.add_argument("--vocabulary", type=int, default=65, help="of the steps that are timed")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    names = [AS_IT_IS, *(name for name in options.rivals if name != AS_IT_IS)]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(options.seeds):
        for name in names if seed % 2 == 0 else reversed(names):
            runs[name].append(_run(name, seed, options))
    ends = [each["losses"][-1] for each in runs[AS_IT_IS]]
    wanted = {f"{loss:g}": loss for loss in options.loss}
    wanted["the mean end of the recipe as it is"] = statistics.mean(ends)
    _report(runs, wanted, options)


def _work(options: argparse.Namespace) -> None:
    """Train as one way does, on random tokens, and answer requests."""
    import torch

    from pretrain_cpu import train_as_planned

    _, changes = RIVALS[options.worker]
    on_one_thread = ["plan.threads=1", "plan.device=cpu"]
    recipe = load(options.recipe, [*options.overrides, *changes, *on_one_thread])
    worker = Worker(options.worker, options.folder, SETTLING)
    ids_NT = torch.randint(options.vocabulary, (256, recipe.sequence_length))
    train_as_planned(worker, recipe, ids_NT, vocabulary=options.vocabulary)


def _timed(names: Sequence[str], options: argparse.Namespace) -> tuple[dict[str, Any], list[float]]:
    """CPU seconds of a step of each way, round by round, and the load before each round. Ways that
    differ in their number of steps alone are timed once.
    """
    loads: list[float] = []
    ways: dict[tuple[str, ...], str] = {}
    for name in names:
        ways.setdefault(tuple(RIVALS[name][1]), name)
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, options.recipe, *options.overrides, "--folder", folder]
        words += ["--vocabulary", str(options.vocabulary), "--worker"]
        contestants = [Contestant(name, Path(folder), [*words, name]) for name in ways.values()]
        step_s: dict[str, list[float]] = {name: [] for name in ways.values()}
        for each in interleaved(contestants, ROUNDS, loads):
            cpu_s, steps = each.ask(f"run {TIMED_STEPS}")
            step_s[each.name].append(cpu_s / steps)
        for each in contestants:
            each.quit()
    return {name: step_s[ways[tuple(RIVALS[name][1])]] for name in names}, loads


def _run(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train once, or return what is kept of that."""
    share, changes = RIVALS[name]
    kept = options.folder / f"{options.recipe}-{name.replace(' ', '-').replace(',', '')}-{seed}"
    result = kept.with_suffix(".json")
    if not result.exists():
        recipe = load(options.recipe, options.overrides)
        steps = max(EVALUATIONS, round(share * (recipe.training.steps or 0)))
        subprocess.run(
            [
                *(sys.executable, "-m", "brimful", "train", options.recipe),
                *(*options.overrides, *changes, f"seed={seed}", f"training.steps={steps}"),
                *(f"evaluation.every={steps // EVALUATIONS}", f"run.folder={kept}", "run.name=run"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        records = list(read_journal(kept / "run/metrics.jsonl"))
        evaluated = [each for each in records if each["kind"] == "evaluation"]
        times_s = [each["step_time_s"] for each in records if each["kind"] == "step"]
        made = {
            "steps": [each["step"] for each in evaluated],
            "losses": [each["loss"] for each in evaluated],
            "median_step_s": statistics.median(times_s),
            "load": os.getloadavg()[0],
        }
        result.write_text(json.dumps(made), encoding="utf-8")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    print(
        f"{name}, seed {seed}: {found['steps'][-1]:,} steps of {1000 * found['median_step_s']:.1f}"
        f" ms, loss {found['losses'][-1]:.4f}",
        flush=True,
    )
    return found


def steps_to(loss: float, run: Mapping[str, Any]) -> float | None:
    """Return the steps after which a run has a loss for the first time; None: never."""
    points = list(zip(run["steps"], run["losses"], strict=True))
    if points[0][1] <= loss:
        return float(points[0][0])
    for (before, above), (after, below) in pairwise(points):
        if below <= loss:
            return float(before + (after - before) * (above - loss) / (above - below))
    return None


def _report(
    runs: Mapping[str, Sequence[dict[str, Any]]],
    wanted: Mapping[str, float],
    options: argparse.Namespace,
) -> None:
    results: dict[str, Any] = {}
    step_cpu_s, loads = _timed(list(runs), options)
    for name, each in runs.items():
        step_s = statistics.median(step_cpu_s[name])
        result: dict[str, Any] = {
            "steps": each[0]["steps"][-1],
            "final_loss": summary([run["losses"][-1] for run in each]),
            "step_cpu_s": summary(step_cpu_s[name]),
            "step_time_over_as_it_is": ratio_interval(step_cpu_s[name], step_cpu_s[AS_IT_IS]),
        }
        print(
            f"{name:<28} loss {result['final_loss']['median']:.4f} after"
            f" {result['steps']:,} steps, a step takes {1000 * step_s:.1f} ms of CPU time,"
            f" {result['step_time_over_as_it_is']['median']:.2f}x"
        )
        for title, loss in wanted.items():
            steps = [steps_to(loss, run) for run in each]
            reached = [one for one in steps if one is not None]
            seconds = [one * step_s for one in reached]
            result[f"to {title}"] = {
                "loss": loss,
                "reached": f"{len(reached)} of {len(each)}",
                "steps": summary(reached) if reached else None,
                "seconds": summary(seconds) if seconds else None,
            }
            took = f"{statistics.median(reached):,.0f} steps" if reached else "never"
            print(f"  to {loss:.4f} ({title}): {took}, {len(reached)} of {len(each)} runs")
        results[name] = result
    values = {
        "recipe": options.recipe,
        "seeds": options.seeds,
        "loads": loads,
        "contestant_threads": 1,
        "results": results,
    }
    print(write_record(f"time_to_loss-{options.recipe}", values | {"losses": dict(runs)}))


if __name__ == "__main__":
    main()
