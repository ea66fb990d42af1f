"""The plan, its reasons, and the batch."""

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.plan_page import choice_table, sequence_batch
from brimful.runs.folder import read_run


def test_every_choice_of_the_plan_keeps_its_reason_and_runner_up(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    table = choice_table(read_run(new_run()).plan)
    assert table is not None
    assert table.text_rows[1] == snapshot
    assert table.text_rows[3][1:] == snapshot


def test_the_batch_is_explained_with_its_remainder(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    plan = {"micro_batch": 5, "accumulation": 3, "remainder": 1, "effective_batch": 16}
    assert sequence_batch(read_run(new_run(plan=plan))) == snapshot
    whole = {"micro_batch": 8, "accumulation": 1, "remainder": 0, "effective_batch": 8}
    assert sequence_batch(read_run(new_run("whole", plan=whole))) == snapshot
