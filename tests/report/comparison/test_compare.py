"""Runs side by side: seeds together, differences tested on the same examples, nothing compared
silently that cannot be.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import MakeRun, Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.report.comparison.compare import (
    PairComparison,
    RunComparison,
    compare,
    is_lower_better,
)
from brimful.report.comparison.results import LOSS
from brimful.report.comparison.text import comparison_text

SYNTAX = "code-syntax syntax"


def _pair(comparison: RunComparison, metric: str) -> PairComparison:
    (found,) = [pair for pair in comparison.pairs if pair.metric == metric]
    return found


def test_a_large_difference_on_the_same_examples_is_real_and_a_small_one_is_not(
    scored_run: MakeRun,
) -> None:
    base = scored_run("base", rank=1, share=0.1, loss=3.0)
    runs = [
        base,
        scored_run("lora-8", rank=8, seed=2, share=0.80, loss=2.0),
        scored_run("lora-16", rank=16, seed=3, share=0.80, loss=1.99),
    ]

    comparison = compare(runs)

    real = {
        (pair.first, pair.second): pair.is_real
        for pair in comparison.pairs
        if pair.metric == SYNTAX
    }
    assert real == {
        ("base", "lora-8"): True,
        ("base", "lora-16"): True,
        ("lora-8", "lora-16"): False,
    }
    assert not any(pair.first_is_better for pair in comparison.pairs if pair.is_real)
    assert {pair.n for pair in comparison.pairs if pair.metric == SYNTAX} == {200}
    assert comparison.notes == ()


def test_pairing_sees_what_intervals_that_overlap_do_not(scored_run: MakeRun) -> None:
    comparison = compare([scored_run("a", loss=2.00), scored_run("b", rank=8, seed=2, loss=1.98)])

    pair = _pair(comparison, LOSS)

    assert pair.is_real
    assert pair.difference == pytest.approx(0.02, abs=0.01)
    (low, high), (other_low, other_high) = (
        figure.interval
        for variant in comparison.variants
        if (figure := variant.figure(LOSS)) and figure.interval
    )
    assert low < other_high
    assert other_low < high


def test_runs_that_differ_by_their_seed_are_one_variant_with_the_spread_over_seeds(
    scored_run: MakeRun,
) -> None:
    runs = [scored_run(f"lora-16-seed{seed}", seed=seed) for seed in (1, 2, 3)]

    comparison = compare([*runs, scored_run("lora-8", rank=8, share=0.3, seed=4)])

    several, single = comparison.variants
    assert (several.name, len(several.runs), single.name) == ("lora-16", 3, "lora-8")
    figure = several.figure(SYNTAX)
    assert figure is not None
    assert figure.value == pytest.approx(sum(several.values(SYNTAX)) / 3)
    assert figure.interval is not None
    assert (
        figure.interval[0]
        < min(several.values(SYNTAX))
        <= max(several.values(SYNTAX))
        < figure.interval[1]
    )
    assert (_pair(comparison, SYNTAX).is_real, _pair(comparison, SYNTAX).over_seeds) == (True, None)


def test_a_difference_within_the_spread_of_seeds_is_not_real(
    scored_run: MakeRun,
) -> None:
    first = [
        scored_run(f"a-{seed}", rank=8, seed=seed, share=share)
        for seed, share in ((1, 0.3), (2, 0.9))
    ]
    second = [
        scored_run(f"b-{seed}", rank=16, seed=seed, share=share)
        for seed, share in ((1, 0.5), (2, 0.9))
    ]

    pair = _pair(compare([*first, *second]), SYNTAX)

    assert pair.p_value is not None
    assert pair.p_value < 0.05
    assert pair.over_seeds is not None
    assert pair.over_seeds[0] < 0 < pair.over_seeds[1]
    assert not pair.is_real


def test_an_untuned_model_has_no_seed_so_the_others_spread_is_all_there_is(
    scored_run: MakeRun,
) -> None:
    base = scored_run("base", share=0.2, recipe="name: base\nmodel: org/model\nuntuned: true\n")
    apart = [scored_run(f"a-{seed}", rank=8, seed=seed, share=0.8) for seed in (1, 2)]
    spread = [
        scored_run(f"b-{seed}", rank=16, seed=seed, share=share)
        for seed, share in ((1, 0.3), (2, 0.9))
    ]

    clear, unclear = (_pair(compare([base, *runs]), SYNTAX) for runs in (apart, spread))

    assert clear.over_seeds is not None
    assert clear.over_seeds[1] < 0
    assert clear.is_real
    assert unclear.p_value is not None
    assert unclear.p_value < 0.05
    assert not unclear.is_real


def test_less_of_a_perplexity_is_better() -> None:
    assert is_lower_better("lm-eval:wikitext word_perplexity")
    assert not is_lower_better("lm-eval:hellaswag acc")


def test_runs_from_nothing_are_read_at_equal_time_with_intervals_over_seeds(
    fresh_text_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    """The slow ones have done half of their steps when the fast ones end; warming up and
    evaluations do not count.
    """
    fast = [
        fresh_text_run(f"fast-seed{seed}", seed=seed, loss=3 + seed / 100, step_time_s=0.25)
        for seed in (1, 2, 3)
    ]
    slow = [
        fresh_text_run(f"slow-seed{seed}", seed=seed, heads=8, loss=2 + seed / 100, step_time_s=0.5)
        for seed in (1, 2, 3)
    ]

    comparison = compare([*fast, *slow])

    first, second = (
        variant.figure("validation loss at equal time") for variant in comparison.variants
    )
    assert first is not None
    assert second is not None
    assert (first.value, second.value) == pytest.approx((3.02 + 100 / 500, 2.02 + 100 / 250))
    assert first.interval is not None
    assert first.interval[0] < first.value < first.interval[1]
    assert comparison.metrics == (
        LOSS,
        "validation loss at equal time",
        "perplexity per token",
        "perplexity per word",
        "bits per byte",
        "gradient cosine with backprop",
        "attention cosine with softmax",
        "orthogonality violation",
    )
    (note,) = [note for note in comparison.notes if "equal time" in note]
    assert note == snapshot
    assert not any("not tested" in note for note in comparison.notes)


def test_p_values_are_corrected_for_their_number(scored_run: MakeRun) -> None:
    runs = [
        scored_run(f"rank-{rank}", rank=rank, seed=rank, share=0.5 + rank / 100)
        for rank in (1, 2, 4)
    ]

    two, three = compare(runs[::2]), compare(runs)

    together = next(
        pair
        for pair in three.pairs
        if (pair.metric, pair.first, pair.second) == (SYNTAX, "rank-1", "rank-4")
    )
    alone = _pair(two, SYNTAX)
    assert together.difference == alone.difference
    assert together.p_value is not None
    assert alone.p_value is not None
    assert together.p_value >= alone.p_value


@pytest.mark.parametrize(
    ("scores", "version", "told"),
    [
        ({"ex/0": 1.0, "ex/1": 0.0, "ex/2": 1.0}, 2, "a has version 1, b version 2"),
        ({"ex/0": 1.0, "ex/1": 0.0}, 1, "other examples: 3 of a, 2 of b, 2 in common"),
        ({"ex/0": 1.0, "ex/1": 0.0, "ex/9": 1.0}, 1, "other examples: 3 of a, 3 of b, 2 in common"),
    ],
)
def test_other_examples_and_versions_of_a_task_are_never_compared(
    scored_run: MakeRun,
    on_task: Callable[..., None],
    scores: dict[str, float],
    version: int,
    told: str,
    snapshot: SnapshotAssertion,
) -> None:
    first, second = scored_run("a"), scored_run("b", rank=8)
    on_task(first, "humaneval", {"pass@1": {"ex/0": 1.0, "ex/1": 0.0, "ex/2": 1.0}})
    on_task(second, "humaneval", {"pass@1": scores}, version=version)

    comparison = compare([first, second])

    assert _pair(comparison, "humaneval pass@1").difference is None
    assert comparison.notes == snapshot


def test_a_few_examples_that_one_run_lacks_are_left_out_and_counted(
    scored_run: MakeRun, on_task: Callable[..., None], snapshot: SnapshotAssertion
) -> None:
    first, second = scored_run("a"), scored_run("b", rank=8)
    scores = {f"ex/{number}": float(number % 2) for number in range(40)}
    on_task(first, "humaneval", {"pass@1": scores})
    on_task(
        second,
        "humaneval",
        {"pass@1": {number: scores[number] for number in reversed(scores) if number != "ex/7"}},
    )

    comparison = compare([first, second])

    pair = _pair(comparison, "humaneval pass@1")
    assert (pair.difference, pair.n, pair.left_out) == (0.0, 39, 1)
    assert comparison.notes == snapshot


def test_losses_over_other_data_are_not_compared(
    scored_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    other = {"fingerprints": {"data": "0123456789abcdef", "tokenizer": "t1"}}

    comparison = compare([scored_run("a"), scored_run("b", rank=8, data=other)])

    assert _pair(comparison, LOSS).obstacle == snapshot


def test_a_metric_of_one_run_only_is_said_not_to_be_compared(
    scored_run: MakeRun, on_task: Callable[..., None], snapshot: SnapshotAssertion
) -> None:
    first, second = scored_run("a"), scored_run("b", rank=8)
    on_task(first, "humaneval", {"pass@1": {"ex/0": 1.0}})

    assert compare([first, second]).notes == snapshot


def test_what_must_be_known_before_reading_is_noted(
    scored_run: MakeRun, on_task: Callable[..., None], snapshot: SnapshotAssertion
) -> None:
    first, second = (
        scored_run("base"),
        scored_run("tuned", rank=8, plan={"device": {"name": "NVIDIA H200"}}),
    )
    for run, prompt in ((first, "few-shot 2"), (second, "template")):
        on_task(
            run,
            "bleu",
            {"bleu": {f"ex/{number}": 20.0 + number for number in range(9)}},
            prompt=prompt,
        )
        summary = json.loads((run / "evaluations" / "bleu.json").read_text())
        summary["metrics"]["corpus_bleu"] = {
            "value": 25.0,
            "interval": None,
            "n": 9,
            "unit": "BLEU",
        }
        (run / "evaluations" / "bleu.json").write_text(json.dumps(summary))

    assert compare([first, second]).notes == snapshot


def test_scores_of_one_type_of_question_are_shown_and_not_tested(
    scored_run: MakeRun, on_task: Callable[..., None], snapshot: SnapshotAssertion
) -> None:
    """Else a task with many types would make every p-value of the comparison larger."""
    runs = [scored_run("a"), scored_run("b", rank=8)]
    for run in runs:
        on_task(
            run, "sums", {"accuracy": {f"ex/{number}": float(number % 2) for number in range(20)}}
        )
    before = compare(runs)
    for run in runs:
        path = run / "evaluations" / "sums.json"
        summary = json.loads(path.read_text())
        summary["metrics"]["accuracy[new-pairs]"] = {
            "value": 0.25,
            "interval": [0.1, 0.4],
            "n": 10,
            "unit": "share",
        }
        path.write_text(json.dumps(summary))
    after = compare(runs)
    assert after.metrics == (*before.metrics, "sums accuracy[new-pairs]")
    assert after.pairs == before.pairs
    assert after.variants[0].values("sums accuracy[new-pairs]") == [0.25]
    assert after.notes[-1] == snapshot


def test_everything_is_plain_values_for_json(scored_run: MakeRun) -> None:
    values = json.loads(
        json.dumps(compare([scored_run("a"), scored_run("b", rank=8, share=0.2)]).to_json())
    )

    assert [variant["name"] for variant in values["variants"]] == ["a", "b"]
    assert values["variants"][0]["figures"]["peak_memory_bytes"]["value"] > 0
    assert {pair["metric"]: pair["real"] for pair in values["pairs"]} == {LOSS: False, SYNTAX: True}


def test_one_run_alone_is_a_table_without_tests(scored_run: MakeRun) -> None:
    comparison = compare([scored_run("a")])

    assert ([variant.name for variant in comparison.variants], comparison.pairs) == (["a"], ())


def test_a_run_given_twice_is_refused(scored_run: MakeRun, refuses: Refuses) -> None:
    run = scored_run("a")
    for folders in ([], [run, run]):
        with refuses(RequestError):
            compare(folders)


@pytest.fixture
def compared_classifier(labelled_run: MakeRun, label_score: Callable[..., JsonDict]) -> MakeRun:
    """A factory of classifiers scored on the same 220 texts; each text's nats are around `nats`."""

    def make(
        name: str, *, seed: int = 1, rate: float = 0.001, nats: float = 0.3, **files: Any
    ) -> Path:
        recipe = (
            f"name: {name}\nmethod: classify\nseed: {seed}\nmodel: org/encoder\noptimizer:"
            f" {{learning_rate: {rate}}}\n"
        )
        validation, test = (
            label_score("ham", "spam", positive="spam", seed=number) for number in (9, seed)
        )
        run = labelled_run(
            name,
            **{"recipe": recipe, "scores": {"validation": validation, "test": test}, "metrics": []}
            | files,
        )
        hard_N, chance_N = (
            np.random.default_rng(0).exponential(1, 220),
            np.random.default_rng(seed).normal(0, 0.02, 220),
        )
        (run / "evaluations").mkdir()
        kept = {"nats": (nats * hard_N + chance_N).tolist(), "tokens": [1] * 220}
        (run / "evaluations" / "test-nats.json").write_text(json.dumps(kept), encoding="utf-8")
        return run

    return make


def test_classifiers_are_compared_on_test_by_the_loss_of_each_text_with_their_metrics_beside(
    compared_classifier: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    comparison = compare(
        [
            compared_classifier("slow", nats=0.5),
            compared_classifier("fast", seed=2, rate=0.002, nats=0.3),
        ]
    )

    assert comparison.metrics == (
        "test loss per text",
        "test F1",
        "test macro-F1",
        "test PR-AUC",
        "test accuracy",
    )
    (pair,) = comparison.pairs
    assert (pair.metric, pair.n, pair.is_real, pair.first_is_better) == (
        "test loss per text",
        220,
        True,
        False,
    )
    assert {comparison.unit(metric) for metric in comparison.metrics} == {
        "nats/text",
        "share",
        "area",
    }
    figure = comparison.variants[0].figure("test F1")
    assert figure is not None
    assert figure.interval is not None
    assert figure.interval[0] < figure.value < figure.interval[1]
    text = comparison_text(comparison, 400)
    assert text == snapshot


def test_classifiers_of_several_seeds_are_one_variant(
    compared_classifier: MakeRun,
) -> None:
    runs = [compared_classifier(f"spam-seed{seed}", seed=seed) for seed in (1, 2, 3)]

    comparison = compare(runs)

    (variant,) = comparison.variants
    assert (variant.name, len(variant.values("test PR-AUC")), comparison.pairs) == ("spam", 3, ())
    assert not any("tested on" in note for note in comparison.notes)


def test_classifiers_of_other_data_or_labels_are_not_compared(
    compared_classifier: MakeRun,
    label_score: Callable[..., JsonDict],
    snapshot: SnapshotAssertion,
) -> None:
    other = {"test": label_score("clean", "toxic", positive="toxic")}

    comparison = compare(
        [compared_classifier("a"), compared_classifier("b", seed=2, rate=0.002, scores=other)]
    )

    assert _pair(comparison, "test loss per text").obstacle == snapshot


def test_a_classifier_without_scores_or_without_the_loss_of_each_text_says_how_to_make_them(
    compared_classifier: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    bare, whole, kept = (
        compared_classifier("bare", scores={"test": {}}),
        compared_classifier("whole", seed=2),
        compared_classifier("kept", seed=3),
    )
    (whole / "evaluations" / "test-nats.json").unlink()

    notes = compare([bare, whole, kept]).notes

    assert notes == snapshot


def test_models_of_different_kinds_have_no_score_in_common(
    compared_classifier: MakeRun, scored_run: MakeRun, refuses: Refuses
) -> None:
    with refuses(RequestError):
        compare(
            [compared_classifier("spam"), scored_run("gpt", recipe="name: gpt\nmethod: pretrain\n")]
        )


def test_models_of_masked_tokens_are_compared_by_a_loss_of_their_own_name(
    scored_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    runs = []
    for rank, loss in ((1, 3.0), (2, 2.5)):
        run = scored_run(f"mlm-{rank}", rank=rank, loss=loss)
        validation = json.loads((run / "scores.json").read_text())["validation"] | {
            "kind": "masked",
            "masked_share": 0.15,
        }
        (run / "scores.json").write_text(json.dumps({"validation": validation}))
        recipe = (run / "recipe.yaml").read_text()
        (run / "recipe.yaml").write_text(f"{recipe}method: mlm\n".replace("method: sft\n", ""))
        runs.append(run)

    comparison = compare(runs)

    assert comparison.metrics[0] == snapshot
    assert comparison.unit(comparison.metrics[0]) == "nats/masked token"
    assert _pair(comparison, comparison.metrics[0]).is_real
    assert not _pair(comparison, comparison.metrics[0]).first_is_better


def test_runs_of_the_same_name_are_distinct_names_by_where_they_lie(
    scored_run: MakeRun,
) -> None:
    runs = [
        scored_run(f"{place}/runs/same", rank=rank, share=share)
        for place, rank, share in (("laptop", 8, 0.4), ("server", 16, 0.8))
    ]
    comparison = compare([*runs, scored_run("laptop/runs/other")])
    assert {run.name for variant in comparison.variants for run in variant.runs} == {
        "same (laptop)",
        "same (server)",
        "other",
    }
    assert {(pair.first, pair.second) for pair in comparison.pairs} >= {
        ("same (laptop)", "same (server)")
    }
