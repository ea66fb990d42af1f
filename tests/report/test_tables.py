"""Tables hold what the files say, computed the stated way; what is absent stays absent."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from brimful.base.errors import RunFolderError
from brimful.model.build import build, num_parameters
from brimful.recipe import Recipe
from brimful.report import tables
from brimful.runs.runfiles import (
    RunFiles,
    comparable,
    counted_parameters,
    losses_by_training_time,
    measured,
    read_run,
    steady,
    total_time_s,
    training_time_s,
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


def test_measured_is_the_median_step_the_highest_memory_and_the_counted_parameters(
    new_run: MakeRun,
) -> None:
    records = [
        start(0, 4) | {"tokens_per_step": 10},
        *SLOW_START,
        {"kind": "end", "step": 4, "seconds": 11.5, "reason": "finished"},
    ]
    found = measured(read_run(new_run(metrics=records, plan=None)))
    assert found == {
        "parameters": 612,
        "peak_memory_bytes": 2000,
        "step_time_s": 0.5,
        "tokens_per_s": 20.0,
        "training_time_s": 1.75,
        "evaluation_time_s": 0,
        "checkpoint_time_s": 0,
        "start_time_s": 9.75,
        "total_time_s": 11.5,
    }


def test_the_first_steps_of_every_session_are_left_out_of_the_median_and_counted(
    new_run: MakeRun,
) -> None:
    first = [step(number, 0, step_time_s=4.0) for number in (1, 2)]
    resumed = [start(3), step(4, 9, step_time_s=7.0), step(5, 10, step_time_s=0.6)]
    counted = steady(
        read_run(new_run(metrics=[start(0), *first, step(3, 1, step_time_s=0.5), *resumed]))
    )
    assert counted.step_time_s == pytest.approx(0.55)
    assert counted.num_left_out == 3


def test_a_run_of_first_steps_only_keeps_them(new_run: MakeRun) -> None:
    counted = steady(read_run(new_run(metrics=[start(0), step(1, 0), step(2, 0)])))
    assert (counted.step_time_s, counted.num_left_out) == (0.5, 0)


def test_the_stages_of_a_finished_run_add_up_to_its_time_in_all(new_run: MakeRun) -> None:
    found = measured(read_run(new_run()))
    stages = ("training", "evaluation", "checkpoint", "start")
    assert sum(found[f"{stage}_time_s"] for stage in stages) == pytest.approx(found["total_time_s"])
    assert found["evaluation_time_s"] == pytest.approx(5.0)
    assert found["checkpoint_time_s"] == pytest.approx(2.0)


def test_utilisation_and_cost_are_the_plans_own_over_the_measured_time(new_run: MakeRun) -> None:
    run = read_run(new_run())
    found, predicted = measured(run), run.plan["predicted"]
    assert found["mfu"] * found["step_time_s"] == pytest.approx(
        predicted["mfu"] * predicted["step_time_s"]
    )
    assert found["cost_usd"] / found["total_time_s"] == pytest.approx(
        predicted["cost_usd"] / predicted["total_time_s"]
    )
    assert "energy_wh" not in found


def test_a_step_time_is_remembered_only_where_the_plan_speaks_about_it(new_run: MakeRun) -> None:
    ran_out = {"kind": "out_of_memory", "step": 2, "phase": "training", "from": [8], "to": [4, 4]}
    quick, whole = [start(0), step(1, 0)], [start(0), *SLOW_START]
    assert comparable(read_run(new_run("quick", metrics=quick))) == {"peak_memory_bytes": 1000}
    assert comparable(read_run(new_run("whole", metrics=whole))) == {
        "peak_memory_bytes": 2000,
        "step_time_s": 0.5,
    }
    assert comparable(read_run(new_run("smaller", metrics=[*whole, ran_out]))) == {
        "peak_memory_bytes": 2000
    }
    failed = {
        "kind": "event",
        "step": 0,
        "message": "torch.compile failed, training goes on without it: x",
    }
    assert comparable(read_run(new_run("eager", metrics=[start(0), failed, *SLOW_START]))) == {
        "peak_memory_bytes": 2000
    }
    padded = {"choices": [{"name": "packing", "value": "document"}]}
    assert comparable(read_run(new_run("padded", metrics=whole, plan=padded))) == {
        "peak_memory_bytes": 2000
    }
    assert comparable(read_run(new_run("empty", metrics=[]))) == {}


def test_of_a_continued_run_the_last_session_is_remembered(new_run: MakeRun) -> None:
    """Its plan is the one in the folder; an earlier session may have had another."""
    later = [step(5, 0, step_time_s=3.0), step(6, 1, step_time_s=0.75)]
    assert comparable(
        read_run(new_run("later", metrics=[start(0), *SLOW_START, start(4), *later]))
    ) == {
        "peak_memory_bytes": 1000,
        "step_time_s": 0.75,
    }
    assert comparable(
        read_run(new_run("short", metrics=[start(0), *SLOW_START, start(4), later[0]]))
    ) == {"peak_memory_bytes": 1000}


def test_tokens_per_second_count_positions_as_the_plan_does(new_run: MakeRun) -> None:
    counted = [start(0) | {"tokens_per_step": 64}, *SLOW_START]
    assert measured(read_run(new_run("counted", metrics=counted)))["tokens_per_s"] == pytest.approx(
        128.0
    )
    assert "tokens_per_s" not in measured(
        read_run(new_run("older", metrics=[start(0), *SLOW_START]))
    )


def test_training_time_counts_each_recorded_step_for_those_left_out_before_it(
    new_run: MakeRun,
) -> None:
    records = [
        start(0, 14),
        *(step(at, 0, step_time_s=time) for at, time in ((4, 0.5), (8, 1.0), (12, 0.5))),
    ]
    records.append({"kind": "end", "step": 14, "reason": "finished"})
    assert training_time_s(read_run(new_run(metrics=records))) == pytest.approx(
        4 * 0.5 + 4 * 1.0 + 4 * 0.5 + 2 * 0.5
    )


def test_compiling_and_warming_up_is_no_training_time(new_run: MakeRun) -> None:
    records = [
        start(0, 3),
        step(1, 0, step_time_s=9.0),
        step(2, 1, step_time_s=0.5),
        step(3, 2, step_time_s=0.5),
    ]
    run = read_run(
        new_run(
            metrics=[*records, {"kind": "end", "step": 3, "seconds": 11.0, "reason": "finished"}]
        )
    )
    assert training_time_s(run) == pytest.approx(1.5)
    assert measured(run)["start_time_s"] == pytest.approx(9.5)


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


def test_training_time_adds_up_the_sessions_a_killed_one_from_its_first_step_to_its_last_record(
    new_run: MakeRun,
) -> None:
    """3 s between the records of the killed one, and before them the two steps of half a second
    that were timed together.
    """
    ended = {"kind": "end", "step": 4, "seconds": 7.0, "reason": "finished"}
    run = read_run(
        new_run(
            metrics=[
                start(0),
                step(1, 100.0),
                step(2, 103.0),
                start(2),
                step(3, 500.0),
                step(4, 501.0),
                ended,
            ]
        )
    )
    assert total_time_s(run) == pytest.approx(11.0)
    assert run.is_finished


def test_a_killed_session_ends_with_the_evaluation_and_the_checkpoint_after_its_last_step(
    new_run: MakeRun,
) -> None:
    last = [
        {"kind": "evaluation", "step": 2, "seconds": 4.0},
        {"kind": "checkpoint", "step": 2, "seconds": 1.0},
    ]
    run = read_run(new_run(metrics=[start(0), step(1, 100.0), *last, step(2, 106.0), *last]))
    assert total_time_s(run) == pytest.approx(0.5 * 2 + 6.0 + 5.0)


def test_a_run_counts_as_finished_only_when_its_last_session_says_so(new_run: MakeRun) -> None:
    interrupted = {"kind": "end", "step": 2, "seconds": 1.0, "reason": "interrupted"}
    finished = {"kind": "end", "step": 4, "seconds": 1.0, "reason": "finished"}
    cases = {
        "a": [start(0), step(2, 0.0), interrupted],
        "b": [start(0), step(2, 0.0)],
        "c": [start(0), interrupted, start(2), step(3, 0.0)],
    }
    assert not any(
        read_run(new_run(name, metrics=records)).is_finished for name, records in cases.items()
    )
    assert read_run(
        new_run("d", metrics=[start(0), interrupted, start(2), step(4, 0.0), finished])
    ).is_finished


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


@pytest.mark.parametrize("content", [b"{", b"[1, 2]", b"\xff\xfe\x00", b"", b"null"])
@pytest.mark.parametrize(
    "name", ["plan.json", "environment.json", "data.json", "scores.json", "recipe.yaml"]
)
def test_an_unreadable_file_is_named_like_a_missing_one(
    new_run: MakeRun, name: str, content: bytes
) -> None:
    folder = new_run()
    (folder / name).write_bytes(content)
    assert name in read_run(folder).missing


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


def test_a_damaged_model_file_counts_no_parameters(tmp_path: Path) -> None:
    assert counted_parameters(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    assert counted_parameters(tmp_path) is None


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        read_run(tmp_path)
    with pytest.raises(RunFolderError, match="is not a folder"):
        read_run(tmp_path / "nothing")


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


def evaluation(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "evaluation", "step": step, "loss": loss, "seconds": 60.0}


def test_losses_stand_at_the_training_time_before_them(new_run: MakeRun) -> None:
    """Warming up of a session, evaluations and what stands still do not count."""
    slow, usual = {"step_time_s": 5.0}, {"step_time_s": 0.5}
    before = [
        start(0),
        step(1, 9.0, **slow),
        step(2, 10.0, **usual),
        evaluation(2, 4.0),
        step(4, 20.0, **usual),
        evaluation(4, 3.0),
    ]
    after = [start(4), step(5, 30.0, **slow), step(6, 31.0, **usual), evaluation(6, 2.0)]

    assert losses_by_training_time(read_run(new_run(metrics=before + after))) == (
        (1.0, 4.0),
        (2.0, 3.0),
        (3.0, 2.0),
    )
    assert losses_by_training_time(read_run(new_run("young", metrics=[start(0)]))) == ()


def test_an_evaluation_that_was_made_again_counts_once(new_run: MakeRun) -> None:
    """A killed session goes on from its checkpoint and evaluates the same step again."""
    records = [
        start(0),
        step(1, 1.0),
        step(2, 2.0),
        evaluation(2, 4.0),
        start(1),
        step(2, 3.0),
        evaluation(2, 4.5),
        step(3, 4.0),
        evaluation(3, 3.0),
    ]

    assert losses_by_training_time(read_run(new_run(metrics=records))) == ((1.0, 4.5), (1.5, 3.0))


def test_random_directions_of_kernel_attention_are_no_parameters(tmp_path: Path) -> None:
    """Whatever this program saves: its buffers are known by name."""
    for architecture in ("llama", "gpt2", "okadfa"):
        recipe = Recipe.model_validate(
            {
                "name": "counted",
                "sequence_length": 16,
                "batch": {"sequences": 2},
                "training": {"steps": 1},
                "data": {"path": "words.txt"},
                "model": {"architecture": architecture, "layers": 2, "heads": 2, "width": 32},
                "tokenizer": {"kind": "bpe", "vocabulary": 300},
                "optimizer": {"learning_rate": 1e-2},
            }
        )
        model = build(
            recipe, vocabulary=300, end_of_text_id=0, attention="sdpa", device=torch.device("cpu")
        )
        model.save_pretrained(tmp_path / architecture)

        assert counted_parameters(tmp_path / architecture) == num_parameters(model)


def test_numbers_beyond_what_was_ever_counted_are_left_out(new_run: Callable[..., Path]) -> None:
    """Steps of 1e308 and integers of 400 digits, as a damaged line may tell them."""
    odd = [
        {"kind": "step", "step": step, "loss": 1.0, "step_time_s": 10**308, "memory_bytes": 10**400}
        for step in (-1e308, 1e308, 10**400)
    ]
    run = read_run(
        new_run(
            metrics=[
                {"kind": "start", "step": 0, "total_steps": 1},
                *odd,
                {"kind": "end", "step": 1, "reason": "finished"},
            ]
        )
    )

    assert run.last_step == 1
    assert "peak_memory_bytes" not in measured(run)
