"""The offline study as a record: an untuned model beside LoRA of several ranks, QLoRA and full
tuning, on the Python that is on this machine.

python benchmarks/code_offline.py [KEY=VALUE]...     # writes records/code_offline.json; half an hour on 2 cores, goes on where it stopped

Nothing is downloaded. Runs lie in the runs folder (BRIMFUL_RUNS) like those of `brimful run
code-offline`, and finished ones are not trained again.
"""

import sys

from brimful.base.env import keep_few_kernels, wait_politely

wait_politely()
keep_few_kernels()

from rich.console import Console  # noqa: E402 - the environment comes before torch

from brimful.base.rundir import read_json  # noqa: E402
from brimful.chains import phases, study  # noqa: E402
from brimful.recipe import load  # noqa: E402
from brimful.runs.files import STUDY_FILE  # noqa: E402
from record import write_record  # noqa: E402


def main() -> None:
    """Run the study and keep its table, its tests and what it ran."""
    recipe = load("code-offline", sys.argv[1:])
    study.run_study(recipe, Console(width=120))
    folder = phases.folder_of(recipe)
    found = read_json(folder / STUDY_FILE)
    counts = read_json(next(member.folder for member in phases.members(recipe)) / "data.json")[
        "splits"
    ]
    values = {
        "recipe": recipe.model_dump(mode="json"),
        "examples": counts,
        "left_out": found["left_out"],
        "comparison": found["comparison"],
    }
    print(f"record: {write_record('code_offline', values)}")


if __name__ == "__main__":
    main()
