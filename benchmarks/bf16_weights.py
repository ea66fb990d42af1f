"""What is learned with weights in bf16 beside weights in fp32: held-out loss of a small GPT trained
with each, from the same seeds on the same sequences.

    python benchmarks/bf16_weights.py data.path=.../tinyshakespeare/input.txt [--steps 500] [--seeds 3]

`to the nearest` is a control: the update of bf16 weights without random rounding, which brimful does
not offer. A smaller learning rate makes updates smaller beside the weights, so more of them vanish.
"""

import argparse
import tempfile
from collections.abc import Mapping
from io import StringIO
from typing import Any

from brimful.base.env import wait_politely

wait_politely()

import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from torch import Tensor  # noqa: E402

from brimful.base.rundir import read_journal  # noqa: E402
from brimful.chains import pipeline  # noqa: E402
from brimful.recipe import load  # noqa: E402
from brimful.training import rounded  # noqa: E402
from record import summary, write_record  # noqa: E402

WAYS: Mapping[str, list[str]] = {
    "fp32": [],
    "fp32, 8-bit states": ["optimizer.kind=adamw_8bit"],
    "bf16": ["optimizer.weights=bf16"],
    "bf16, 8-bit states": ["optimizer.weights=bf16", "optimizer.kind=adamw_8bit"],
    "bf16, to the nearest": ["optimizer.weights=bf16"],
}
NEAREST = "bf16, to the nearest"
RATES = (1e-3, 1e-4)


def _to_the_nearest(target: Tensor, values: Tensor, _generator: torch.Generator) -> None:
    target.copy_(values)


def loss_of(way: str, rate: float, seed: int, steps: int, data: str) -> float:
    """Train from the seed; return the loss of the validation split after the last step."""
    drawn = rounded.round_at_random_
    if way == NEAREST:
        rounded.round_at_random_ = _to_the_nearest  # type: ignore[assignment]
    try:
        with tempfile.TemporaryDirectory() as folder:
            changes = [
                *WAYS[way],
                data,
                f"seed={seed}",
                f"training.steps={steps}",
                f"evaluation.every={steps}",
                f"optimizer.learning_rate={rate}",
                "plan.precision=bf16",
                "plan.compile=false",
                f"run.folder={folder}",
            ]
            run = pipeline.train(load("shakespeare-char", changes), Console(file=StringIO()))
            records = list(read_journal(run.folder / "metrics.jsonl"))
    finally:
        rounded.round_at_random_ = drawn
    return float([each for each in records if each["kind"] == "evaluation"][-1]["loss"])


def main() -> None:
    """Train with every way, rate and seed, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", help="data.path=FILE")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    for rate in RATES:
        for way in WAYS:
            losses = [
                loss_of(way, rate, seed, options.steps, options.data)
                for seed in range(1, options.seeds + 1)
            ]
            shown = ", ".join(f"{loss:.4f}" for loss in losses)
            print(f"learning rate {rate:g}, {way}: {shown}", flush=True)
            results.append({"way": way, "learning_rate": rate, "losses": losses, **summary(losses)})
            # After each, so that nothing is lost when it is cut off.
            values = {"recipe": "shakespeare-char", "steps": options.steps, "results": results}
            path = write_record("bf16_weights", values)
    print(path)


if __name__ == "__main__":
    main()
