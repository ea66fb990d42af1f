"""The tab of runs: what is shown follows what is written; what is not below the folder is not
opened; runs are stopped, continued and exported by the commands that the page shows.
"""

import json
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from asked_pages import Page
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import BrimfulError, RequestError, RunFolderError
from brimful.base.types import JsonDict
from brimful.chains import pipeline
from brimful.faces.studio import runs
from brimful.faces.studio.jobs import Jobs
from brimful.faces.studio.library import Library
from brimful.faces.studio.runs import RunActs

PATIENCE_S = 300.0
SHAPE = "sequence_length: 32\nmodel: {architecture: llama, layers: 2, heads: 2, width: 32}\n"
PLAN = {
    "predicted": {"step_time_s": 0.1, "peak_memory_bytes": 1.5e9},
    "predicted_interval": {"step_time_s": [0.08, 0.12], "peak_memory_bytes": [8e8, 1.8e9]},
}


def write(folder: Path, steps: int, loss: float = 5.0) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "recipe.yaml").write_text(f"name: {folder.name}\n{SHAPE}")
    (folder / "plan.json").write_text(json.dumps(PLAN))
    records: list[JsonDict] = [{"kind": "start", "step": 0, "total_steps": 8}]
    records += [
        {"kind": "step", "step": step, "loss": loss - step / 8, "step_time_s": 0.1, "tokens": step}
        for step in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write(tmp_path / "runs" / name, 1)
    return tmp_path / "runs"


@pytest.fixture
def acts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunActs:
    """Of a page that may start what it likes, and looks at once again."""
    monkeypatch.setattr(runs, "POLL_S", 0.01)
    monkeypatch.setattr(runs, "DRAWN_EVERY_S", 0.0)
    return RunActs(Library(folder), Jobs(folder), starts=True)


@contextmanager
def watching(acts: RunActs, **values: Any) -> Iterator[Page]:
    """A page that watches a run until the block ends."""
    page = Page(**values)
    watches = threading.Thread(target=acts.watch, args=[page.asked])
    watches.start()
    try:
        yield page
    finally:
        page.asked.leave()
        watches.join()


def until(page: Page, slot: str, text: str) -> str:
    """What a place is told that holds a text, as soon as it is; it hangs for no longer than a
    machine can be busy.
    """
    ends_s = time.monotonic() + PATIENCE_S
    while not (found := [each for each in page.all(slot) if text in each]):
        assert time.monotonic() < ends_s, page.all(slot)
        time.sleep(0.01)
    return found[-1]


def test_a_run_shows_how_it_stands_and_is_drawn_again_when_something_was_written(
    acts: RunActs, folder: Path
) -> None:
    with (folder / "one" / "samples.jsonl").open("w") as samples:
        samples.write(json.dumps({"prompt": "the <b>", "completion": "{{cat}}"}) + "\n")
    with watching(acts, run="one") as page:
        shown = until(page, "runs-view", "1 of 8 steps")
        assert "the &lt;b&gt;</span>{{cat}}" in shown
        assert "environment.json (the machine and the versions) is not in the run folder" in shown
        assert "step 1/8" in until(page, "runs-live", "damaged: run.json")
        told = len(page.all("runs-view"))
        write(folder / "one", 3)
        shown = until(page, "runs-view", "3 of 8 steps")
        assert len(page.all("runs-view")) == told + 1
    for told_there in ("Time per optimizer step", "Where the time went", "data-chart="):
        assert told_there in shown


def test_an_error_is_told_once_until_something_is_written(
    acts: RunActs, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    looks = list[str]()

    def fail(run: Any) -> None:
        looks.append(run.name)
        raise ZeroDivisionError(run.name)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "run_view", fail)
        with watching(acts, run="one") as page:
            until(page, "runs-problem", "ZeroDivisionError: one")
            while len(looks) < 3:
                time.sleep(0.01)
            patch.undo()
            until(page, "runs-view", "1 of 8 steps")
            while page.has("runs-problem"):
                time.sleep(0.01)

    assert capsys.readouterr().err.count("Traceback") == 1


def test_a_run_that_vanishes_is_told_and_stays_drawn(acts: RunActs, folder: Path) -> None:
    with watching(acts, run="one") as page:
        shown = until(page, "runs-view", "1 of 8 steps")
        (folder / "one").rename(folder.parent / "elsewhere")
        assert "there is no run &#39;one&#39;" in until(page, "runs-problem", "no run")
        assert page.has("runs-view") == shown


def test_a_report_stands_in_a_frame_and_is_left_to_its_reader(
    acts: RunActs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[str]()
    monkeypatch.setattr(acts, "_pid", looks.append)
    with watching(acts, **{"run": "one", "as": "Report"}) as page:
        assert 'sandbox="allow-scripts" src="/report/one"' in until(page, "runs-view", "iframe")
        write(folder / "one", 3)
        before = len(looks)
        while len(looks) < before + 3:
            time.sleep(0.01)
    assert len(page.all("runs-view")) == 1


def test_nothing_chosen_is_nothing_shown(acts: RunActs) -> None:
    assert Page().after(acts.watch).all("runs-view") == [""]
    assert Page(compared="one").after(acts.compare).has("runs-comparison") == ""


@pytest.mark.parametrize("name", ["../one", "gone", "/etc"])
def test_other_folders_are_refused(acts: RunActs, name: str, refuses: Refuses) -> None:
    page = Page(run=name, compared=["one", name], kind="merged")
    for act in (acts.compare, acts.go_on, acts.export):
        with refuses(RunFolderError, names=[name]):
            act(page.asked)
    with refuses(RequestError, names=[name]):
        acts.stop(page.asked)
    with watching(acts, run=name) as page:
        until(page, "runs-problem", "there is no run")


def test_runs_are_compared_and_told_apart(acts: RunActs, folder: Path) -> None:
    names = [
        write(folder / place / "one", steps).relative_to(folder)
        for place, steps in (("a", 8), ("b", 5))
    ]
    (folder / "b" / "one" / "recipe.yaml").write_text(f"name: one\n{SHAPE.replace('32}', '64}')}")

    shown = Page(compared=[*map(str, names)]).after(acts.compare).has("runs-comparison")

    assert "<h2>one (a) and one (b)</h2>" in shown
    assert 'data-chart="' in shown
    assert "brimful compare a/one b/one" in shown


def test_runs_that_cannot_be_compared_are_told(
    acts: RunActs, folder: Path, refuses: Refuses
) -> None:
    (folder / "two" / "recipe.yaml").write_text("name: two\nmethod: classify\n")
    with refuses(BrimfulError):
        acts.compare(Page(compared=["one", "two"]).asked)
    with refuses(RequestError):
        acts.compare(Page(compared=["one"] * 9).asked)


def test_runs_are_listed_and_a_choice_stays_where_it_is_still_there(
    acts: RunActs, folder: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    write(folder / "three", 1)
    page = Page(run="two", compared=["one", "gone"]).after(acts.listed)

    assert page.has("runs-run").count("<option") == 3
    assert "<option selected>two" in page.has("runs-run")
    assert page.has("runs-compared").count(" checked") == 1
    assert "All runs: 3" in page.has("runs-list")
    assert "selected" in Page(run="gone").after(acts.listed).has("runs-run")
    none = RunActs(Library(tmp_path / "none"), Jobs(tmp_path / "none"), starts=True)
    assert Page().after(none.listed).has("runs-list") == snapshot


def test_a_page_that_starts_nothing_offers_nothing(folder: Path) -> None:
    acts = RunActs(Library(folder), Jobs(folder), starts=False)
    with watching(acts, run="one") as page:
        until(page, "runs-view", "1 of 8 steps")
    assert page.all("runs-actions") == []


def test_a_run_that_begins_shows_what_it_prints_until_it_has_a_folder(
    acts: RunActs, folder: Path
) -> None:
    file = folder.parent / "no.yaml"
    acts._jobs.start("new", ["run", str(file)])
    listed = Page(wanted="new").after(acts.listed)

    assert "<option selected>new" in listed.has("runs-run")
    with watching(acts, run="new") as page:
        assert str(file) in until(page, "runs-live", "ended with exit code 2")


@pytest.fixture
def begun(
    tuning: MakeRecipe, acts: RunActs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The name of a run that another shell started, and that goes on until it is stopped."""
    monkeypatch.setenv("BRIMFUL_RUNS", str(folder))
    from brimful.faces.studio.fit_request import yaml_of

    recipe = tuning("training.steps=100000", "training.epochs=null", "run.name=long")
    file = folder.parent / "long.yaml"
    file.write_text(yaml_of(recipe))
    command = [sys.executable, "-m", "brimful", "train", str(file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        yield "long"
        process.kill()
    for each in acts._jobs._processes.values():
        each.kill()
        each.wait()


def step_of(page: Page) -> int:
    """The step that a page shows; 0 before the first."""
    found = re.match(r"<p>step (\d+)/", page.has("runs-live").strip())
    return int(found[1]) if found else 0


@pytest.mark.usefixtures("warm_processes")
def test_a_run_is_stopped_with_a_checkpoint_and_continued(acts: RunActs, begun: str) -> None:
    stopped_at = 0
    for continued in (False, True):
        with watching(acts, run=begun) as page:
            actions = until(page, "runs-actions", "kill -INT")
            while step_of(page) <= stopped_at:
                time.sleep(0.01)
            Page(run=begun).after(acts.stop)
            offered = until(page, "runs-actions", 'data-act="go-on"')
            until(page, "runs-live", "stopped at step")
            stopped_at = step_of(page)
        assert 'data-act="stop"' in actions
        assert "brimful train" in offered
        assert list((acts._library.folder / begun / "checkpoints").iterdir())
        if not continued:
            assert Page(run=begun).after(acts.go_on).told == [{"go": "runs"}]
    with pytest.raises(RequestError, match="no process of this machine writes 'long'"):
        acts.stop(Page(run=begun).asked)


@pytest.mark.usefixtures("warm_processes")
def test_a_finished_run_is_exported_by_the_command_that_is_shown(
    tuning: MakeRecipe, acts: RunActs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIMFUL_RUNS", str(folder))
    pipeline.train(tuning("training.steps=1", "run.name=done"), Console(quiet=True))
    with watching(acts, run="done") as page:
        assert "<option>merged</option>" in until(page, "runs-actions", 'data-act="export"')

    shown = Page(run="done", kind="merged").after(acts.export).has("runs-export")

    assert shlex.join(["brimful", "export", "done", "--merge"]) in shown
    assert (folder / "done" / "merged" / "config.json").is_file()
    with pytest.raises(RequestError, match="there is no export 'no'"):
        acts.export(Page(run="done", kind="no").asked)
    with pytest.raises(RequestError, match="nothing continues done"):
        acts.go_on(Page(run="done").asked)
