"""Before its first step a run prints few lines, as wide as the terminal; all of it on request."""

import re
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MakeRecipe
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import Interrupted
from brimful.base.rundir import read_json
from brimful.chains import pipeline
from brimful.chains.opening import MOST_LINES, Opening, greeting
from brimful.hardware.probe import cpu_device
from brimful.recipe import Recipe, load
from brimful.training import loop
from brimful.training.admission import Admission

pytestmark = pytest.mark.filterwarnings("ignore")  # peft warns about itself
WIDTH = 80
LONG = "a reason with many words " * 5


def _opening(said: list[list[str]], *, explain: bool = False) -> list[str]:
    file = StringIO()
    opening = Opening(Console(file=file, width=40), explain=explain)
    for lines, before in zip(said, ("data", "plan", "steps"), strict=False):
        opening.say(lines, before)
    return file.getvalue().splitlines()


def test_what_fits_is_printed_as_it_is() -> None:
    assert _opening([["a", "b"], ["c"], ["d"]]) == ["a", "b", "c", "d"]


def test_what_does_not_fit_is_counted_and_the_plan_keeps_its_place(
    snapshot: SnapshotAssertion,
) -> None:
    lines = _opening([["title", "machine"], [f"note {n}" for n in range(9)], ["x", "y", "z"]])

    assert lines[-3:] == ["x", "y", "z"]
    assert lines[6] == snapshot
    assert len(lines) == MOST_LINES - 2


def test_a_long_line_is_wrapped_or_left_out_as_a_whole() -> None:
    shown = _opening([["title"], ["short", LONG, LONG]])

    assert shown == [
        "title",
        "short",
        *_opening([[LONG]]),
        "(1 more line with --explain)",
    ]
    assert max(map(len, shown)) <= 40


def test_all_of_it_is_printed_on_request() -> None:
    lines = _opening([["title"], [LONG] * 20], explain=True)

    assert len(lines) > 60
    assert "more line" not in lines[-1]


def test_no_limit_hides_what_is_lost() -> None:
    """It comes first, and takes no other line its place."""
    lost = [f"note {code}: {LONG}" for code in ("B205", "B220", "B216")]
    others = [f"fact {n}" for n in range(4)]

    shown = _opening([["title"], [*others, *lost], ["plan"]])

    assert shown == ["title", *_opening([lost]), *others, "plan"]


def _before_the_first_step(recipe: Recipe, *, explain: bool = False) -> list[str]:
    file = StringIO()
    pipeline.train(recipe, Console(file=file, width=WIDTH), explain=explain)
    told = file.getvalue()
    first = re.search(r"^step [1-9]\d*/\d+ \(", told, re.MULTILINE)
    assert first is not None
    return told[: first.start()].splitlines()


def _check(lines: list[str], name: str) -> None:
    """Few lines, none too long, the plan among them."""
    assert len(lines) <= MOST_LINES, lines
    assert max(map(len, lines)) <= WIDTH
    assert not [line for line in lines if line.endswith("…")]
    assert lines[0].startswith(name)
    (plan,) = [number for number, line in enumerate(lines) if line.startswith("plan: ")]
    assert re.match(r"plan: .+ of .+iB, ", lines[plan])
    assert lines[plan + 1].startswith("  a step: ")
    assert "--explain" in lines[plan + 2]


def test_a_fresh_model(tiny: MakeRecipe) -> None:
    """Also with a description of many lines: what is trained is said in its place."""
    recipe = tiny(f"description={LONG * 3}", "training.steps=2")

    lines = _before_the_first_step(recipe)

    _check(lines, "tiny: a fresh llama model")


def test_a_session_is_told_beside_a_plan_however_much_there_is_to_say(
    tiny: MakeRecipe,
) -> None:
    recipe = tiny("training.steps=2", "run.session=1h", "data.duplicates=drop")

    lines = _before_the_first_step(recipe)

    _check(lines, "tiny")
    assert sum(line.startswith("this session of 1h ") for line in lines) == 1
    assert sum(line.startswith("Sessions: 1 session of 1h") for line in lines) == 1
    assert not any("checkpoint.every" in line for line in lines)


def test_a_tuning(tuning: MakeRecipe) -> None:
    _check(_before_the_first_step(tuning("training.steps=2")), "tuned")


@pytest.mark.parametrize("encoder", ["bert"], indirect=True)
def test_a_classifier(labels_recipe_file: Path, encoder: Path) -> None:
    recipe = load(str(labels_recipe_file), ["training.steps=2"])

    _check(_before_the_first_step(recipe), recipe.name)


def test_a_machine_with_a_long_name_takes_one_line(
    tiny: MakeRecipe, snapshot: SnapshotAssertion
) -> None:
    rates = {"fp32": 1e12, "bf16": 2e12}
    nothing_before = Admission(Path("runs"), continues=False, finished=False, changed=())
    for name in ("AMD EPYC", "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz"):
        device = replace(cpu_device(), name=name, threads=1, dense_flop_per_s=rates)
        _, machine = greeting(tiny(), device, nothing_before, WIDTH)
        assert machine == snapshot
        assert len(machine) <= WIDTH


def test_a_library_that_was_not_tried_is_named_at_the_start(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_before = Admission(Path("runs"), continues=False, finished=False, changed=())
    assert len(greeting(tiny(), cpu_device(), nothing_before, WIDTH)) == 2
    monkeypatch.setattr("brimful.base.libraries.version_of", lambda name: f"99.0+{name}")
    told = greeting(tiny(), cpu_device(), nothing_before, WIDTH)[2]
    assert told.startswith("note B411: ")
    assert "; transformers 99.0+transformers is none of the versions tried with brimful" in told


def test_a_run_that_goes_on_with_changes(tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = loop.guarded_update, 0

    def stop_at_the_third(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            signal.raise_signal(signal.SIGINT)
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "guarded_update", stop_at_the_third)
        with pytest.raises(Interrupted):
            pipeline.train(tiny(), Console(file=StringIO()))

    lines = _before_the_first_step(tiny("evaluation.every=4", "sample.tokens=4"))

    _check(lines, "tiny")
    assert sum(line.startswith("changed since the last session") for line in lines) == 2


def test_the_whole_plan_is_printed_on_request_and_is_always_in_the_run_folder(
    tiny: MakeRecipe,
) -> None:
    lines = _before_the_first_step(tiny("training.steps=2"), explain=True)
    plan = read_json(pipeline.folder_of(tiny()) / "plan.json")

    told = " ".join(" ".join(lines).split())
    for choice in plan["choices"]:
        assert " ".join(choice["reason"].split()) in told
    assert max(map(len, lines)) <= WIDTH
    assert set(plan["predicted_interval"]) >= {"peak_memory_bytes", "step_time_s", "total_time_s"}
