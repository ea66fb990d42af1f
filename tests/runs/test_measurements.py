"""What a run measured follows from its records in the stated way."""

from pathlib import Path

import pytest
import torch
from fixture_types import MakeRun
from run_records import measured_step as step
from run_records import start

from brimful.base.types import JsonDict
from brimful.model.build import build, num_parameters
from brimful.recipe import Recipe
from brimful.runs.folder import read_run
from brimful.runs.measurements import (
    comparable,
    counted_parameters,
    losses_by_training_time,
    measured,
    steady,
    total_time_s,
    training_time_s,
)

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


def test_speed_is_measured_without_what_other_programs_took_and_stages_with_it(
    new_run: MakeRun,
) -> None:
    waits = [0.0, 0.25, 0.0, 0.0]
    steps = [each | {"core_wait_s": s} for each, s in zip(SLOW_START, waits, strict=True)]
    run = read_run(new_run(metrics=[start(0, 4) | {"tokens_per_step": 10}, *steps], plan=None))

    assert steady(run).step_time_s == 0.5
    assert steady(run).lost_share == pytest.approx(0.25 / 1.25)
    assert measured(run)["step_time_s"] == 0.25
    assert "step_time_s" not in comparable(run)  # a neighbour slows memory and caches down, too
    assert measured(run)["tokens_per_s"] == 40
    assert training_time_s(run) == 1.75


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
    assert run.plan is not None
    found = measured(run)
    predicted = {name: each.value for name, each in run.plan.predicted.items()}
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
        "message": "B307: torch.compile failed, training goes on without it: x",
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


def test_a_damaged_model_file_counts_no_parameters(tmp_path: Path) -> None:
    assert counted_parameters(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    assert counted_parameters(tmp_path) is None


def evaluation(step: int, loss: float) -> JsonDict:
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


def test_numbers_beyond_what_was_ever_counted_are_left_out(new_run: MakeRun) -> None:
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
