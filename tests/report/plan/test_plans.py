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
from brimful.report.plan.plans import DeviceChecks, exit_code, render, tensor_lines, write_timeline

Answers = list[Surveyed | Unplanned]


def _shown(surveyed: Sequence[Surveyed | Unplanned]) -> str:
    console = Console(width=200, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as capture:
        console.print(render(surveyed), soft_wrap=True)
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


def test_one_device_is_shown_with_terms_peaks_and_micro_batches(
    small: Answers,
) -> None:
    shown = _shown(small)

    for told in (
        "Tesla T4",
        "weights",
        "gradients",
        "optimizer states",
        "activations",
        "loss and logits",
        "library workspaces",
        "allocator slack",
    ):
        assert told in shown
    assert "CUDA context and libraries" in shown
    assert "fits: 14.6 GiB to use, head-room 14." in shown
    rows = [
        line.split()[0]
        for line in shown.splitlines()
        if line.rstrip().endswith((" fits", "← plan"))
    ]
    assert rows == ["1", "2", "4", "6"]
    assert "would take less" not in shown


def test_terms_add_up_to_what_the_device_shows(small: Answers) -> None:
    footprint = small[0].derived.footprint

    assert sum(footprint.terms.values()) == pytest.approx(footprint.driver.value, abs=1)


def test_what_does_not_fit_is_shown_with_what_would_take_less(
    huge: Answers, snapshot: SnapshotAssertion
) -> None:
    shown = _shown(huge)

    assert "does not fit: 14.6 GiB to use, head-room -" in shown
    assert "(sequence_length=1024)" in shown
    assert shown.split("\n\n")[:3] == snapshot


def test_several_devices_are_a_line_each_and_one_without_an_estimate_says_why(
    small: Answers, huge: Answers, snapshot: SnapshotAssertion
) -> None:
    lines = _shown(
        [*small, *huge, Unplanned(catalog.get("NVIDIA H200"), "no such kernel")]
    ).splitlines()

    assert lines[0] == snapshot
    lines = lines[2:]
    assert [line.split("  ")[0].strip() for line in lines[1:4]] == [
        "Tesla T4",
        "Tesla T4",
        "NVIDIA H200",
    ]
    assert [
        line.removeprefix("Tesla T4").removeprefix("NVIDIA H200").split()[0] for line in lines[1:4]
    ] == ["yes", "no", "?"]
    assert lines == snapshot


def test_one_device_is_told_with_time_energy_and_cost_and_where_they_come_from(
    small: Answers,
    snapshot: SnapshotAssertion,
) -> None:
    shown = _shown(small)

    times, sources = shown[shown.index("Time and cost") :].split("Predicted from\n")
    rows = {line[:26].strip(): line for line in times.splitlines()}
    basis = {line[:16].strip(): line for line in sources.splitlines()}
    assert {
        "optimizer step",
        "matrix products",
        "tokens/s",
        "MFU",
        "training",
        "evaluation",
        "checkpoints",
        "start",
        "in all",
        "energy",
    } <= rows.keys()
    assert "5 steps" in basis["training"]
    assert basis["energy"] == snapshot
    assert "$0.60 an hour" in basis["cost"]
    assert "read 2026-11-21" in shown


def test_every_choice_is_told_with_reason_and_runner_up(small: Answers) -> None:
    shown = " ".join(_shown(small).split())

    for choice in small[0].derived.plan.choices:
        assert " ".join(choice.reason.split()) in shown
        if choice.alternative is not None:
            assert f"{' '.join(choice.reason.split())}; next best: " in shown


def test_nothing_is_wider_than_the_terminal(small: Answers, huge: Answers) -> None:
    answers = _answers(small, Budget("money", 1e-9))

    for surveyed in (small, huge, [*small, *huge, *small]):
        for width in (80, 100, 120):
            console = Console(width=400, force_terminal=False)
            with console.capture() as capture:
                console.print(render(surveyed, width, answers), soft_wrap=True)
            told = capture.get().splitlines()
            assert max(len(line.rstrip()) for line in told) <= width


def test_a_device_without_rate_or_price_says_so(small: Answers) -> None:
    (entry,) = small
    untimed = _with_predictions(entry, {})
    unpriced = _with_predictions(
        entry,
        {name: value for name, value in entry.derived.plan.predicted.items() if name != "cost_usd"},
    )

    assert "Time and cost: not predicted, as no rate is known" in _shown([untimed])
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
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(
            render(small, 120, (_answers(small, Budget("time", 3600))[0], cut)), soft_wrap=True
        )

    assert "Budget 1h 00m is kept: " in capture.get()
    assert "Sessions: 1 session of 10m 00s" in capture.get()


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
    lines = tensor_lines(small)

    assert lines[0] == snapshot
    assert len(lines) == 11
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
