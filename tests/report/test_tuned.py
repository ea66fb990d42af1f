"""What a report says of a run that tuned a published model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report import tuned
from brimful.report.kinds import ExamplesReport
from brimful.report.page.headline import sentence, verdict
from brimful.report.predictions import comparisons
from brimful.runs.folder import read_run


def facts(run: Path) -> dict[str, str]:
    table = tuned.tuning_table(read_run(run))
    assert table is not None
    return {row[0]: row[1] for row in table.text_rows}


def test_a_run_of_a_fresh_model_has_none_of_it(new_run: MakeRun) -> None:
    run = read_run(new_run())
    assert not run.is_tuned
    assert tuned.tuning_table(run) is tuned.before_tuning(run) is tuned.score_before(run) is None


def test_without_adapters_every_parameter_is_trained(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    run = new_run(recipe="model: google/gemma-2-2b\nadapter: null\n")
    assert facts(run)["Adapters"] == snapshot
    assert tuned.parameters(read_run(run)) == (612, 612)
    assert sentence(read_run(run)) == snapshot


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ("{}", "the labels"),
        (
            "{class_weights: none, loss: cross_entropy, label_smoothing: 0.1}",
            "the labels (label smoothing 0.1)",
        ),
        (
            "{class_weights: {spam: 2.0, ham: 1.0}, loss: focal}",
            "the labels (weights given, focal loss)",
        ),
    ],
)
def test_a_classifier_learned_labels_not_answers(new_run: MakeRun, rules: str, told: str) -> None:
    assert (
        facts(
            new_run(
                recipe=(
                    "method: classify\nmodel: org/encoder\ndata: {loss_on: completion}\nlabels:"
                    f" {rules}\n"
                )
            )
        )["Learned"]
        == told
    )


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("google/gemma-2-2b", "google/gemma-2-2b"),
        ("/runs/first/model", "first"),
        ("/models/llama", "llama"),
        ("recipe:first", "first"),
    ],
)
def test_a_base_is_named_by_its_hub_id_its_folder_or_the_run_that_made_it(
    source: str, name: str
) -> None:
    assert tuned.short_name(source) == name


def test_a_base_that_was_made_a_folder_is_named_as_the_recipe_names_it(tuned_run: MakeRun) -> None:
    """Its folder in the cache is named by a hash."""
    base = {"source": "/cache/models/SmolLM2-135M-Instruct.Q4_1-b179c952", "fingerprint": "x"}
    run = tuned_run(recipe="model: smollm2-135m-instruct\n", data={"base": base})

    assert tuned.base_name(read_run(run)) == "smollm2-135m-instruct"


def test_saved_adapters_are_not_compared_with_the_parameters_of_the_whole_model(
    tuned_run: MakeRun,
) -> None:
    assert "parameters" not in {comparison.key for comparison in comparisons(read_run(tuned_run()))}


def test_the_untuned_models_score_stands_beside(
    tuned_run: MakeRun, untuned: Callable[..., None], snapshot: SnapshotAssertion
) -> None:
    run = tuned_run()
    assert verdict(read_run(run)) == snapshot
    untuned(run / "untuned")
    assert verdict(read_run(run)) == snapshot
    table = ExamplesReport().score_table(read_run(run))
    assert table is not None
    assert table.columns[1] == "Loss (nats/token)"
    assert [(row[0], row[1][:5]) for row in table.text_rows] == snapshot


def test_in_a_study_the_base_counts_when_it_is_the_same_model_on_the_same_data(
    tuned_run: MakeRun, untuned: Callable[..., None]
) -> None:
    run = tuned_run("study/lora-8")
    untuned(run.parent / "base")
    assert tuned.before_tuning(read_run(run)) is None
    (run.parent / "study.json").write_text("{}")
    assert tuned.before_tuning(read_run(run)) is not None
    facts_of_data = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(
        json.dumps(facts_of_data | {"base": {"source": "another", "fingerprint": "1"}})
    )
    assert tuned.before_tuning(read_run(run)) is None


def test_an_untuned_folder_that_holds_nothing_is_passed_over(tuned_run: MakeRun) -> None:
    run = tuned_run()
    (run / "untuned").mkdir()
    assert tuned.before_tuning(read_run(run)) is None
