"""What runs a folder holds: every state, half-written folders, studies with their members, mirrors;
nothing crashes and nothing is changed.
"""

import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MakeRun, Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.base.rundir import Lease
from brimful.base.types import JsonDict
from brimful.report.listing.listing import Listed, find_runs, freeable, planned_runs, sizes
from brimful.runs.facts import RecipeFacts
from brimful.runs.parsing import parse


def status(folder: Path, word: str) -> Path:
    (folder / "run.json").write_text(
        json.dumps({"schema_version": 1, "recipe": "quickstart", "status": word})
    )
    return folder


def by_name(listed: list[Listed]) -> dict[str, Listed]:
    return {entry.name: entry for entry in listed}


def study(folder: Path, **facts: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps({"recipe": "s", **facts}))
    (folder / "study.yaml").write_text(
        "name: s\nmethod: pretrain\nstudy:\n  variants: {a: [], b: []}\n  seeds: [1, 2]\n"
    )
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where `new_run` makes its runs, which is BRIMFUL_RUNS."""
    return tmp_path / "runs"


def test_every_run_has_its_state_score_and_size(
    new_run: MakeRun, runs: Path, snapshot: SnapshotAssertion
) -> None:
    status(new_run("done"), "finished")
    status(new_run("half", last_step=60), "stopped")
    found = by_name(find_runs(runs))
    assert (found["done"].state, found["done"].step, found["done"].total_steps) == (
        "finished",
        500,
        500,
    )
    assert found["done"].score == snapshot
    assert (found["half"].state, found["half"].step, found["half"].method) == (
        "stopped",
        60,
        "pretrain",
    )
    assert found["half"].score == snapshot
    assert found["done"].size_bytes == sum(
        path.stat().st_size for path in (runs / "done").rglob("*") if path.is_file()
    )


def test_what_changed_last_comes_first(new_run: MakeRun, runs: Path) -> None:
    for place, name in enumerate(("a", "b", "c")):
        for path in status(new_run(name, last_step=1), "stopped").rglob("*"):
            os.utime(path, (1000.0 + [1, 3, 2][place],) * 2)
    assert [entry.name for entry in find_runs(runs)] == ["b", "c", "a"]


def test_checkpoints_of_finished_runs_are_what_could_be_freed(
    new_run: MakeRun, runs: Path, snapshot: SnapshotAssertion
) -> None:
    for name, word in (("done", "finished"), ("half", "stopped")):
        folder = (
            status(new_run(name, last_step=500 if word == "finished" else 60), word)
            / "checkpoints"
            / "step-00000050"
        )
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"x" * 1000)
    found = find_runs(runs)
    assert [entry.checkpoint_bytes for entry in found] == [1000, 1000]
    assert freeable(found) == (1000, 1)
    assert by_name(found)["half"].points[0].partition(",")[0] == snapshot
    assert by_name(found)["done"].points == ()


def test_members_stand_under_their_study(
    new_run: MakeRun, runs: Path, snapshot: SnapshotAssertion
) -> None:
    folder = study(runs / "s")
    status(new_run("s/a-seed1"), "finished")
    status(new_run("s/b-seed1", last_step=60), "running")
    listed = find_runs(runs)
    assert [entry.name for entry in listed] == ["s", "s/a-seed1", "s/b-seed1"]
    assert [entry.is_member for entry in listed] == [False, True, True]
    assert (listed[0].kind, listed[0].state, listed[0].step, listed[0].total_steps) == (
        "study",
        "unfinished",
        1,
        4,
    )
    with Lease.acquire(folder / "b-seed1"):
        assert find_runs(runs)[0].told == snapshot
    study_facts = {"recipe": "s", "comparison": {"runs": []}, "left_out": {"b-seed2": "too large"}}
    (folder / "study.json").write_text(json.dumps(study_facts))
    assert (find_runs(runs)[0].state, find_runs(runs)[0].told) == snapshot


def test_a_chain_lists_its_drawings(
    new_run: MakeRun, runs: Path, snapshot: SnapshotAssertion
) -> None:
    folder = study(runs / "chain")
    (folder / "study.yaml").write_text(
        "name: chain\nmethod: sft\nrft: {rounds: 2, seeds: [1, 2]}\n"
    )
    status(new_run("chain/sft-seed1"), "finished")
    drawing = folder / "samples-1-seed1"
    drawing.mkdir()
    (drawing / "drawn.jsonl").write_text('{"decides": {}}\n{"id": "q1"}\n{"id": "q2"}\n')
    found = by_name(find_runs(runs))
    assert found["chain"].kind == "rounds"
    assert found["chain"].told == snapshot
    assert found["chain/samples-1-seed1"].told == snapshot
    (drawing / "sampling.json").write_text('{"statistics": {"fates": {"kept": 1}}}')
    assert by_name(find_runs(runs))["chain/samples-1-seed1"].told == snapshot


def test_a_drawing_tells_lost_samples_and_lost_facts(
    runs: Path, snapshot: SnapshotAssertion
) -> None:
    drawing = study(runs / "chain") / "samples-1"
    drawing.mkdir()
    (drawing / "drawn.jsonl").write_text('{"decides": {}}\n{"id": "q1"}\n')
    facts = drawing / "sampling.json"
    facts.write_text('{"records": 4}')

    def told() -> str:
        return " ".join(by_name(find_runs(runs))["chain/samples-1"].problems)

    assert told() == snapshot
    facts.write_text('{"records": 2}')
    assert told() == ""
    facts.write_text("{")
    assert told() == snapshot
    facts.unlink()
    assert told() == ""
    (drawing / "train.jsonl").write_text("{}\n")
    assert told() == snapshot


@pytest.mark.parametrize(
    ("recipe", "count"),
    [
        ({}, None),
        ({"study": {"variants": {"a": []}}}, 1),
        ({"rft": {"rounds": 2}}, 3),
        ({"study": 7}, None),
    ],
)
def test_how_many_runs_a_study_makes_is_read_from_its_recipe(
    recipe: JsonDict, count: int | None
) -> None:
    assert planned_runs(parse(RecipeFacts, recipe)) == count


def test_folders_of_folders_of_runs_are_looked_into(new_run: MakeRun, runs: Path) -> None:
    status(new_run("2026/november/a"), "finished")
    assert [entry.name for entry in find_runs(runs)] == ["2026/november/a"]


def test_a_run_or_a_study_by_itself_can_be_listed(new_run: MakeRun, runs: Path) -> None:
    status(new_run("s/a"), "finished")
    assert [entry.name for entry in find_runs(runs / "s" / "a")] == ["a"]
    shutil.copytree(study(runs / "other"), runs / "s", dirs_exist_ok=True)
    assert [entry.name for entry in find_runs(runs / "s")] == ["s", "s/a"]


def test_an_empty_or_absent_runs_folder_holds_no_runs(tmp_path: Path, runs: Path) -> None:
    assert find_runs(runs) == []
    runs.mkdir()
    assert find_runs(runs) == []


def test_what_is_no_folder_of_runs_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RunFolderError):
        find_runs(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("")
    with refuses(RunFolderError):
        find_runs(tmp_path / "file")
    (tmp_path / "photos" / "summer").mkdir(parents=True)
    with refuses(RunFolderError):
        find_runs(tmp_path / "photos")


def test_a_folder_that_cannot_be_read_is_not_called_empty(
    runs: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    runs.mkdir()
    monkeypatch.setattr(Path, "iterdir", refuse)
    with refuses(RunFolderError):
        find_runs(runs)


def test_half_written_runs_are_listed_with_what_is_wrong(
    new_run: MakeRun, runs: Path, snapshot: SnapshotAssertion
) -> None:
    status(new_run("whole"), "finished")
    (runs / "locked").mkdir()
    (runs / "locked" / Lease.FILE_NAME).write_text("{")
    os.utime(runs / "locked" / Lease.FILE_NAME, (time.time() - 60,) * 2)
    status(new_run("no-plan", last_step=3, plan=None), "stopped")
    status(new_run("bad-recipe", last_step=3, recipe="model: ["), "running")
    torn = status(new_run("torn", last_step=3), "running") / "metrics.jsonl"
    torn.write_bytes(torn.read_bytes()[:-10])
    found = by_name(find_runs(runs))
    assert {name: entry.state for name, entry in found.items()} == {
        "whole": "finished",
        "locked": "not started",
        "no-plan": "stopped",
        "bad-recipe": "damaged",
        "torn": "interrupted",
    }
    assert found["no-plan"].problems == snapshot
    assert found["torn"].problems == snapshot
    assert found["bad-recipe"].told == snapshot
    assert found["locked"].problems == snapshot


def test_scores_without_their_recipe_are_a_damaged_run(
    runs: Path, snapshot: SnapshotAssertion
) -> None:
    (runs / "base").mkdir(parents=True)
    (runs / "base" / "scores.json").write_text("{}")

    (entry,) = find_runs(runs)
    assert (entry.name, entry.state) == ("base", "damaged")
    assert entry.problems == snapshot


def test_any_part_of_any_file_may_be_missing_or_odd(new_run: MakeRun, runs: Path) -> None:
    """Random cuts and replacements in the files of a run; each is listed, and nothing is
    changed.
    """
    drawn = random.Random(5)
    odd = [
        b"",
        b"[]",
        b"7",
        b'"text"',
        b"null",
        b"{",
        b'{"status": []}',
        b"\x00" * 40,
        b'{"metrics": 7, "validation": [], "kind": "step"}\n',
        b"- a\n- b\n",
    ]
    for number in range(24):
        folder = status(
            new_run(f"r{number}", last_step=drawn.choice([3, 500])),
            drawn.choice(["finished", "running", "stopped"]),
        )
        for path in drawn.sample(sorted(path for path in folder.rglob("*") if path.is_file()), 2):
            content = path.read_bytes()
            path.write_bytes(
                drawn.choice([content[: drawn.randrange(len(content) + 1)], drawn.choice(odd)])
            )
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    listed = find_runs(runs)
    assert len(listed) == 24
    assert all(entry.told for entry in listed)
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before


def test_a_mirror_is_a_folder_of_runs_like_another(
    new_run: MakeRun, runs: Path, snapshot: SnapshotAssertion
) -> None:
    folder = status(new_run("tiny", last_step=60), "running")
    point = folder / "checkpoints" / "step-00000050"
    point.mkdir(parents=True)
    (point / "POINT.json").write_text("{}")
    (folder / "mirror.json").write_text(
        json.dumps(
            {"path": str(folder), "state": "ok", "since": 1.0, "durable_step": 50, "local_step": 60}
        )
    )
    (entry,) = find_runs(runs)
    assert entry.told.startswith("running: step 60 of 500 (as copied ")
    assert entry.points == snapshot
    assert entry.freeable_bytes == 0


def test_sizes_count_files_and_follow_no_links(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "run" / "a").write_bytes(b"x" * 10)
    (tmp_path / "run" / "checkpoints" / "step-1" / "b").write_bytes(b"x" * 100)
    (tmp_path / "large").write_bytes(b"x" * 10_000)
    (tmp_path / "run" / "link").symlink_to(tmp_path / "large")
    total, in_checkpoints, _ = sizes(tmp_path / "run")
    assert (in_checkpoints, total < 1000) == (100, True)
    assert sizes(tmp_path / "run", own=True)[0] < 100


def test_a_folder_that_cannot_be_read_hides_no_other(
    new_run: MakeRun, runs: Path, permissions_hold: None, snapshot: SnapshotAssertion
) -> None:
    for name in ("sound", "closed", "half"):
        status(new_run(name), "finished")
    (runs / "half" / "checkpoints").mkdir(exist_ok=True)
    for closed in (runs / "closed", runs / "half" / "checkpoints"):
        closed.chmod(0)
    found = by_name(find_runs(runs, check=True))
    for closed in (runs / "closed", runs / "half" / "checkpoints"):
        closed.chmod(0o700)
    assert found["sound"].state == "finished"
    assert found["closed"].told == snapshot
    for name in ("closed", "half"):
        (checked,) = found[name].checked or ()
        assert checked.is_sound is None
        assert "Permission denied" in checked.told
