"""The verbs that look at runs, on runs that were really trained: what `brimful runs` tells to type
works, and `brimful watch` follows to the end.
"""

import io
import json
import shlex
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Brimful
from fixture_types import MakeRecipe
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.chains import pipeline
from brimful.chains.study import run_study
from brimful.report.listing.listing import find_runs
from brimful.report.live.watch import watch
from brimful.training.session import TrainingSession

QUIET = Console(file=io.StringIO())


class _PowerCutError(BaseException):
    """Ends a session where it stands: nothing that follows runs, but what tears down."""


def cut_off(
    monkeypatch: pytest.MonkeyPatch, train: Callable[[], object], *, after_saves: int
) -> None:
    """Run `train` until a checkpoint was saved so often, then end it as a power cut does."""
    saves, real = [0], TrainingSession.save

    def save(self: TrainingSession, progress: Any) -> None:
        real(self, progress)
        saves[0] += 1
        if saves[0] == after_saves:
            raise _PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(TrainingSession, "save", save)
        with pytest.raises(_PowerCutError):
            train()


def test_a_run_that_was_cut_off_is_listed_with_a_command_that_really_continues_it(
    tiny: MakeRecipe, brimful: Brimful, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cut_off(monkeypatch, lambda: pipeline.train(tiny(), QUIET), after_saves=1)
    (tmp_path / "runs" / "tiny").rename(tmp_path / "runs" / "renamed")
    (entry,) = json.loads(brimful("runs", "--json").out)
    assert (entry["name"], entry["state"], entry["step"], entry["total_steps"]) == (
        "renamed",
        "interrupted",
        6,
        12,
    )
    assert entry["points"][0].startswith("recovery point: step 6, ")
    said = brimful(*shlex.split(entry["command"])[1:])
    assert said.code == 0, said
    assert "continuing from the checkpoint of step 6; 0 steps are done again" in said.out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["renamed"]
    (entry,) = json.loads(brimful("runs", "--json", "--check").out)
    assert (entry["state"], entry["told"]) == ("finished", "finished: 12 steps")
    assert entry["command"] == 'brimful generate renamed --prompt "..."'
    assert [each["is_sound"] for each in entry["checked"]] == [True] * len(entry["checked"])
    assert {each["what"].partition("/")[0] for each in entry["checked"]} == {"checkpoints", "model"}
    assert brimful(*shlex.split(entry["command"])[1:], "--tokens", "2").code == 0


def test_a_study_that_was_cut_off_is_listed_with_a_command_that_finishes_it(
    tiny: MakeRecipe, brimful: Brimful, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    recipe = tiny(
        "study={variants: {low: [optimizer.learning_rate=1e-3], high: []}}",
        "training.steps=4",
        "evaluation.every=2",
        "name=s",
    )
    cut_off(monkeypatch, lambda: run_study(recipe, QUIET), after_saves=2)
    text = brimful("runs").out
    assert "0 of 2 runs finished" in text or "1 of 2 runs finished" in text
    entries = {entry["name"]: entry for entry in json.loads(brimful("runs", "--json").out)}
    command = entries["s"]["command"]
    assert all(
        entry["command"] == command
        for name, entry in entries.items()
        if entry["state"] == "interrupted"
    )
    watched = brimful("watch", "s")
    assert (watched.code, watched.out.splitlines()[-1]) == (0, f"to go on: {command}")
    assert brimful(*shlex.split(command)[1:]).code == 0
    entries = {entry["name"]: entry for entry in json.loads(brimful("runs", "--json").out)}
    assert entries["s"]["state"] == "finished"
    assert entries["s"]["told"] == snapshot
    assert brimful("watch", "s").out.splitlines()[-1] == snapshot


def test_a_run_in_a_mirror_is_listed_watched_and_continued_from_there(
    tiny: MakeRecipe, brimful: Brimful, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mirror = tmp_path / "drive"
    assert pipeline.train(tiny(f"run.mirror={mirror}"), QUIET).trained_now
    shutil.rmtree(tmp_path / "runs")
    (entry,) = json.loads(brimful("runs", mirror, "--json", "--check").out)
    assert entry["state"] == "finished"
    assert all(each["is_sound"] for each in entry["checked"])
    assert brimful("watch", mirror / "tiny").out.splitlines()[-1] == "finished: 12 steps"
    assert brimful(*shlex.split(entry["command"])[1:]).code == 0
    assert [entry.state for entry in find_runs(tmp_path / "runs")] == ["finished"]


def test_a_run_is_watched_while_it_trains(
    tiny: MakeRecipe, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    folder, file = tmp_path / "runs" / "tiny", io.StringIO()
    watcher = threading.Thread(
        target=watch, args=(folder, Console(file=file, width=80)), daemon=True
    )
    watcher.start()
    pipeline.train(tiny(), QUIET)
    watcher.join(timeout=300)
    assert not watcher.is_alive()
    lines = file.getvalue().splitlines()
    assert lines[0] == snapshot
    assert lines[-1] == "finished: 12 steps"


def test_looking_exits_with_zero_and_a_check_that_finds_damage_with_one(
    tiny: MakeRecipe, brimful: Brimful, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    pipeline.train(tiny(), QUIET)
    for arguments in (("watch", "tiny"), ("watch", "tiny", "--once")):
        said = brimful(*arguments)
        assert (said.code, said.out.splitlines()[-1]) == (0, "finished: 12 steps")
    listed = brimful("runs")
    assert (listed.code, listed.err) == (0, "")
    assert "tiny  finished: 12 steps" in listed.out
    assert brimful("runs", "--check").code == 0
    path = tmp_path / "runs" / "tiny" / "model" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    checked = brimful("runs", "--check")
    assert checked.code == 1
    assert "model: DAMAGED: model.safetensors is damaged" in checked.out
    assert checked.out.rstrip().endswith(" sound, 1 damaged")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("watch", "nothing", "--once"), "no run 'nothing'"),
        (("runs", "nowhere"), "nowhere does not exist"),
        (("runs", "."), "is not a folder of runs"),
    ],
)
def test_what_is_no_run_and_no_folder_of_runs_is_one_message(
    brimful: Brimful,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    said = brimful(*arguments)
    assert (said.code, said.err.count("brimful: ")) == (2, 1)
    assert told in said.err


def test_an_empty_folder_of_runs_is_a_friendly_line(
    brimful: Brimful, snapshot: SnapshotAssertion
) -> None:
    said = brimful("runs")
    assert said.code == 0
    assert said.out == snapshot


def test_no_control_character_of_a_run_reaches_the_terminal(
    tiny: MakeRecipe, brimful: Brimful, tmp_path: Path
) -> None:
    """Neither from its files nor from its name."""
    pipeline.run(tiny("training.steps=6"), QUIET)
    runs = tmp_path / "runs"
    for name in ("tiny", "odd"):
        shutil.copytree(runs / "tiny", runs / "odd", dirs_exist_ok=True)
        path = runs / name / "recipe.yaml"
        values = path.read_text().replace("name: tiny", 'name: "t\\e[2Jiny\\u202e"')
        path.write_text(values)
    for command in (
        ("compare", "tiny", "odd"),
        ("compare", "tiny", "odd", "--markdown"),
        ("report", "odd"),
    ):
        said = brimful(*command)
        assert said.code == 0, said
        assert not {"\x1b", "\u202e"} & {*said.out, *said.err}
