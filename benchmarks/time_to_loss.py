"""How soon training reaches a loss: a recipe as it is beside the same recipe with another optimizer
or fewer steps.

    python benchmarks/time_to_loss.py shakespeare-char data.path=.../tinyshakespeare/input.txt
    --rivals muon "muon, half the steps" --seeds 3 --folder RESULTS [--loss 1.898]

Every run trains with its own seed, in turns, and evaluates `EVALUATIONS` times on the recipe's
validation split. Steps to a loss follow from a straight line between two evaluations; they do not
depend on the machine. Seconds are these steps at the run's mean step time, without evaluations and
checkpoints. The losses asked for are `--loss`, and the mean final loss of the recipe as it is. A
run that never reaches one says so.

Every run's result is kept in RESULTS as it ends; the same command goes on from there.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from brimful.base.env import wait_politely

wait_politely()

from brimful.base.rundir import read_journal  # noqa: E402
from brimful.recipe import load  # noqa: E402
from record import ratio_interval, summary, write_record  # noqa: E402

AS_IT_IS = "as it is"
EVALUATIONS = 20
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
    options = parser.parse_args()
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
            "mean_step_s": statistics.mean(times_s),
            "median_step_s": statistics.median(times_s),
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
    for name, each in runs.items():
        result: dict[str, Any] = {
            "steps": each[0]["steps"][-1],
            "final_loss": summary([run["losses"][-1] for run in each]),
            "median_step_s": summary([run["median_step_s"] for run in each]),
            "step_time_over_as_it_is": ratio_interval(
                [run["median_step_s"] for run in each],
                [run["median_step_s"] for run in runs[AS_IT_IS]],
            ),
        }
        print(
            f"{name:<28} loss {result['final_loss']['median']:.4f} after"
            f" {result['steps']:,} steps, a step takes"
            f" {result['step_time_over_as_it_is']['median']:.2f}x"
        )
        for title, loss in wanted.items():
            steps = [steps_to(loss, run) for run in each]
            reached = [one for one in steps if one is not None]
            seconds = [
                one * run["median_step_s"]
                for one, run in zip(steps, each, strict=True)
                if one is not None
            ]
            result[f"to {title}"] = {
                "loss": loss,
                "reached": f"{len(reached)} of {len(each)}",
                "steps": summary(reached) if reached else None,
                "seconds": summary(seconds) if seconds else None,
            }
            took = f"{statistics.median(reached):,.0f} steps" if reached else "never"
            print(f"  to {loss:.4f} ({title}): {took}, {len(reached)} of {len(each)} runs")
        results[name] = result
    values = {"recipe": options.recipe, "seeds": options.seeds, "results": results}
    print(write_record(f"time_to_loss-{options.recipe}", values | {"losses": dict(runs)}))


if __name__ == "__main__":
    main()
