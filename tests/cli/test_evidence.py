"""Runs of this machine as a file that can be sent: from training to a benchmark that reads it."""

import getpass
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

import evidence
from brimful.base.rundir import read_json
from brimful.hardware.evidence import read

Said = Callable[..., tuple[int, str, str]]


def test_runs_correct_the_next_plan_and_are_exported_without_names(
    said: Said,
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr(
        "brimful.hardware.calibrate.measure_matrix_rates", lambda *_: {"fp32": 1e11, "bf16": 2e11}
    )
    for name in ("one", "two", "three"):
        code, _, err = said("train", str(recipe_file), f"run.name={name}")
        assert code == 0, err
    plans = [read_json(tmp_path / "runs" / name / "plan.json") for name in ("one", "three")]
    corrections = [plan["memory_correction_bytes"] for plan in plans]
    assert corrections[0] == 0.0 != corrections[1]
    assert "earlier_runs" in {choice["name"] for choice in plans[1]["choices"]}

    file = tmp_path / "evidence.json"
    code, out, err = said("evidence", "export", str(file))

    assert (code, err) == (0, "")
    assert out == snapshot
    text = file.read_text()
    for name in (str(tmp_path), recipe_file.stem, socket.gethostname(), "story", "/"):
        assert name not in text.replace("n/a", ""), name
    assert getpass.getuser() not in {*text.split('"')}
    runs = read(file)
    assert {run.memory_kind for run in runs} == {runs[0].memory_kind}
    first = runs[0]
    # A correction is taken out of what is kept, so that none builds on another.
    assert [run.predicted["peak_memory_bytes"] for run in runs] == pytest.approx(
        [first.predicted["peak_memory_bytes"]] * 3, rel=0.2
    )
    assert [row.name for row in evidence.shown(runs)].count("peak_memory_bytes") == 1
    [again] = evidence.again(runs)
    assert abs(again.error) < 0.5


def test_nothing_to_export_is_said(said: Said, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    code, _, err = said("evidence", "export", str(tmp_path / "evidence.json"))

    assert code == 2
    assert err == snapshot
