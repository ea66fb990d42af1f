"""What counts in a trial's folder: everything but clocks, and the newest checkpoint."""

import json
from pathlib import Path

from json_lines import write_rows

from kill import differences, facts


def _run(folder: Path, *, loss: float = 1.5, seconds: float = 0.1) -> Path:
    run = folder / "runs" / "run"
    for step in (2, 4):
        checkpoint = run / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(bytes(step))
    step = {"kind": "step", "step": 4, "loss": loss, "step_time_s": seconds}
    rows = [step, {"kind": "checkpoint", "seconds": seconds}]
    write_rows(run / "metrics.jsonl", rows)
    (run / "scores.json").write_text(json.dumps({"test": {"loss": loss, "seconds": seconds}}))
    score = f'<td data-name="Loss">{loss}</td><td data-name="Tokens/s">{seconds}</td>'
    page = f'<section id="time">{seconds}</section><section id="scores">{score}</section>'
    (run / "report.html").write_text(page)
    return folder


def test_clocks_and_older_checkpoints_do_not_count(tmp_path: Path) -> None:
    one, other = _run(tmp_path / "one"), _run(tmp_path / "other", seconds=9.0)
    (other / "runs/run/checkpoints/step-00000002/model.safetensors").write_bytes(b"else")

    assert differences(facts(one), facts(other)) == []


def test_a_number_a_weight_and_a_missing_file_count(tmp_path: Path) -> None:
    one, other = _run(tmp_path / "one"), _run(tmp_path / "other", loss=1.25)
    newest = "runs/run/checkpoints/step-00000004/model.safetensors"
    (other / newest).write_bytes(b"else")
    (other / "runs/run/samples.jsonl").write_text("{}\n")

    names = ("metrics.jsonl", "report.html", "samples.jsonl", "scores.json")
    assert differences(facts(one), facts(other)) == [newest, *(f"runs/run/{n}" for n in names)]
