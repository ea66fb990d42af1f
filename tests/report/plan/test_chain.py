"""The phases of a chain in lines."""

from syrupy.assertion import SnapshotAssertion

from brimful.planning.chain import ChainPhase
from brimful.planning.plan import Prediction
from brimful.report.plan.chain import chain_lines

TRAINING = ChainPhase("training", Prediction(90.0, 60.0, 180.0, "rates"), 2 << 30, "2 of them")
SAMPLING = ChainPhase("sampling", Prediction(30.0, 10.0, 90.0, "rates"), None, "1 x 8 answers")


def test_each_phase_has_its_share_and_all_of_them_a_sum(snapshot: SnapshotAssertion) -> None:
    told = [" ".join(line.split()) for line in chain_lines([TRAINING, SAMPLING])]
    assert told == snapshot


def test_an_unknown_phase_leaves_the_sum_open(snapshot: SnapshotAssertion) -> None:
    unknown = ChainPhase("sampling", None, None, "not known before the questions are read")
    lines = chain_lines([TRAINING, unknown])
    assert lines == snapshot
    assert chain_lines([]) == []
