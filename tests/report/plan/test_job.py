"""The phases of a job in a table."""

from syrupy.assertion import SnapshotAssertion

from brimful.planning.job import JobPhase, WholeJob
from brimful.planning.plan import Prediction
from brimful.report.plan.job import job_table
from brimful.report.table import terminal_lines

MEMORY = Prediction(2 << 30, 1 << 30, 3 << 30, "a trace")
TRAINING = JobPhase(
    "training", "2 of them", Prediction(90.0, 60.0, 180.0, "rates"), MEMORY, 4 << 30
)
SAMPLING = JobPhase("sampling", "1 x 8 answers", Prediction(30.0, 10.0, 90.0, "rates"))


def test_each_phase_has_its_share_and_all_of_them_a_sum(snapshot: SnapshotAssertion) -> None:
    assert terminal_lines(job_table(WholeJob((TRAINING, SAMPLING)))) == snapshot


def test_an_unknown_phase_leaves_the_sum_open(snapshot: SnapshotAssertion) -> None:
    unknown = JobPhase("sampling", "not known before the questions are read", None)
    assert terminal_lines(job_table(WholeJob((TRAINING, unknown)))) == snapshot
