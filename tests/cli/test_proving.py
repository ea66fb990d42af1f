"""`brimful prove` as it is called from a shell."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.hardware.probe import cpu_device
from brimful.prove.record import FAILED, Outcome, ProofRecord, machine_of

Said = Callable[..., tuple[int, str, str]]


@pytest.mark.long
def test_what_the_time_did_not_reach_is_named(
    tmp_path: Path, said: Said, snapshot: SnapshotAssertion
) -> None:
    folder = tmp_path / "proof"

    code, out, _ = said("prove", str(folder), "--device", "cpu", "--minutes", "1e-9")

    assert code == 0
    assert out == snapshot
    assert f"the rest: brimful prove {folder}" in out
    assert f"page: {folder}/index.html" in out
    assert len((folder / "functions.jsonl").read_text().splitlines()) > 100


def test_what_does_not_hold_is_told_by_the_exit_code(
    tmp_path: Path, said: Said, snapshot: SnapshotAssertion
) -> None:
    record = ProofRecord(tmp_path, machine_of(cpu_device()))
    record.add("gpt", Outcome(status=FAILED, what="memory ran out"))

    code, out, _ = said("prove", str(tmp_path), "--device", "cpu", "--minutes", "1e-9")

    assert code == 1
    assert out == snapshot


def test_bad_input_is_refused(tmp_path: Path, said: Said) -> None:
    (tmp_path / "prove.json").write_text(json.dumps({"machine": {}, "outcomes": {}}))

    for arguments, told in (
        (("--minutes", "0"), "--minutes 0.0 must be above 0"),
        (("--longest", "-1"), "--longest -1.0 must be above 0"),
        (("--only", "gpt,gptt", "--device", "cpu"), "no trial 'gptt' here. There are: documents"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        ((str(tmp_path), "--device", "cpu"), "Name another folder"),
    ):
        code, _, err = said("prove", *arguments)
        assert (code, told in err) == (2, True), err
