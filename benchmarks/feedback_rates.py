"""A learning rate for feedback alignment: feedback through a random matrix, the control in which
only the top learns, and backpropagation, each at several rates and with several seeds.

    python benchmarks/feedback_rates.py --data .../wikitext-2 [--steps 120] [--seeds 1,2]

The model and data of okadfa-ablation (4 blocks of width 128, kernel attention), one CPU thread. The
loss is of the validation windows that training looks at, after its last update. Each rate has its
own schedule over the same updates. The record is written anew after every run; finished runs lie in
the runs folder (BRIMFUL_RUNS) and are not made again.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from brimful.base.env import keep_few_kernels, wait_politely

wait_politely()
keep_few_kernels()

from rich.console import Console  # noqa: E402 - the environment comes before torch

from brimful.base.rundir import read_journal  # noqa: E402
from brimful.chains import pipeline  # noqa: E402
from brimful.recipe import Recipe, load  # noqa: E402
from record import write_record  # noqa: E402

VARIANTS = {
    "feedback": ["method=feedback", "feedback.points=block"],
    "control, only the top learns": ["method=feedback", "feedback.points=none"],
    "backpropagation": [],
}
RATES = (1e-3, 3e-3, 1e-2, 3e-2)


def main() -> None:
    """Train every variant at every rate with every seed, and write the record after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="folder with train and valid files")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seeds", default="1,2")
    options = parser.parse_args()
    seeds = list(map(int, options.seeds.split(",")))
    runs: list[dict[str, Any]] = []
    for rate in RATES:
        for variant in VARIANTS:
            for seed in seeds:
                runs.append(_trained(options, variant, rate, seed))
                print(runs[-1], flush=True)
                values = {"steps": options.steps, "runs": runs, "best": _best(runs)}
                path: Path = write_record("feedback_rates", values)
    print(f"record: {path}")


def _trained(options: argparse.Namespace, variant: str, rate: float, seed: int) -> dict[str, Any]:
    name = f"rates-{variant.partition(',')[0]}-{rate:g}-{seed}-{options.steps}"
    recipe: Recipe = load(
        "okadfa-ablation",
        [
            f"data.path={options.data}",
            f"training.steps={options.steps}",
            f"optimizer.learning_rate={rate}",
            f"seed={seed}",
            f"evaluation.every={options.steps}",
            "study=null",
            "plan.threads=1",
            f"run.name={name}",
            *VARIANTS[variant],
        ],
    )
    folder = pipeline.train(recipe, Console(width=120)).folder
    journal = list(read_journal(folder / "metrics.jsonl"))
    return {
        "variant": variant,
        "learning_rate": rate,
        "seed": seed,
        "loss": [each["loss"] for each in journal if each["kind"] == "evaluation"][-1],
        "tokens": max(each["tokens"] for each in journal if each["kind"] == "step"),
    }


def _best(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each variant's rate with the least mean loss over the seeds."""
    found: dict[str, dict[str, Any]] = {}
    for variant in VARIANTS:
        for rate in RATES:
            losses = [
                each["loss"]
                for each in runs
                if (each["variant"], each["learning_rate"]) == (variant, rate)
            ]
            if not losses:
                continue
            mean = statistics.mean(losses)
            if variant not in found or mean < found[variant]["mean_loss"]:
                found[variant] = {
                    "learning_rate": rate,
                    "mean_loss": mean,
                    "least": min(losses),
                    "most": max(losses),
                    "seeds": len(losses),
                }
    return found


if __name__ == "__main__":
    main()
