"""The plan, its reasons, and the batch."""

from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page.plan_page import sequence_batch
from brimful.runs.folder import read_run


def test_the_batch_is_explained_with_its_remainder(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    plan = {"micro_batch": 5, "accumulation": 3, "remainder": 1, "effective_batch": 16}
    assert sequence_batch(read_run(new_run(plan=plan))) == snapshot
    whole = {"micro_batch": 8, "accumulation": 1, "remainder": 0, "effective_batch": 8}
    assert sequence_batch(read_run(new_run("whole", plan=whole))) == snapshot
