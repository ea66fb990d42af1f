"""Continued pre-training of SmolLM2-135M-Instruct on WikiText-2, on two cores: held-out perplexity
and bits per byte before and after, for several seeds and manners.

    python benchmarks/continued_cpu.py --data FOLDER/wikitext-2 [--seeds 3] [--steps 12] [--manners full lora]

The recipe is `continue-text` with small settings: the first `TRAIN_BYTES` of the training text and
the first `HELD_OUT_BYTES` of the validation text, each cut at a line, rows of 256 tokens, one thread.
The seed decides the order of the rows, and the adapters' first weights. Intervals are 95 % bootstrap
intervals over windows of held-out text; the difference is paired window by window.
"""

import argparse
import gzip
import tempfile
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from brimful.base.intervals import bounds_of
from brimful.chains import pipeline, scoring
from brimful.evaluation.nats import read_nats
from brimful.evaluation.stats import paired_difference
from brimful.recipe import Recipe, load
from brimful.report.tuned import UNTUNED_FOLDER
from record import summary, write_record

TRAIN_BYTES, HELD_OUT_BYTES = 400_000, 40_000
MANNERS: dict[str, tuple[str, ...]] = {
    "full": (),
    "lora": ("adapter.rank=16", "optimizer.learning_rate=5e-4"),
}
SMALL = (
    "sequence_length=256",
    "batch.sequences=2",
    "training.epochs=null",
    "data.document_start=^ = [^=]+ = $",
    "evaluation.base=never",
    "evaluation.max_sequences=8",
    "sample.tokens=16",
    "plan.threads=1",
)
KEPT = ("loss", "loss_interval", "perplexity", "bits_per_byte", "bits_per_byte_interval", "tokens")


def main() -> None:
    """Train every manner with every seed, score before and after, write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="holds train.txt.gz, valid.txt.gz")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--manners", nargs="+", choices=MANNERS, default=[*MANNERS])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text"
        text.mkdir()
        for split, size in (("train", TRAIN_BYTES), ("valid", HELD_OUT_BYTES)):
            content = gzip.decompress((options.data / f"{split}.txt.gz").read_bytes())[:size]
            (text / f"{split}.txt").write_bytes(content[: content.rindex(b"\n") + 1])
        before: dict[str, Any] = {}
        results = {
            manner: _result(
                [_one(folder, manner, seed, options, before) for seed in range(options.seeds)]
            )
            for manner in options.manners
        }
        before.pop("nats")
    values = {
        "before": before,
        "train_bytes": TRAIN_BYTES,
        "held_out_bytes": HELD_OUT_BYTES,
        "steps": options.steps,
    }
    print(write_record("continued_cpu", {**values, "settings": [*SMALL], "results": results}))


def _recipe(folder: Path, manner: str, seed: int, steps: int) -> Recipe:
    own = [f"training.steps={steps}", f"seed={seed}", f"data.path={folder / 'text'}"]
    place = [f"run.name={manner}-{seed}", f"run.folder={folder}"]
    return load("continue-text", [*SMALL, *own, *place, *MANNERS[manner]])


def _one(
    folder: Path,
    manner: str,
    seed: int,
    options: argparse.Namespace,
    before: dict[str, Any],
) -> dict[str, Any]:
    """The scores of a run; the first one also scores the base, which is the same for all."""
    console = Console(file=StringIO())
    run = pipeline.train(_recipe(folder, manner, seed, options.steps), console).folder
    after = scoring.evaluate(run, console)["validation"]
    if not before:
        scored = scoring.evaluate(run, console, untuned=True)["validation"]
        before |= {key: scored[key] for key in KEPT}
        before["nats"] = read_nats(run / UNTUNED_FOLDER, "validation")
    tuned, base = read_nats(run, "validation"), before["nats"]
    assert tuned is not None
    difference = paired_difference(tuned.nats_N, base.nats_N, tuned.tokens_N)
    found = {
        "seed": seed,
        **{key: after[key] for key in KEPT},
        "difference_nats": {
            "value": difference.difference,
            "interval": bounds_of(difference.interval),
        },
    }
    perplexities = [f"{each['perplexity']:.2f}" for each in (before, found)]
    print(manner, "seed", seed, "perplexity", " -> ".join(perplexities), flush=True)
    return found


def _result(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "runs": runs,
        "perplexity": summary([each["perplexity"] for each in runs]),
        "bits_per_byte": summary([each["bits_per_byte"] for each in runs]),
    }


if __name__ == "__main__":
    main()
