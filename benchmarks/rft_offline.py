"""A chain of rejection sampling as a record: a model that is tuned on a few demonstrations, and on
samples of its own that were verified, at equal training tokens.

python benchmarks/rft_offline.py [--recipe NAME] [KEY=VALUE]...     # goes on where it stopped

Nothing is downloaded. `unit-rft-offline`, the default, pre-trains its small model here;
`unit-rft-smollm2` tunes SmolLM2-135M-Instruct. The record is called after the recipe, without its
"unit", and is written anew after every training. Runs lie in the runs folder (BRIMFUL_RUNS) like
those of `brimful run`, and finished ones are not made again. A course's questions (its train.json),
where `evaluation.data` says where they lie, are scored with the variants as well.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from brimful.base.env import keep_few_kernels, wait_politely

wait_politely()
keep_few_kernels()

from rich.console import Console  # noqa: E402 - the environment comes before torch

from brimful.chains.measured_phases import phases_beside_measured  # noqa: E402
from brimful.chains.phases import Member  # noqa: E402
from brimful.chains.round_chain import RoundChain  # noqa: E402
from brimful.chains.study_members import score_base  # noqa: E402
from brimful.recipe import BASE, Recipe, load  # noqa: E402
from brimful.report.comparison.compare import compare  # noqa: E402
from brimful.report.comparison.results import LOSS  # noqa: E402
from record import write_record  # noqa: E402

KEPT = ("round", "seed", "seconds", "statistics", "trained_tokens")
"""Facts of a drawing."""


def main() -> None:
    """Run the chain, and write its table, its tests and what was drawn after each training."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="unit-rft-offline")
    parser.add_argument("overrides", nargs="*", help="of the recipe")
    options = parser.parse_args()
    recipe = load(options.recipe, options.overrides)
    console = Console(width=120)
    chain = RoundChain.begin(recipe, console, fresh=False, accept=())
    for phase in chain.phases:
        chain.do(phase)
        if isinstance(phase, Member):
            base = score_base(chain.done, chain.folder, console)
            _record(recipe, chain, base, chain.done)


def _record(recipe: Recipe, chain: RoundChain, base: Path, done: Sequence[Member]) -> None:
    folders = [member.folder for member in done]
    names = [BASE, *(member.variant for member in done)]
    shown = recipe.model_copy(
        update={"evaluation": recipe.evaluation.model_copy(update={"data": {}})}
    )
    values = {
        "recipe": shown.model_dump(mode="json"),
        "comparison": compare([base, *folders], names, without=(LOSS,)).to_json(),
        "what": chain.descriptions(),
        "finished": [folder.name for folder in folders],
        "rounds": [{key: entry[key] for key in KEPT if key in entry} for entry in chain.drawn],
        "phases": phases_beside_measured(recipe, base, done, chain.drawn),
    }
    name = recipe.name.removeprefix("unit-").replace("-", "_")
    print(f"record: {write_record(name, values)}")


if __name__ == "__main__":
    main()
