"""The first lines of a report say what was run, how it went and how to go on, from what is
known.
"""

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.page import headline
from brimful.runs.folder import read_run


def test_the_threads_told_are_those_the_plan_uses(new_run: MakeRun) -> None:
    run = read_run(
        new_run(plan={"threads": 1}, environment={"device": {"name": "EPYC", "threads": 2}})
    )
    assert headline.device_name(run) == "EPYC (1 thread)"


def test_a_model_worse_than_counting_is_told_so(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    scores = {
        "validation": {
            "loss": 4.0,
            "bits_per_byte": 2.2,
            "baselines": {"bigram": {"loss": 2.0, "bits_per_byte": 2.0}},
        }
    }
    assert headline.verdict(read_run(new_run(scores=scores))) == snapshot


def test_the_plan_is_judged_by_its_step_time_memory_and_intervals(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    assert headline.plan_verdict(read_run(new_run())) == snapshot
    assert headline.plan_verdict(read_run(new_run("bare", plan=None))) == ""


def test_bars_of_scores_tell_the_model_apart(new_run: MakeRun) -> None:
    shown = headline.score_bars(read_run(new_run()))
    assert shown is not None
    assert [(bar.name, bar.text) for bar in shown.bars][2:] == [
        ("Bigram", "2.060"),
        ("This model", "1.418"),
    ]
    assert len({part.place for bar in shown.bars[:3] for part in bar.parts}) == 1
    assert shown.bars[3].parts[0].place != shown.bars[0].parts[0].place


def test_cards_have_the_interval_or_the_prediction_below(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    details = {card.name: card.detail for card in headline.cards(read_run(new_run()))}
    assert details["Bits per byte"] == "95 %: 1.390\N{EN DASH}1.446"
    assert details["Tokens per second"] == "predicted 13.20k"
    assert details["Peak memory"] == "predicted 1.22 GiB"
    assert details["Time in all"] == "predicted 2m 48s"
    bare = {card.name: card.detail for card in headline.cards(read_run(new_run("bare", plan=None)))}
    assert (bare["Peak memory"], bare["Time in all"]) == ("highest step", "with evaluation")
    assert bare["Tokens per second"] == snapshot


def test_an_unfinished_run_is_continued_from_its_recipe_and_not_begun_anew(
    new_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    folder = new_run(last_step=20, environment={"command": "brimful train quickstart --fresh"})
    first = headline.commands(read_run(folder))[0]
    assert first.purpose == snapshot
    assert first.text.startswith(f"brimful train {folder}/recipe.yaml")
    (folder / "recipe.yaml").unlink()
    assert headline.commands(read_run(folder))[0].text == "brimful train quickstart"


def test_commands_quote_folders_with_spaces(new_run: MakeRun) -> None:
    shown = headline.commands(read_run(new_run("my run")))
    assert any(
        "my run/recipe.yaml'" in command.text and command.text.startswith("brimful run '")
        for command in shown
    )


def test_what_a_fresh_model_was_trained_for_is_in_its_name(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    recipe = "method: classify\nmodel: {architecture: modernbert, layers: 2, width: 64}\n"
    run = read_run(new_run(recipe=recipe, scores=None, data={"labels": {"names": ["ham", "spam"]}}))
    assert headline.sentence(run) == snapshot


@pytest.mark.parametrize(("architecture", "is_own"), [("okadfa", True), ("llama", False)])
def test_an_architecture_of_our_own_is_registered_before_it_is_loaded(
    new_run: MakeRun, architecture: str, is_own: bool
) -> None:
    folder = new_run(recipe=f"model: {{architecture: {architecture}}}\n")
    (folder / "model").mkdir(exist_ok=True)
    shown = {each.purpose: each.text for each in headline.commands(read_run(folder))}
    assert ("\nregister()\nmodel = " in shown["Load it in Python"]) is is_own
