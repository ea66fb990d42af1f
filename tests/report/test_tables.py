"""Tables hold what the files say, computed the stated way; what is absent stays absent."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brimful.report import tables
from brimful.runs.runfiles import (
    RunFiles,
    read_run,
)

MakeRun = Callable[..., Path]


def step(number: int, time: float, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": number,
        "loss": 3.0,
        "step_time_s": 0.5,
        "memory_bytes": 1000,
        "tokens_per_second": 10.0,
        "time": time,
    } | changes


SLOW_START = [
    {
        "kind": "step",
        "step": number,
        "tokens": 10 * number,
        "step_time_s": time,
        "memory_bytes": memory,
    }
    for number, time, memory in ((1, 9.0, 500), (2, 0.5, 2000), (3, 0.25, 1000), (4, 0.5, 1000))
]


def start(at: int, total: int = 4) -> dict[str, Any]:
    return {"kind": "start", "step": at, "total_steps": total}


def by_key(run: RunFiles) -> dict[str, tables.Comparison]:
    return {comparison.key: comparison for comparison in tables.comparisons(run)}


def test_the_error_is_relative_to_what_was_measured_and_positive_when_the_plan_was_too_high(
    new_run: MakeRun,
) -> None:
    plan = {
        "predicted": {"step_time_s": 0.6, "peak_memory_bytes": 900},
        "predicted_interval": {"step_time_s": [0.55, 0.7], "peak_memory_bytes": [800, 1100]},
    }
    found = by_key(read_run(new_run(plan=plan, metrics=[start(0), step(1, 0)])))
    assert found["step_time_s"].error == pytest.approx(0.2)
    assert found["peak_memory_bytes"].error == pytest.approx(-0.1)
    assert found["step_time_s"].came_true is False
    assert found["peak_memory_bytes"].came_true is True


def test_a_prediction_without_measurement_has_no_error_and_no_verdict(new_run: MakeRun) -> None:
    found = by_key(
        read_run(new_run(plan={"predicted": {"energy_j": 5.0, "step_time_s": 1.0}}, metrics=[]))
    )
    assert found["energy_j"].error is None
    assert found["step_time_s"].came_true is None


def test_each_measurement_says_how_it_came_about(new_run: MakeRun) -> None:
    found = by_key(read_run(new_run()))
    assert (
        found["step_time_s"].way
        == "median of 499 recorded steps; 1 at the start left out (compiling, warming up)"
    )
    assert found["evaluation_time_s"].way == "10 evaluations"
    assert found["energy_wh"].way == ""


def test_time_terms_come_longest_first_and_older_plans_have_none(new_run: MakeRun) -> None:
    assert [name for name, _ in tables.time_terms(read_run(new_run()))] == [
        "Matrix",
        "Attention",
        "Element-wise",
        "Optimizer",
    ]
    assert (
        tables.time_terms(read_run(new_run("older", plan={"predicted": {"step_time_s": 1.0}})))
        == []
    )


def test_memory_terms_come_largest_first_without_empty_ones(new_run: MakeRun) -> None:
    run = read_run(
        new_run(plan={"memory_terms": {"weights": 10, "kv_cache": 0, "saved_activations": 30}})
    )
    assert tables.memory_terms(run) == [("Saved activations", 30.0), ("Weights", 10.0)]


def test_scores_stand_with_their_intervals_and_the_baselines_below(new_run: MakeRun) -> None:
    table = tables.score_table(read_run(new_run()))
    assert table is not None
    assert [row[0] for row in table.text_rows] == [
        "validation",
        "Uniform guess",
        "Unigram",
        "Bigram",
    ]
    assert table.text_rows[0] == (
        "validation",
        "3.031 [2.971, 3.090]",
        "20.72",
        "1.418 [1.390, 1.446]",
        "118,204",
        "214",
        "256 / 256",
        "41.20k",
    )
    assert all(len(row) == len(table.columns) for row in table.text_rows)


def test_baselines_at_the_top_of_scores_serve_a_split_that_has_none(new_run: MakeRun) -> None:
    scores = {
        "validation": {"loss": 2.0},
        "baselines": {"bigram": {"loss": 3.0, "bits_per_byte": 1.5}},
    }
    assert [score.name for score in tables.baselines(read_run(new_run(scores=scores)))] == [
        "Bigram"
    ]


def test_each_split_has_its_own_baselines_below_it(new_run: MakeRun) -> None:
    scores = {
        name: {"loss": 2.0, "baselines": {"bigram": {"loss": loss}}}
        for name, loss in (("test", 3.0), ("validation", 4.0))
    }
    table = tables.score_table(read_run(new_run(scores=scores)))
    assert table is not None
    assert [row[:2] for row in table.text_rows] == [
        ("validation", "2.000"),
        ("Bigram", "4.000"),
        ("test", "2.000"),
        ("Bigram", "3.000"),
    ]


def test_repeated_documents_are_counted_by_split(new_run: MakeRun) -> None:
    table = tables.leakage_table(read_run(new_run()))
    assert table is not None
    assert table.text_rows == (("train", "4,210", "12", "15"), ("validation", "214", "0", "3"))


def test_a_baseline_with_only_a_loss_gets_its_bits_per_byte_from_the_same_tokens(
    new_run: MakeRun,
) -> None:
    scores = {
        "validation": {
            "loss": 2.0,
            "bits_per_byte": 1.0,
            "baselines": {"bigram": {"loss": 3.0}, "trigram_count": {"loss": 2.5}, "tokens": 9},
        }
    }
    found = tables.baselines(read_run(new_run(scores=scores)))
    assert [(score.name, score.loss, score.bits_per_byte) for score in found] == [
        ("Bigram", 3.0, 1.5),
        ("Trigram count", 2.5, 1.25),
    ]


def test_the_best_evaluation_is_that_of_the_least_objective_where_there_is_one(
    new_run: MakeRun,
) -> None:
    def best_of(*pairs: tuple[float, float | None]) -> int | None:
        records = [
            {"kind": "evaluation", "step": step, "loss": loss, "objective": goal}
            for step, (loss, goal) in enumerate(pairs)
        ]
        found = tables.best_evaluation(
            read_run(new_run(f"run-{len(pairs)}", scores=None, metrics=records))
        )
        return None if found is None else int(found["step"])

    assert best_of((0.1, 0.0), (0.5, -0.9), (0.4, -0.9), (0.2, None)) == 1
    assert best_of((0.1, None)) is None
    assert best_of() is None


def test_before_the_final_scores_the_best_evaluation_speaks(new_run: MakeRun) -> None:
    losses = {1: 3.5, 2: 3.1, 3: None, 4: 3.2}
    records = [
        {
            "kind": "evaluation",
            "step": at,
            "split": "validation",
            "loss": loss,
            "bits_per_byte": 1.5,
        }
        for at, loss in losses.items()
    ]
    score = tables.main_score(read_run(new_run(scores=None, metrics=records)))
    assert score is not None
    assert (score.name, score.loss) == ("validation, step 2", 3.1)


def test_splits_come_in_pipeline_order_with_text_in_bytes(new_run: MakeRun) -> None:
    table = tables.split_table(read_run(new_run()))
    assert table is not None
    assert [row[0] for row in table.text_rows] == ["train", "validation"]
    assert table.text_rows[0][1:3] == ("4,210", "6.87 MiB")


def test_every_choice_of_the_plan_keeps_its_reason_and_runner_up(new_run: MakeRun) -> None:
    table = tables.plan_table(read_run(new_run()))
    assert table is not None
    assert table.text_rows[1] == (
        "Micro batch",
        "8",
        "Largest that keeps 20 % of the free memory in reserve.",
        "4",
    )
    assert table.text_rows[3][1:] == ("no", "No C++ compiler was found on this machine.", "yes")


def test_the_batch_is_explained_with_its_remainder(new_run: MakeRun) -> None:
    plan = {"micro_batch": 5, "accumulation": 3, "remainder": 1, "effective_batch": 16}
    assert (
        tables.batch_sentence(read_run(new_run(plan=plan)))
        == "Every optimizer step sees 16 sequences: 3 micro-batches of 5 + 1."
    )
    whole = {"micro_batch": 8, "accumulation": 1, "remainder": 0, "effective_batch": 8}
    assert (
        tables.batch_sentence(read_run(new_run("whole", plan=whole)))
        == "Every optimizer step sees 8 sequences: 1 micro-batch of 8."
    )


def test_the_environment_is_flat_with_units_from_the_names(new_run: MakeRun) -> None:
    table = tables.environment_table(read_run(new_run()))
    assert table is not None
    rows = {row[0]: row[1] for row in table.text_rows}
    assert rows["Device memory"] == "7.45 GiB"
    assert rows["Device dense bf16"] == "590 GFLOP/s"
    assert rows["Device abilities fp8"] == "no"
    assert rows["Packages"].startswith("torch 2.13.0+cpu, ")
    assert "Git" not in rows


def test_a_missing_file_is_named_and_its_tables_are_absent(new_run: MakeRun) -> None:
    run = read_run(new_run(last_step=3, plan=None, data=None, environment=None, recipe=None))
    assert set(run.missing) == {
        "recipe.yaml",
        "plan.json",
        "environment.json",
        "data.json",
        "samples.jsonl",
        "scores.json",
    }
    assert (
        run.missing["plan.json"]
        == "plan.json (the plan and its predictions) is not in the run folder."
    )
    builders = (
        tables.plan_table,
        tables.split_table,
        tables.tokenizer_table,
        tables.leakage_table,
        tables.environment_table,
        tables.score_table,
    )
    assert [build(run) for build in builders] == [None] * len(builders)
    assert tables.comparisons(run) == []


def test_values_of_a_wrong_kind_are_passed_over(new_run: MakeRun) -> None:
    plan = {
        "predicted": [1],
        "choices": {"a": 1},
        "memory_terms": {"weights": "many"},
        "micro_batch": "4",
    }
    run = read_run(
        new_run(
            plan=plan,
            data={"splits": 3, "tokenizer": None},
            scores={"validation": 2, "test": {"loss": None, "baselines": []}},
            metrics=[{"kind": "step"}],
        )
    )
    assert tables.comparisons(run) == []
    assert tables.memory_terms(run) == []
    assert tables.plan_table(run) is tables.split_table(run) is None
    assert tables.baselines(run) == []
    assert tables.batch_sentence(run) == ""


def test_reading_and_building_tables_changes_nothing(new_run: MakeRun) -> None:
    run = read_run(new_run())
    before = copy.deepcopy(run)
    for table in (
        tables.comparisons,
        tables.score_table,
        tables.environment_table,
        tables.baselines,
        tables.memory_terms,
    ):
        table(run)
    assert run == before
