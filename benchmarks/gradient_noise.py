"""How much of a batch's gradient is signal: what batches drawn from the same weights agree on.

    python benchmarks/gradient_noise.py NAME=RECIPE... [--batches 8] [--set KEY=VALUE]...

Each recipe is run for some optimizer steps at a learning rate of 1e-12, so that the weights stay as
they are, and the gradient of each step is kept, before it is clipped. Of gradients g of batches of B
samples the mean product of two different ones is the squared length of the true gradient, without
bias; what the mean squared length of one has beyond it is noise, which falls with 1 / B. The noise
scale is the B at which both are equal (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1):
much smaller batches mostly teach noise, whatever the learning rate. Intervals are 95 %, by the
jackknife over batches; a signal that its noise hides is given as null.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

KEEP_STILL = (
    "optimizer.learning_rate=1e-12",
    "optimizer.schedule=constant",
    "evaluation={base: never, every: 1000000, max_sequences: 1}",
    "run.loggers=[]",
)


def main() -> None:
    """Measure all recipes and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+", metavar="NAME=RECIPE")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    from record import write_record

    methods = {}
    for each in options.recipes:
        name, recipe = each.split("=", 1)
        with tempfile.TemporaryDirectory() as folder:
            gradients, values = _gradients(recipe, Path(folder), options.batches, options.set)
        methods[name] = values | _parted(gradients @ gradients.T, values["samples_of_a_batch"])
        print(name, methods[name], flush=True)
    print(write_record("gradient_noise", {"batches": options.batches, "methods": methods}))


def _gradients(
    recipe_path: str, folder: Path, batches: int, changes: Sequence[str]
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return the gradients (batches, parameters) of a recipe, and what it is."""
    from rich.console import Console

    from brimful.chains import pipeline
    from brimful.recipe import load
    from brimful.training import loop, optim

    said = (f"run={{folder: {folder}, name: still}}", f"training={{steps: {batches}}}")
    recipe = load(recipe_path, [*said, *KEEP_STILL, *changes])
    found: list[torch.Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, *arguments: Any, **named: Any) -> Any:
        trained = [each for group in optimizer.param_groups for each in group["params"]]
        found.append(torch.cat([each.grad.flatten().double() for each in trained]))
        return optim.guarded_update(optimizer, *arguments, **named)

    with mock.patch.object(loop, "guarded_update", keep):
        pipeline.train(recipe, Console(quiet=True))
    values = {"method": recipe.method, "samples_of_a_batch": recipe.effective_batch}
    return torch.stack(found).numpy(), values


def _parted(products_GG: NDArray[np.float64], samples: int) -> dict[str, Any]:
    """Part the squared length of a batch's gradient into signal and noise.

    Args:
        products_GG: Products of any two gradients.
        samples: Samples of a batch.
    """

    def signal_share(kept: NDArray[np.int64]) -> float:
        products = products_GG[np.ix_(kept, kept)]
        own, count = np.diag(products).mean(), len(kept)
        others = (products.sum() - np.diag(products).sum()) / (count * (count - 1))
        return float(others / own)

    every = np.arange(len(products_GG))
    share = signal_share(every)
    without = [signal_share(np.delete(every, each)) for each in every]
    deviation = np.sqrt((len(every) - 1) * np.var(without))
    low, high = share - 1.96 * deviation, share + 1.96 * deviation

    def scale(share: float) -> float | None:
        return round(samples * (1 / share - 1)) if share > 0 else None

    return {
        "signal_share": round(share, 4),
        "signal_share_interval": [round(float(each), 4) for each in (low, high)],
        "noise_scale_samples": scale(share),
        "noise_scale_samples_interval": [scale(high), scale(low)],
    }


if __name__ == "__main__":
    main()
