"""What a model learns from its own answers, by method, at equal trained tokens, as a record.

python benchmarks/preferences_learned.py [KEY=VALUE]...     # goes on where it stopped

Nothing is downloaded. `unit-dpo-smollm2` tunes SmolLM2-135M-Instruct on a few demonstrations (sft),
draws answers of it, which a verifier judges, and teaches it to prefer right ones (dpo-1). From the
same model and on as many tokens it is tuned on more of the demonstrations (sft-longer), on its
right answers beside them (rft), and on single judged answers (kto). Runs lie in the runs folder
(BRIMFUL_RUNS), and finished ones are not made again. The record is written anew after every seed.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from brimful.base.env import keep_few_kernels, wait_politely

wait_politely()
keep_few_kernels()

from rich.console import Console  # noqa: E402 - the environment comes before torch

from brimful.chains.phases import (  # noqa: E402
    DEMONSTRATIONS_FILE,
    BaseScores,
    Member,
    RoundSampling,
)
from brimful.chains.round_chain import RoundChain, trained_tokens  # noqa: E402
from brimful.chains.study_members import score_base, train_and_score  # noqa: E402
from brimful.recipe import BASE, load, with_changes  # noqa: E402
from brimful.report.comparison.compare import compare  # noqa: E402
from brimful.report.comparison.results import LOSS  # noqa: E402
from brimful.selection.journal import PAIRS_FILE, TRAINING_FILE  # noqa: E402
from record import write_record  # noqa: E402

RECIPE, TOKENS = "unit-dpo-smollm2", 32_000
SMALL = (
    "rft.tuned_first=[optimizer.learning_rate=1.0e-3,'training={tokens: 48000}']",
    "rft.questions.max_questions=400",
    f"training={{tokens: {TOKENS}}}",
    "evaluation.max_examples=200",
    "rft.seeds=[2,3,1]",
)
SUPERVISED = ("method=sft", "preference=null", "optimizer.learning_rate=1.0e-3")


def main() -> None:
    """Do all seeds, one after the other."""
    recipe = load(RECIPE, [*SMALL, *sys.argv[1:]])
    console = Console(width=120)
    chain = RoundChain.begin(recipe, console, fresh=False, accept=())
    runs: list[Member] = []
    for phase in chain.phases:
        if isinstance(phase, BaseScores):
            continue
        chain.do(phase)
        if isinstance(phase, RoundSampling):
            drawing = phase
            continue
        runs.append(phase)
        if phase.variant != "sft":
            for other in others(phase, drawing.folder, chain.folder):
                train_and_score(other, console)
                runs.append(other)
            base = score_base(chain.done, chain.folder, console)
            record("preferences_learned", chain, runs, base)


def others(taught: Member, samples: Path, folder: Path) -> Iterator[Member]:
    """Yield the same training by other methods, from the same model."""
    demonstrations = folder / DEMONSTRATIONS_FILE
    of_method = {
        "sft-longer": (*SUPERVISED, f"data.path={demonstrations}"),
        "rft": (*SUPERVISED, f"data.path=[{demonstrations},{samples / TRAINING_FILE}]"),
        "kto": (
            "method=kto",
            "preference.sft_weight=null",
            "optimizer.learning_rate=1.0e-4",
            f"data.path={samples / PAIRS_FILE}",
        ),
    }
    for name, changes in of_method.items():
        yield beside(taught, name, changes, folder)


def beside(taught: Member, name: str, changes: Sequence[str], folder: Path) -> Member:
    """Return a training from the same model and with the same seed, by another method."""
    # Checked without the adapters to go on with, whose own targets nobody may name.
    without = taught.recipe.model_copy(update={"adapter": None})
    changed = with_changes(without, changes, f"variant {name}")
    run = changed.run.member(taught.folder.name.replace(taught.variant, name), folder)
    kept = {"run": run, "adapter": taught.recipe.adapter}
    return Member(name, changed.model_copy(update=kept))


def record(name: str, chain: RoundChain, runs: list[Member], base: Path, **more: Any) -> None:
    """Write the table, what was drawn, and how many tokens each run was trained on."""
    names = [BASE, *(run.variant for run in runs)]
    values = {
        "recipe": chain.recipe.model_dump(mode="json"),
        "comparison": compare(
            [base, *(run.folder for run in runs)], names, without=(LOSS,)
        ).to_json(),
        "trained_tokens": {run.folder.name: trained_tokens(run.folder) for run in runs},
        "rounds": [
            {key: each[key] for key in ("seed", "statistics", "examples")} for each in chain.drawn
        ],
        **more,
    }
    print(f"record: {write_record(name, values)}")


if __name__ == "__main__":
    main()
