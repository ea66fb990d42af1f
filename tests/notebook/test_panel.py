"""A run as HTML and text, from its folder as it grows."""

import json
from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from brimful.base.rundir import Lease
from brimful.notebook.panel import CURVE_POINTS, RunPanel, curve, page, written_now

START = {
    "kind": "start",
    "step": 0,
    "total_steps": 40,
    "tokens_per_step": 512,
    "run": "tiny",
    "resumed": False,
}


def _step(step: int, loss: float = 3.0) -> dict[str, object]:
    return {
        "kind": "step",
        "step": step,
        "loss": loss,
        "learning_rate": 1e-3,
        "step_time_s": 0.5,
        "tokens_per_second": 1024.0,
        "skipped": 0,
    }


def _append(folder: Path, *records: dict[str, object], name: str = "metrics.jsonl") -> None:
    folder.mkdir(exist_ok=True)
    with open(folder / name, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_a_panel_follows_its_folder_and_starts_anew_where_the_journal_does(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    folder = tmp_path / "tiny"
    panel = RunPanel(folder)
    panel.look()
    assert (panel.heading(), panel.share, panel.lines) == ("", 0.0, [])

    _append(
        folder,
        START,
        _step(10),
        {"kind": "evaluation", "step": 10, "split": "validation", "loss": 2.5, "best": True},
    )
    panel.look()
    assert panel.heading() == snapshot
    assert panel.is_training
    assert panel.lines == snapshot
    assert ("validation", "2.500 (best at step 10)") in panel.fields()

    (folder / "metrics.jsonl").write_text("")
    _append(folder, START, _step(1))
    panel.look()
    assert panel.heading() == snapshot


def test_a_page_escapes_whatever_a_run_is_called_or_says(tmp_path: Path) -> None:
    panel = RunPanel(tmp_path / "<i>tiny")
    _append(
        panel.folder,
        START | {"run": "<script>"},
        {"kind": "event", "step": 3, "message": "<b>odd</b> & so on"},
    )
    panel.look()
    html, text = page(panel, "<u>study</u>", "training <now>", "running", ["<reading>"], ["a & b"])

    for wrong in ("<i>tiny", "<script>", "<b>odd", "<u>study", "<now>", "<reading>"):
        assert wrong not in html
    assert "&lt;b&gt;odd&lt;/b&gt; &amp; so on" in html
    assert "<b>odd</b> & so on" in text
    assert 'role="progressbar"' in html


def test_a_page_without_a_run_shows_what_the_process_says() -> None:
    html, text = page(None, "tiny", "working", "running", ["tokenising: 600"], [])

    assert "tokenising: 600" in html
    assert text.splitlines() == ["tiny: working", "tokenising: 600"]


def test_the_curve_stays_small_and_says_what_it_shows() -> None:
    drawn = curve([5.0 - 1e-5 * step for step in range(100_000)])

    assert drawn.count(",") <= CURVE_POINTS + 2
    assert 'aria-label="training loss from 5.000 to 4.000"' in drawn
    assert curve([1.0, 2.0]) == ""


def test_the_run_that_a_process_writes_is_found_among_those_of_a_study(tmp_path: Path) -> None:
    import os

    (tmp_path / "study" / "lora").mkdir(parents=True)
    assert written_now([tmp_path / "study"], None) is None
    with Lease.acquire(tmp_path / "study" / "lora"):
        assert written_now([tmp_path / "study"], os.getpid()) == tmp_path / "study" / "lora"
        assert written_now([tmp_path / "study" / "lora"], None) == tmp_path / "study" / "lora"
        assert written_now([tmp_path / "study"], os.getpid() + 1) is None
