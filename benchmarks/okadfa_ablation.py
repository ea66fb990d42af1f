"""The ablation of OKADFA as a record: softmax and kernel attention, backpropagation and feedback,
orthogonality, and the control, three seeds each.

python benchmarks/okadfa_ablation.py data.path=.../wikitext-2     # writes records/okadfa_ablation.json; goes on where it stopped

Runs lie in the runs folder (BRIMFUL_RUNS) like those of `brimful run okadfa-ablation`, and finished
ones are not made again. Each is made in a process of its own, because what a process needed at most
is the memory that is told of it.
"""

import statistics
import subprocess
import sys
from typing import Any

from brimful.base.env import keep_few_kernels, wait_politely

wait_politely()
keep_few_kernels()

from rich.console import Console  # noqa: E402 - the environment comes before torch

from brimful.base.rundir import read_journal, read_json  # noqa: E402
from brimful.chains import phases, study  # noqa: E402
from brimful.chains.phases import Member  # noqa: E402
from brimful.chains.study_folder import claim  # noqa: E402
from brimful.chains.study_members import train_and_score  # noqa: E402
from brimful.recipe import load  # noqa: E402
from brimful.runs.files import STUDY_FILE  # noqa: E402
from record import write_record  # noqa: E402

ONE = "member="
"""Before the number of the one run that a process makes."""


def main() -> None:
    """Run the study and keep its table and its tests."""
    recipe = load("okadfa-ablation", sys.argv[1:])
    claim(phases.folder_of(recipe), recipe, print)
    for number in range(len(phases.members(recipe))):
        subprocess.run([sys.executable, __file__, *sys.argv[1:], f"{ONE}{number}"], check=True)
    study.run_study(recipe, Console(width=200))
    found = read_json(phases.folder_of(recipe) / STUDY_FILE)
    shown = recipe.model_copy(
        update={"data": recipe.data.model_copy(update={"path": load("okadfa-ablation").data.path})}
    )
    values = {
        "recipe": shown.model_dump(mode="json"),
        "comparison": found["comparison"],
        "left_out": found["left_out"],
        "runs": [of_run(member) for member in phases.members(recipe)],
    }
    print(f"record: {write_record('okadfa_ablation', values)}")


def of_run(member: Member) -> dict[str, Any]:
    """What the means hide: one run's loss, gradient norms before clipping after the warm-up, and
    what was found inside its layers.
    """
    scores = read_json(member.folder / "scores.json")
    steps = [
        record
        for record in read_journal(member.folder / "metrics.jsonl")
        if record["kind"] == "step"
    ]
    norms = sorted(record["grad_norm"] for record in steps[len(steps) // 5 :])
    spread = {"median": statistics.median(norms), "min": norms[0], "max": norms[-1]}
    told = {
        "variant": member.variant,
        "seed": member.recipe.seed,
        "loss": scores["validation"]["loss"],
    }
    return {**told, "gradient_norm": spread, "layers": scores.get("layers")}


def make_one(overrides: list[str], number: int) -> None:
    """Train and score one member of the study."""
    train_and_score(phases.members(load("okadfa-ablation", overrides))[number], Console(width=120))


if __name__ == "__main__":
    if sys.argv[-1].startswith(ONE):
        make_one(sys.argv[1:-1], int(sys.argv[-1].removeprefix(ONE)))
    else:
        main()
