"""What can be compared of a run is read from its folder; what is missing is said."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from fixture_types import MakeRun, Refuses
from safetensors.numpy import save_file
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.report.comparison.results import LOSS, read_compared_run


def test_scores_come_with_unit_interval_and_examples(scored_run: MakeRun) -> None:
    result = read_compared_run(scored_run("lora-16", loss=2.0))

    loss, syntax = result.figures[LOSS], result.figures["code-syntax syntax"]
    assert (loss.unit, loss.interval, loss.n) == ("nats/token", (1.92, 2.08), 100)
    assert (syntax.unit, syntax.n, len(result.examples["code-syntax syntax"].ids)) == (
        "share",
        200,
        200,
    )
    nats = result.examples[LOSS]
    assert nats.sums_N.sum() / nats.weights_N.sum() == pytest.approx(loss.value)
    assert (result.notes, result.seed, result.device) == ((), 1, "AMD EPYC 9R14")


def test_figures_are_those_of_the_run_and_of_its_saved_model(
    scored_run: MakeRun,
) -> None:
    run = scored_run("full")
    assert read_compared_run(run).figures["trainable_parameters"].value == 64 * 8 + 100
    assert "adapter_bytes" not in read_compared_run(run).figures

    (run / "model" / "model.safetensors").unlink()
    save_file({"lora_A": np.zeros((4, 8), np.float32)}, run / "model" / "adapter_model.safetensors")
    figures = read_compared_run(run).figures

    assert figures["trainable_parameters"].value == 32
    assert (
        figures["adapter_bytes"].value
        == (run / "model" / "adapter_model.safetensors").stat().st_size
    )
    assert {"tokens_per_s", "peak_memory_bytes", "total_time_s"} <= figures.keys()


def test_a_language_model_from_nothing_has_its_loss_in_other_units_and_means_over_its_layers(
    fresh_text_run: MakeRun,
) -> None:
    figures = read_compared_run(fresh_text_run("a", loss=3.0)).figures

    assert figures["perplexity per token"].value == pytest.approx(math.exp(3.0))
    assert figures["perplexity per token"].interval == pytest.approx((math.exp(2.9), math.exp(3.1)))
    assert figures["perplexity per word"].value == pytest.approx(math.exp(3.0 * 118_204 / 59_102))
    assert (figures["bits per byte"].value, figures["bits per byte"].interval) == (
        1.4183,
        (1.3902, 1.4457),
    )
    means = {
        "gradient cosine with backprop": 0.25,
        "attention cosine with softmax": 0.96,
        "orthogonality violation": 0.02,
    }
    assert {name: figures[name].value for name in means} == means


def test_figures_of_layers_are_left_out_where_there_are_none(
    fresh_text_run: MakeRun,
) -> None:
    layers = {"tokens": 4096, "attention": {"mean_cosine": None, "mean_violation": 0.02}}

    assert (
        "attention cosine with softmax"
        not in read_compared_run(fresh_text_run("softmax", layers=layers)).figures
    )
    assert (
        "orthogonality violation"
        not in read_compared_run(fresh_text_run("llama", layers=None)).figures
    )


def test_a_tuned_model_has_neither(scored_run: MakeRun) -> None:
    result = read_compared_run(scored_run("lora"))

    assert "perplexity per token" not in result.figures
    assert result.curve == ()


def test_several_samples_of_an_example_count_with_their_mean(
    scored_run: MakeRun, on_task: Callable[..., None]
) -> None:
    run = scored_run("lora-16")
    on_task(run, "humaneval", {"pass@1": {"HumanEval/0": 1.0, "HumanEval/1": 0.0}})
    with open(run / "evaluations" / "humaneval.jsonl", "a", encoding="utf-8") as file:
        file.write('{"id": "HumanEval/0", "scores": {"pass@1": 0.0}}\n')

    found = read_compared_run(run).examples["humaneval pass@1"]

    assert (found.ids, found.sums_N.tolist()) == (("HumanEval/0", "HumanEval/1"), [0.5, 0.0])


def test_seed_and_name_are_not_of_the_variant(scored_run: MakeRun) -> None:
    first, second, other = (read_compared_run(scored_run(*each)) for each in (["a"], ["b"], ["c"]))
    assert first.variant == second.variant == other.variant

    assert read_compared_run(scored_run("d", seed=2)).variant == first.variant
    assert read_compared_run(scored_run("e", rank=8)).variant != first.variant


def test_what_is_missing_is_said_with_the_command_that_makes_it(
    scored_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    run = scored_run("lora-16")
    (run / "evaluations" / "validation-nats.json").unlink()
    assert read_compared_run(run).notes == snapshot

    (run / "scores.json").unlink()
    (note,) = read_compared_run(run).notes
    assert note == snapshot
    assert read_compared_run(scored_run("young", scores=None, metrics=[])).notes[0] == snapshot
    untuned = scored_run(
        "untuned",
        scores=None,
        metrics=[],
        recipe="name: untuned\nmodel: org/model\nuntuned: true\n",
    )
    assert read_compared_run(untuned).notes[0] == snapshot


@pytest.mark.parametrize("name", ["recipe.yaml", "metrics.jsonl", "plan.json", "run.json"])
def test_a_damaged_file_of_a_run_is_told(scored_run: MakeRun, name: str) -> None:
    run = scored_run("lora-16")
    (run / name).write_text("{\n")

    notes = read_compared_run(run).notes
    assert name in " ".join(notes)
    assert [note for note in notes if note.endswith(".")] == []  # pages end each with a full stop


def test_damaged_losses_of_windows_are_told_with_the_command_that_makes_them(
    scored_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    run = scored_run("lora-16")
    nats = run / "evaluations" / "validation-nats.json"
    nats.write_text(nats.read_text()[:-9])

    found = read_compared_run(run)

    assert LOSS in found.figures
    assert LOSS not in found.examples
    (note,) = found.notes
    assert note == snapshot


@pytest.mark.parametrize("content", ["[1]", "{"])
def test_a_damaged_summary_is_an_error(scored_run: MakeRun, content: str, refuses: Refuses) -> None:
    run = scored_run("lora-16")
    (run / "evaluations" / "code-syntax.json").write_text(content)

    with refuses(RunFolderError, names=["code-syntax.json"]):
        read_compared_run(run)
