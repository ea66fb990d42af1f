"""Scores, examples and the report inside a notebook."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.rundir import SCHEMA_VERSION
from brimful.notebook import results


def test_a_study_shows_its_table_first(
    tmp_path: Path, shown: Any, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "study.json").write_text('{"recipe": "ranks"}')
    (tmp_path / "study.md").write_text("| run | loss |\n| --- | --- |\n")
    results.examples(tmp_path)

    assert shown.outputs[0]["text/markdown"] == snapshot
    assert "text/html" not in shown.outputs[0]


def test_the_report_is_shown_in_a_frame_of_its_own(tmp_path: Path, shown: Any) -> None:
    (tmp_path / "run.json").write_text(
        json.dumps({"schema_version": SCHEMA_VERSION, "status": "finished"})
    )
    (tmp_path / "report.html").write_text('<html><body class="x">it\'s "done"</body></html>')
    results.report(tmp_path, height=400)

    (output,) = shown.outputs
    assert 'sandbox="allow-scripts" srcdoc="&lt;html&gt;' in output["text/html"]
    assert output["text/html"].count("<") == 2, "nothing of the page stands outside the frame"
    assert "height:400px" in output["text/html"]
    assert str(tmp_path / "report.html") in output["text/plain"]


@pytest.mark.parametrize(
    ("status", "newer", "written_anew"),
    [
        ("finished", "", False),
        ("running", "", True),
        ("finished", "metrics.jsonl", True),
        ("finished", "scores.json", True),
    ],
)
def test_an_old_report_is_written_anew(
    tmp_path: Path,
    shown: Any,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    newer: str,
    written_anew: bool,
) -> None:
    page = tmp_path / "report.html"

    def ask(words: list[str]) -> str:
        assert words == ["report", str(tmp_path)]
        page.write_text("as it stands")
        return ""

    monkeypatch.setattr(results, "run_command", ask)
    (tmp_path / "run.json").write_text(
        json.dumps({"schema_version": SCHEMA_VERSION, "status": status})
    )
    (tmp_path / "metrics.jsonl").write_text("")
    page.write_text("of an hour ago")
    if newer:
        (tmp_path / newer).write_text("")
        os.utime(tmp_path / newer, (time.time() + 9, time.time() + 9))
    results.report(tmp_path)
    assert ("as it stands" in shown.html) == written_anew


def test_what_cannot_be_shown_is_told(
    tmp_path: Path, shown: Any, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.chdir(tmp_path)
    with refuses(RequestError):
        results.report(tmp_path, height=10)
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    with refuses(RunFolderError):
        results.report("tinny")
    assert shown.outputs == []
