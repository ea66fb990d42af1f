"""The phases of a chain in lines."""

from brimful.planning.chain import ChainPhase
from brimful.planning.plan import Prediction
from brimful.report.plan.chain import chain_lines

TRAINING = ChainPhase("training", Prediction(90.0, 60.0, 180.0, "rates"), 2 << 30, "2 of them")
SAMPLING = ChainPhase("sampling", Prediction(30.0, 10.0, 90.0, "rates"), None, "1 x 8 answers")


def test_each_phase_has_its_share_and_all_of_them_a_sum() -> None:
    told = [" ".join(line.split()) for line in chain_lines([TRAINING, SAMPLING])]
    assert told[1] == "training 75% 1m 30s 1m 00s to 3m 00s 2.00 GiB"
    assert told[3] == "sampling 25% 30.0 s 10.0 s to 1m 30s"
    assert told[-1] == "in all 2m 00s 1m 10s to 4m 30s"


def test_an_unknown_phase_leaves_the_sum_open() -> None:
    unknown = ChainPhase("sampling", None, None, "not known before the questions are read")
    lines = chain_lines([TRAINING, unknown])
    assert lines[-1].endswith("not known, as one of the phases is not")
    assert "%" not in lines[1]
    assert chain_lines([]) == []
