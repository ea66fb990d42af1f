"""Outcomes are kept as they end, and only of one machine with one set of versions."""

from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError, RunFolderError
from brimful.prove.record import FAILED, FILE_NAME, HELD, Measured, Outcome, ProofRecord

MACHINE = {"device": "NVIDIA H200", "torch": "2.13.0"}


def test_outcomes_are_read_back_in_the_order_in_which_they_ended(tmp_path: Path) -> None:
    step = Measured(key="step_time_s", predicted=1.0, low=0.9, high=1.2, measured=1.25)
    first = Outcome(status=HELD, what="20 steps", seconds=3.5, measured=(step,), facts={"n": 20})
    record = ProofRecord(tmp_path, MACHINE)
    record.add("b", Outcome(status=FAILED, what="memory ran out"))
    record.add("a", first)
    record.add("b", Outcome(status=HELD, what="ran"))

    again = ProofRecord(tmp_path, MACHINE).outcomes

    assert list(again) == ["a", "b"]
    assert again["a"] == first
    assert again["b"].status == HELD
    assert again["a"].measured[0].judgement.inside == "outside"


def test_a_record_of_another_machine_is_not_added_to(tmp_path: Path, refuses: Refuses) -> None:
    ProofRecord(tmp_path, MACHINE).add("a", Outcome())

    with refuses(RequestError, names=["2.13.0", "2.14.0", "another folder"]):
        ProofRecord(tmp_path, MACHINE | {"torch": "2.14.0"})


@pytest.mark.parametrize("text", ["", "[]", '{"machine": {}, "outcomes": []}', '{"outcomes": {}}'])
def test_a_damaged_record_is_refused_with_a_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)

    with pytest.raises(RunFolderError, match="Delete it to begin anew"):
        ProofRecord(tmp_path, MACHINE)
