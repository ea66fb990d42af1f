"""The offline chain as a record: a small model that is pre-trained here, tuned on a few
demonstrations, and on samples of its own that were verified.

python benchmarks/rft_offline.py [KEY=VALUE]...     # writes records/rft_offline.json; goes on where it stopped

Nothing is downloaded. Runs lie in the runs folder (BRIMFUL_RUNS) like those of `brimful run
unit-rft-offline`, and finished ones are not made again. A course's questions (its train.json),
where `evaluation.data` says where they lie, are scored with the variants as well.
"""

import sys

from brimful.base.env import keep_few_kernels, wait_politely

wait_politely()
keep_few_kernels()

from rich.console import Console  # noqa: E402 - the environment comes before torch

from brimful.base.rundir import read_json  # noqa: E402
from brimful.chains import pipeline, rounds  # noqa: E402
from brimful.recipe import load  # noqa: E402
from brimful.runs.files import STUDY_FILE  # noqa: E402
from record import write_record  # noqa: E402


def main() -> None:
    """Run the chain and keep its table, its tests and what was drawn."""
    recipe = load("unit-rft-offline", sys.argv[1:])
    rounds.run_rounds(recipe, Console(width=120))
    found = read_json(pipeline.folder_of(recipe) / STUDY_FILE)
    drawn = [
        {key: entry[key] for key in ("round", "seed", "seconds", "statistics", "trained_tokens")}
        for entry in found["rounds"]
    ]
    shown = recipe.model_copy(
        update={"evaluation": recipe.evaluation.model_copy(update={"data": {}})}
    )
    values = {
        "recipe": shown.model_dump(mode="json"),
        "comparison": found["comparison"],
        "what": found["what"],
        "rounds": drawn,
    }
    print(f"record: {write_record('rft_offline', values)}")


if __name__ == "__main__":
    main()
