"""Rewarded answers as TRL learns them: loss and gradients of every variant that both have, in singles and
in doubles.

    python benchmarks/rewards_trl.py

The comparison is that of `tests/training/methods/test_grpo.py`, whose functions are called: the same small
Llama with LoRA adapters, six answers of three to a question, drawn by other weights than those that
learn. brimful packs them into passes of two; TRL's own loss function gets log-probabilities from whole
logits. Shares and advantages are kept in singles on brimful's side, in doubles, too.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(ROOT / "shared"), str(ROOT / "training" / "methods")]

test_grpo: Any = importlib.import_module("test_grpo")
small_model: Any = importlib.import_module("preference_losses").small_model

from brimful.recipe.rewards import RewardsRecipe  # noqa: E402
from brimful.training.methods import grpo  # noqa: E402
from record import write_record  # noqa: E402


def compared(variant: str, dtype: torch.dtype) -> dict[str, Any]:
    """Return the relative differences of loss and gradients of a variant."""
    rules = RewardsRecipe(max_new_tokens=test_grpo.MOST, **test_grpo.VARIANTS[variant]).resolved
    drawn = test_grpo.drawn_round()
    with tempfile.TemporaryDirectory() as folder:
        model = test_grpo._model(Path(folder) / "own").to(dtype)
        reference = small_model(Path(folder) / "reference", adapters_std=None).to(dtype)
        loss, expected, _ = test_grpo.by_trl(model, reference, rules, drawn)
        found, gradients, _ = test_grpo._by_brimful(model, rules, drawn, "packed", 2)
    whole = torch.cat([each.flatten() for each in expected.values()])
    apart = torch.cat([(gradients[key] - each).flatten() for key, each in expected.items()])
    return {
        "variant": variant,
        "dtype": str(dtype).removeprefix("torch."),
        "loss": abs(found - loss) / abs(loss),
        "gradient": float(apart.norm() / whole.norm()),
    }


def main() -> None:
    """Compare all and write the record."""
    torch.set_num_threads(1)
    rows, of_method = [], vars(grpo)
    real = of_method["scored_losses"]
    for dtype in (torch.float32, torch.float64):
        of_method["scored_losses"] = real if dtype == torch.float32 else test_grpo._in_doubles
        rows += [compared(variant, dtype) for variant in test_grpo.VARIANTS]
    worst = {
        dtype: {
            key: max(row[key] for row in rows if row["dtype"] == dtype)
            for key in ("loss", "gradient")
        }
        for dtype in ("float32", "float64")
    }
    print(worst)
    print(write_record("rewards_trl", {"worst": worst, "rows": rows}))


if __name__ == "__main__":
    main()
