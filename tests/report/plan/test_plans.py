"""Plans as people read them: where the memory goes, which micro-batches fit, and what would take
less.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fixture_types import Refuses
from rich.console import Console
from small_plans import HUGE, SMALL
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.chains.plans import survey
from brimful.hardware import catalog
from brimful.planning.budget import Budget, answer, sessions
from brimful.planning.plan import Predictions
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe
from brimful.report.plan.plans import DeviceChecks, exit_code, render, tensor_blocks, write_timeline
from brimful.report.terminal import told

Answers = list[Surveyed | Unplanned]


def _shown(
    surveyed: Sequence[Surveyed | Unplanned], width: int = 120, checks: DeviceChecks = ({}, {})
) -> str:
    console = Console(width=400, force_terminal=False)
    with console.capture() as capture:
        console.print(render(surveyed, width, checks), soft_wrap=True)
    return capture.get()


@pytest.fixture(scope="module")
def small(new_cache: Callable[[], str]) -> Answers:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_CACHE", new_cache())
        return survey(Recipe.model_validate(SMALL), "Tesla T4")


@pytest.fixture(scope="module")
def huge(new_cache: Callable[[], str]) -> Answers:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_CACHE", new_cache())
        return survey(Recipe.model_validate(HUGE), "Tesla T4")


def test_one_device_is_told_with_choices_memory_micro_batches_and_times(
    small: Answers, snapshot: SnapshotAssertion
) -> None:
    shown = _shown(small)

    assert shown == snapshot
    for choice in small[0].derived.plan.choices:
        assert " ".join(choice.reason.split()[:3]) in shown


def test_terms_add_up_to_what_the_device_shows(small: Answers) -> None:
    footprint = small[0].derived.footprint

    assert sum(footprint.terms.values()) == pytest.approx(footprint.driver.value, abs=1)


def test_what_does_not_fit_is_shown_with_what_would_take_less(
    huge: Answers, snapshot: SnapshotAssertion
) -> None:
    assert _shown(huge).partition("How it would run")[0] == snapshot


@pytest.mark.parametrize("width", [80, 120, 200])
def test_several_devices_are_a_line_each_and_one_without_an_estimate_says_why(
    small: Answers, huge: Answers, snapshot: SnapshotAssertion, width: int
) -> None:
    unplanned = Unplanned(catalog.get("NVIDIA H200"), "no such kernel")

    assert _shown([*small, *huge, unplanned], width) == snapshot


def test_nothing_is_wider_than_the_terminal(small: Answers, huge: Answers) -> None:
    answers = _answers(small, Budget("money", 1e-9))

    for surveyed in (small, huge, [*small, *huge, *small]):
        for width in (80, 100, 120):
            lines = _shown(surveyed, width, answers).splitlines()
            assert max(len(line.rstrip()) for line in lines) <= width


def test_a_device_without_rate_or_price_says_so(small: Answers) -> None:
    (entry,) = small
    untimed = _with_predictions(entry, {})
    unpriced = _with_predictions(
        entry,
        {name: value for name, value in entry.derived.plan.predicted.items() if name != "cost_usd"},
    )

    assert "Not predicted, as no rate is known" in _shown([untimed])
    assert "no price known" in _shown([unpriced])
    assert "--price 2.5" in _shown([unpriced])


def test_a_run_of_unknown_length_is_told_by_the_billion_tokens() -> None:
    shown = _shown(survey(Recipe.model_validate(SMALL | {"training": {"epochs": 2}}), "Tesla T4"))

    assert "a billion tokens" in shown
    assert "training.steps=N or training.tokens=N says it now" in shown


def test_the_answer_to_a_budget_and_to_sessions_stands_below(
    small: Answers,
) -> None:
    (entry,) = small
    name, predicted = entry.device.name, entry.derived.plan.predicted
    cut = {name: sessions(600, predicted, 1.0)}
    shown = _shown(small, 120, (_answers(small, Budget("time", 3600))[0], cut))

    assert "Budget 1h 00m is kept: " in shown
    assert "Sessions: 1 session of 10m 00s" in shown


def _answers(surveyed: Answers, budget: Budget) -> DeviceChecks:
    (entry,) = surveyed
    return {entry.device.name: answer(budget, lambda _: entry.derived.plan.predicted, 5)}, {}


def _with_predictions(entry: Surveyed, predicted: Predictions) -> Surveyed:
    plan = dataclasses.replace(entry.derived.plan, predicted=predicted)
    return dataclasses.replace(entry, derived=dataclasses.replace(entry.derived, plan=plan))


def test_the_exit_code_is_the_verdict(small: Answers, huge: Answers) -> None:
    unplanned = Unplanned(catalog.get("NVIDIA H200"), "no such kernel")

    assert [
        exit_code(small),
        exit_code(huge),
        exit_code([unplanned]),
        exit_code([*huge, unplanned]),
        exit_code([*huge, *small]),
    ] == [0, 1, 2, 1, 0]


def test_with_a_budget_only_what_surely_keeps_to_it_has_exit_code_0(
    small: Answers, huge: Answers
) -> None:
    kept, missed = _answers(small, Budget("time", 86400))[0], _answers(small, Budget("time", 1))[0]

    assert [
        exit_code(small, kept),
        exit_code(small, missed),
        exit_code(small, {}),
        exit_code([*huge], {}),
    ] == [0, 1, 1, 1]


def test_the_largest_tensors_are_named_with_their_place(
    small: Answers, snapshot: SnapshotAssertion
) -> None:
    _, heading, _, *lines = told(tensor_blocks(small)).plain.splitlines()

    assert heading == snapshot
    assert len(lines) == 10
    assert any("model.embed_tokens.weight" in line for line in lines)


def test_a_timeline_is_a_figure_with_its_numbers_beside_it(small: Answers, tmp_path: Path) -> None:
    write_timeline(small, tmp_path / "step.png")

    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "step.json").read_text())


def test_a_timeline_of_another_type_or_of_nothing_is_refused(
    small: Answers, tmp_path: Path, refuses: Refuses
) -> None:
    with refuses(RequestError):
        write_timeline(small, tmp_path / "step.pdf")
    with refuses(RequestError):
        write_timeline(
            [Unplanned(catalog.get("NVIDIA H200"), "no such kernel")], tmp_path / "step.png"
        )


def test_values_for_json_hold_plan_memory_table_and_remedies(
    huge: Answers,
) -> None:
    values = json.loads(json.dumps(huge[0].to_json()))

    assert values["verdict"] == values["memory"]["verdict"] == "does not fit"
    assert values["memory"]["headroom_bytes"] < 0
    assert values["plan"]["effective_batch"] == 6
    assert {remedy["name"] for remedy in values["remedies"]} >= {
        "8-bit optimizer",
        "half the sequence length",
    }
    assert [entry["micro_batch"] for entry in values["table"]] == [1, 2, 4] or values["table"]
