"""Runs, a plan and a mirror that an earlier version wrote are opened, continued and reported.

`tests/fixtures/make_old_runs.py` made them, once; they are not made anew when formats change.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Captured
from safetensors.torch import load_file

from brimful.base.manifest import note_hashes
from brimful.base.types import JsonDict
from brimful.cli import main
from brimful.hardware.host import cpu_name

OLD_RUNS = Path(__file__).parent / "fixtures" / "old_runs"
MADE_IN = "/tmp/oldruns"  # noqa: S108 - a name in files, where nothing is written
KINDS = ("documents", "masked", "examples", "labels")
Brimful = Callable[..., str]


@pytest.fixture
def old_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old folder, which is the working folder, as if it had been made there, and its
    plan for this machine.
    """
    folder = tmp_path / "old"
    shutil.copytree(OLD_RUNS, folder)
    for path in folder.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        if MADE_IN in text:
            path.write_text(text.replace(MADE_IN, str(folder)), encoding="utf-8")
    saved = read_json(folder / "plan.json")
    saved["plan"]["device"]["name"] = cpu_name()
    (folder / "plan.json").write_text(json.dumps(saved), encoding="utf-8")
    for manifest in folder.glob("runs/*/model/MANIFEST.json"):
        note_hashes(manifest.parent)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("BRIMFUL_RUNS", str(folder / "runs"))
    return folder


@pytest.fixture
def brimful(old_runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Brimful:
    """`brimful("report", "runs/x")` runs a verb, expects success, and returns what it printed."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["brimful", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code in (0, None), printed.err
        return printed.out

    return run


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def records(folder: Path, kind: str) -> list[JsonDict]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, filter(None, lines)) if record["kind"] == kind]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unfinished_run_goes_on_and_ends_as_the_undisturbed_one_did(
    brimful: Brimful, old_runs: Path, kind: str
) -> None:
    """Up to what another processor rounds differently. It also plans anew there, so what is drawn for
    dropout must not depend on the choice: the old version padded its texts.
    """
    finished, folder = (old_runs / "runs" / f"{kind}-{end}" for end in ("finished", "unfinished"))
    assert read_json(folder / "run.json")["status"] == "running"
    first_start = records(folder, "start")[0]

    padded = ["plan.packing=padded"] if kind == "labels" else []
    brimful(
        "train",
        f"recipes/{kind}.yaml",
        f"run.name={kind}-unfinished",
        "run.folder=runs",
        "checkpoint.every=2",
        *padded,
    )

    assert read_json(folder / "run.json")["status"] == "finished"
    assert [start["step"] for start in records(folder, "start")] == [0, 4], "it was trained anew"
    assert records(folder, "start")[0] == first_start
    assert records(folder, "step")[-1]["step"] == 6
    files = {path.name for path in (finished / "model").iterdir()}
    assert files == {path.name for path in (folder / "model").iterdir()}
    for name in sorted(file for file in files if file.endswith(".safetensors")):
        expected, found = load_file(finished / "model" / name), load_file(folder / "model" / name)
        assert expected.keys() == found.keys()
        for key, tensor in expected.items():
            assert (tensor - found[key]).abs().max() < 1e-3, key


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run_is_reported_scored_and_listed(
    brimful: Brimful, old_runs: Path, kind: str
) -> None:
    name = f"{kind}-finished"
    folder = old_runs / "runs" / name
    scored = {path.name for path in folder.rglob("*.json")}

    assert "is finished; nothing to train" in brimful(
        "run", f"recipes/{kind}.yaml", f"run.name={name}", "run.folder=runs"
    )
    assert "Peak memory" in brimful("report", f"runs/{name}")
    assert name in (folder / "report.html").read_text(encoding="utf-8")
    assert name in brimful("runs", "runs")
    assert json.loads(brimful("evaluate", f"runs/{name}", "--json"))
    assert scored <= {path.name for path in folder.rglob("*.json")}


def test_finished_and_unfinished_runs_are_listed_watched_and_compared(brimful: Brimful) -> None:
    listed = json.loads(brimful("runs", "runs", "--json"))
    assert len(json.dumps(listed).split("-unfinished")) > len(KINDS)
    assert "documents-unfinished" in brimful("watch", "runs/documents-unfinished", "--once")
    compared = brimful("compare", "runs/documents-finished", "runs/documents-unfinished")
    assert "documents-finished" in compared


@pytest.mark.parametrize("kind", ["documents", "examples"])
def test_an_old_model_writes(brimful: Brimful, kind: str) -> None:
    brimful("generate", f"runs/{kind}-finished", "--prompt", "red", "--tokens", "3")


def test_an_old_classifier_predicts(brimful: Brimful, old_runs: Path) -> None:
    Path("new.csv").write_text("text\nwin cash now\n")
    brimful("predict", "runs/labels-finished", "new.csv", "--output", "labelled.csv")
    assert len(Path("labelled.csv").read_text().splitlines()) == 2


def test_an_old_plan_is_trained_by(brimful: Brimful, old_runs: Path) -> None:
    options = ("run.name=planned", "run.folder=runs", "--plan", "plan.json")
    brimful("train", "recipes/examples.yaml", *options)
    plan = read_json(old_runs / "plan.json")["plan"]
    trained = read_json(old_runs / "runs" / "planned" / "plan.json")
    for name in ("precision", "packing", "recompute", "loss_chunk", "compile"):
        assert trained[name] == plan[name]


def test_a_run_comes_back_from_an_old_mirror(brimful: Brimful, old_runs: Path) -> None:
    folder = old_runs / "runs" / "mirrored"
    assert not folder.exists()
    printed = brimful(
        "run",
        "recipes/documents.yaml",
        "run.name=mirrored",
        "run.folder=runs",
        "run.mirror=mirror",
    )
    assert "mirror" in printed
    assert read_json(folder / "run.json")["status"] == "finished"
    assert load_file(folder / "model" / "model.safetensors")


def test_runs_read_alike_in_another_time_zone_and_locale(old_runs: Path) -> None:
    def listed(zone: str, locale: str) -> list[JsonDict]:
        done = subprocess.run(
            [sys.executable, "-m", "brimful", "runs", str(old_runs / "runs"), "--json"],
            env={**os.environ, "TZ": zone, "LC_ALL": locale, "PYTHONUTF8": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        rows: list[JsonDict] = json.loads(done.stdout)
        # How long ago a point was made changes from one command to the next.
        return [{name: row[name] for name in row if name != "points"} for row in rows]

    here = listed("UTC", "C.UTF-8")

    assert len(here) == 2 * len(KINDS)
    assert listed("Asia/Kathmandu", "C.UTF-8") == here
    assert listed("Pacific/Kiritimati", "C") == here
