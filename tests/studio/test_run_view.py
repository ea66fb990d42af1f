"""A run, several, and all of them as pieces of the page, from whatever their folders hold."""

import json
from pathlib import Path
from typing import Any

from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.report.listing.listing import find_runs
from brimful.studio.run_view import comparison_view, list_view, report_view, run_view

RECIPE = (
    "name: NAME\nseed: SEED\nsequence_length: 32\nmodel: {architecture: llama, layers: 2, heads: 2,"
    " width: 32}\n"
)
PLAN = {
    "predicted": {"step_time_s": 0.1, "peak_memory_bytes": 1.5e9},
    "predicted_interval": {"step_time_s": [0.08, 0.12], "peak_memory_bytes": [8e8, 1.8e9]},
}


def make_run(folder: Path, name: str, *, steps: int = 8, loss: float = 5.0, **files: Any) -> Path:
    run = folder / name
    run.mkdir(parents=True)
    records: list[dict[str, Any]] = [
        {"kind": "start", "step": 0, "total_steps": 8, "tokens_per_step": 256}
    ]
    records += [
        {
            "kind": "step",
            "step": step,
            "loss": loss - step / 8,
            "step_time_s": 0.1 if step > 1 else 2.0,
            "tokens": step * 256,
            "memory_bytes": 10**9,
        }
        for step in range(1, steps + 1)
    ]
    records += (
        [{"kind": "end", "step": 8, "seconds": 9.0, "reason": "finished"}] if steps == 8 else []
    )
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (run / "recipe.yaml").write_text(RECIPE.replace("NAME", name))
    (run / "plan.json").write_text(json.dumps(PLAN))
    for file, text in files.items():
        (run / file.replace("_", ".")).write_text(text)
    return run


def test_a_run_shows_predictions_times_curves_and_samples(tmp_path: Path) -> None:
    sample = json.dumps({"prompt": "the <b>", "completion": "{{cat}}"})
    shown = run_view(make_run(tmp_path, "one", samples_jsonl=sample + "\n"))

    assert "finished: 8 steps" in shown
    assert "Time per optimizer step" in shown
    assert 'class="error-close"' in shown
    assert 'class="error-far"' in shown
    assert "<span>inside</span>" in shown
    assert "Rough guesses, not counted" in shown
    assert "Where the time went" in shown
    assert 'data-chart="&#123;&#34;block&#34;:&#34;Chart&#34;' in shown
    assert "the &lt;b&gt;</span>&#123;&#123;cat&#125;&#125;" in shown


def test_a_half_written_run_says_what_is_missing(tmp_path: Path) -> None:
    run = make_run(tmp_path, "torn", steps=3)
    (run / "plan.json").write_text('{"predicted": {')
    with (run / "metrics.jsonl").open("a") as journal:
        journal.write('{"kind": "step", "ste')
    shown = run_view(run)

    assert "unfinished: 3 of 8 steps" in shown
    assert "plan.json (the plan and its predictions) cannot be read" in shown
    assert "environment.json (the machine and the versions) is not in the run folder" in shown


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RunFolderError):
        run_view(tmp_path)


def test_a_report_stands_in_a_frame(tmp_path: Path) -> None:
    shown = report_view(make_run(tmp_path, "one"))

    assert shown.startswith(
        '<iframe class="report" title="Report of one" sandbox="allow-scripts" srcdoc="&lt;!doctype html&gt;'
    )
    assert shown.count("<") == 2


def test_runs_are_compared_with_their_curves(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "one"), make_run(tmp_path, "two", loss=4.0, steps=5)]
    (runs[1] / "recipe.yaml").write_text(
        RECIPE.replace("NAME", "two").replace("layers: 2", "layers: 3")
    )
    shown = comparison_view(runs)

    assert "<h2>one and two</h2>" in shown
    assert 'data-chart="' in shown


def test_all_runs_are_listed_with_what_to_type(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    make_run(tmp_path, "one")
    shown = list_view(find_runs(tmp_path), tmp_path)

    assert '<th scope="row">one</th>' in shown
    assert "All runs: 1" in shown
    assert list_view([], tmp_path) == snapshot


def test_two_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / place, "one", steps=steps)
        for place, steps in (("laptop", 8), ("server", 5))
    ]
    shown = comparison_view(runs)

    assert "<h2>one (laptop) and one (server)</h2>" in shown
    for name in ("one (laptop)", "one (server)"):
        assert f'<th scope="row">{name}</th>' in shown
        assert f"</i>{name}</li>" in shown
