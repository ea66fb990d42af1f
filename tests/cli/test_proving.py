"""`brimful prove` as it is called from a shell."""

import json
import sys
from pathlib import Path

import pytest

from brimful import cli
from brimful.hardware.probe import cpu_device
from brimful.prove.record import FAILED, Outcome, ProofRecord, machine_of


def _said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["brimful", "prove", *arguments])
        with pytest.raises(SystemExit) as ending:
            cli.main()
    captured = capsys.readouterr()
    return int(ending.value.code or 0), captured.out, captured.err


def test_what_the_time_did_not_reach_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "proof"

    code, out, _ = _said(capsys, str(folder), "--device", "cpu", "--minutes", "1e-9")

    assert code == 0
    assert "0 of 0 trials held; 12 were not reached." in out
    assert f"the rest: brimful prove {folder}" in out
    assert f"page: {folder}/index.html" in out
    assert len((folder / "functions.jsonl").read_text().splitlines()) > 100


def test_what_does_not_hold_is_told_by_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = ProofRecord(tmp_path, machine_of(cpu_device()))
    record.add("gpt", Outcome(status=FAILED, what="memory ran out"))

    code, out, _ = _said(capsys, str(tmp_path), "--device", "cpu", "--minutes", "1e-9")

    assert code == 1
    assert "0 of 1 trial held" in out


def test_bad_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prove.json").write_text(json.dumps({"machine": {}, "outcomes": {}}))

    for arguments, told in (
        (("--minutes", "0"), "--minutes 0.0 must be above 0"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        ((str(tmp_path), "--device", "cpu"), "Name another folder"),
    ):
        code, _, err = _said(capsys, *arguments)
        assert (code, told in err) == (2, True), err
