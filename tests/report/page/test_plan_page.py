"""The plan, its reasons, and the batch."""

from collections.abc import Callable
from pathlib import Path

from brimful.report.page.plan_page import plan_table, sequence_batch
from brimful.runs import read_run

MakeRun = Callable[..., Path]


def test_every_choice_of_the_plan_keeps_its_reason_and_runner_up(new_run: MakeRun) -> None:
    table = plan_table(read_run(new_run()))
    assert table is not None
    assert table.text_rows[1] == (
        "Micro batch",
        "8",
        "Largest that keeps 20 % of the free memory in reserve.",
        "4",
    )
    assert table.text_rows[3][1:] == ("no", "No C++ compiler was found on this machine.", "yes")


def test_the_batch_is_explained_with_its_remainder(new_run: MakeRun) -> None:
    plan = {"micro_batch": 5, "accumulation": 3, "remainder": 1, "effective_batch": 16}
    assert (
        sequence_batch(read_run(new_run(plan=plan)))
        == "Every optimizer step sees 16 sequences: 3 micro-batches of 5 + 1."
    )
    whole = {"micro_batch": 8, "accumulation": 1, "remainder": 0, "effective_batch": 8}
    assert (
        sequence_batch(read_run(new_run("whole", plan=whole)))
        == "Every optimizer step sees 8 sequences: 1 micro-batch of 8."
    )
