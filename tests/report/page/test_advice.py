"""Advice: each from a measurement with its number, and none where nothing was measured or nothing
stands out.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.recipe import load
from brimful.report.page.advice import Advice, advice
from brimful.runs.folder import read_run

Advise = Callable[..., list[Advice]]

GIB = 2**30
MIB = 2**20


def start(step: int = 0) -> JsonDict:
    return {"kind": "start", "step": step, "total_steps": 40, "resumed": False}


def steps(
    step_time_s: float = 1.0, wait_s: float = 0.0, first_s: float | None = None
) -> list[JsonDict]:
    times = [first_s or step_time_s] * 2 + [step_time_s + 1e-6] * 38
    return [
        {
            "kind": "step",
            "step": step,
            "loss": 1.0,
            "step_time_s": time_s,
            "loader_wait_s": wait_s,
            "memory_bytes": 5 * GIB,
        }
        for step, time_s in enumerate(times, start=1)
    ]


def end(seconds: float) -> JsonDict:
    return {"kind": "end", "step": 40, "seconds": seconds, "reason": "finished"}


def many(kind: str, count: int, seconds: float, **more: Any) -> list[JsonDict]:
    return [
        {"kind": kind, "step": 40 // count * number, "loss": 1.0, "seconds": seconds, **more}
        for number in range(1, count + 1)
    ]


def loader(workers: int, **seconds: float) -> JsonDict:
    rates = {name.removeprefix("w"): value for name, value in seconds.items()}
    return {
        "kind": "loader",
        "step": 40,
        "loader_workers": workers,
        "seconds_per_batch": rates,
        "batches": dict.fromkeys(rates, 20),
    }


@pytest.fixture
def advised(new_run: MakeRun) -> Advise:
    """`advised(*records, samples=[...], limits={...}, plan={...})`: what a run with these records
    is told.
    """

    def of(
        *records: JsonDict,
        samples: list[JsonDict] | None = None,
        limits: dict[str, float] | None = None,
        **files: Any,
    ) -> list[Advice]:
        folder = new_run(metrics=[start(), *records], **files)
        if samples is not None:
            told = [
                {"kind": "sample", "time": float(place), "covers_s": 1.0, **values}
                for place, values in enumerate(samples)
            ]
            lines = [{"kind": "monitor", "time": 0.0, "limits": limits or {}}, *told]
            (folder / "monitor.jsonl").write_text(
                "".join(json.dumps(record) + "\n" for record in lines)
            )
        return advice(read_run(folder))

    return of


def one(found: list[Advice], topic: str) -> Advice:
    assert [each.topic for each in found] == [topic]
    if found[0].change and "FOLDER" not in found[0].change:  # what is advised can be typed
        load("quickstart", [found[0].change])
    return found[0]


def test_a_run_in_which_nothing_stands_out_is_left_alone(
    advised: Advise,
) -> None:
    calm = [
        {
            "throttled_s": {},
            "process_swap_bytes": 0,
            "disk_free_bytes": 50 * GIB,
            "swap_used_bytes": GIB,
        }
    ] * 5

    assert (
        advised(
            *steps(wait_s=0.01),
            *many("checkpoint", 2, 0.5, bytes=GIB),
            *many("evaluation", 2, 1.0),
            end(45.0),
            samples=calm,
        )
        == []
    )


def test_a_run_that_measured_nothing_is_told_nothing(advised: Advise) -> None:
    assert advised() == []


def test_seconds_are_not_worth_an_advice(advised: Advise) -> None:
    assert advised(*steps(0.1), *many("evaluation", 10, 0.4), end(8.0)) == []


def test_more_loader_threads_are_advised_where_they_were_measured_to_be_faster(
    advised: Advise,
    snapshot: SnapshotAssertion,
) -> None:
    told = one(
        advised(*steps(wait_s=0.31), loader(1, w1=0.040, w2=0.022, w4=0.021), end(45.0)), "loader"
    )

    assert told.change == "plan.loader_workers=2", "four threads were hardly faster than two"
    assert str(told) == snapshot


def test_threads_that_do_not_help_are_not_advised(
    advised: Advise, snapshot: SnapshotAssertion
) -> None:
    told = one(advised(*steps(wait_s=0.31), loader(1, w1=0.040, w2=0.039), end(45.0)), "loader")

    assert told.change == ""
    assert told.text == snapshot


def test_making_batches_when_they_are_needed_is_advised_against(
    advised: Advise,
) -> None:
    assert (
        one(advised(*steps(wait_s=0.31), loader(0, w1=0.31, w2=0.31), end(45.0)), "loader").change
        == "plan.loader_workers=1"
    )


@pytest.mark.parametrize(
    "records",
    [
        [],
        [loader(8, w1=0.04)],
        [{"kind": "loader", "seconds_per_batch": "?"}],
        [loader(1, w1=-1.0, two=0.1)],
    ],
)
def test_waiting_without_a_fitting_measurement_brings_no_advice(
    advised: Advise, records: list[JsonDict]
) -> None:
    assert advised(*steps(wait_s=0.31), *records, end(45.0)) == []


def test_evaluations_that_take_too_much_are_to_be_fewer(
    advised: Advise,
    snapshot: SnapshotAssertion,
) -> None:
    told = one(advised(*steps(), *many("evaluation", 10, 3.0), end(70.0)), "evaluation")

    assert told.text == snapshot
    assert told.change == "evaluation.every=40"
    assert (
        one(
            advised(*steps(), *many("evaluation", 20, 0.6), end(52.0), name="b"), "evaluation"
        ).change
        == "evaluation.every=6"
    )


def test_checkpoints_after_every_evaluation_become_fewer_with_them(
    advised: Advise,
    snapshot: SnapshotAssertion,
) -> None:
    records = [
        *steps(),
        *many("evaluation", 10, 0.1),
        *many("checkpoint", 10, 1.0, bytes=300 * MIB),
        end(52.0),
    ]
    told = one(advised(*records), "checkpoint")

    assert told.text == snapshot
    assert told.change == "evaluation.every=40"


def test_checkpoints_that_the_recipe_asked_for_are_left_to_brimful(
    advised: Advise,
) -> None:
    records = [*steps(), *many("evaluation", 2, 0.1), *many("checkpoint", 20, 0.5), end(51.0)]
    often = yaml.safe_dump({"name": "quickstart", "checkpoint": {"every": 2}})

    assert one(advised(*records, recipe=often), "checkpoint").change == "checkpoint.every=auto"
    assert one(advised(*records, name="auto"), "checkpoint").change == "run.folder=FOLDER"


def test_compiling_that_takes_longer_than_all_steps_is_advised_against(
    advised: Advise,
) -> None:
    records = [*steps(0.1, first_s=10.0), end(25.0)]

    assert one(advised(*records, plan={"compile": True}), "compile").change == "plan.compile=false"
    assert advised(*records, plan={"compile": False}, name="eager") == []


def test_throttling_is_told_with_its_share_and_its_cause(
    advised: Advise,
    snapshot: SnapshotAssertion,
) -> None:
    hot = [
        {"throttled_s": {"power cap": 1.0}, "power_w": 69.0, "temperature_c": 80},
        {"throttled_s": {}, "power_w": 69.0},
    ]
    told = one(
        advised(*steps(), end(45.0), samples=hot * 4, limits={"power_limit_w": 70.0}), "throttling"
    )

    assert told.text == snapshot
    thermal = [{"throttled_s": {"thermal (hardware)": 0.2}, "temperature_c": 93}]
    assert (
        one(advised(*steps(), end(45.0), samples=thermal, name="b"), "throttling").text == snapshot
    )


def test_swap_is_that_of_the_process_where_it_is_known(
    advised: Advise,
    snapshot: SnapshotAssertion,
) -> None:
    swapped = [
        {"process_swap_bytes": 0, "swap_used_bytes": 9 * GIB},
        {"process_swap_bytes": 2 * GIB, "swap_used_bytes": 9 * GIB},
    ]
    on_gpu = {"device": {"kind": "cuda"}, "micro_batch": 8}

    told = one(advised(*steps(), end(45.0), samples=swapped), "swap")
    assert (told.change, "up to 2.00 GiB of this process" in told.text) == (
        "plan.micro_batch=4",
        True,
    )
    assert (
        one(advised(*steps(), end(45.0), samples=swapped, plan=on_gpu, name="b"), "swap").change
        == ""
    )
    others = [{"swap_used_bytes": size} for size in (9 * GIB, 10 * GIB)]
    assert one(advised(*steps(), end(45.0), samples=others, name="c"), "swap").text == snapshot
    assert advised(*steps(), end(45.0), samples=others[:1], name="d") == []


def bounded(reason: str) -> JsonDict:
    choice = {"name": "micro_batch", "value": 8, "reason": reason, "alternative": 4}
    return {
        "choices": [choice],
        "micro_batch": 8,
        "accumulation": 1,
        "predicted": {"peak_memory_bytes": 7 * GIB},
        "predicted_interval": {"peak_memory_bytes": [6 * GIB, 8 * GIB]},
    }


def test_room_that_the_plan_did_not_dare_to_use_is_told(
    advised: Advise,
    snapshot: SnapshotAssertion,
) -> None:
    told = one(
        advised(
            *steps(),
            end(45.0),
            plan=bounded("256 ms a step; 4 would take 269 ms, 5% more; 8 sequences fit 9.00 GiB"),
        ),
        "memory",
    )

    assert told.change == "plan.margin=tight"
    assert told.text == snapshot
    assert (
        advised(
            *steps(),
            end(45.0),
            plan=bounded("256 ms a step; 4 would take 269 ms, 5% more"),
            name="b",
        )
        == []
    )
    tight = yaml.safe_dump({"name": "quickstart", "plan": {"margin": "tight"}})
    assert (
        advised(
            *steps(),
            end(45.0),
            plan=bounded("8 sequences fit 9.00 GiB, one more may not"),
            recipe=tight,
            name="c",
        )
        == []
    )


def test_a_disk_with_no_room_for_checkpoints_is_told(
    advised: Advise, snapshot: SnapshotAssertion
) -> None:
    records = [
        *steps(),
        *many("evaluation", 2, 0.1),
        *many("checkpoint", 2, 0.5, bytes=GIB),
        end(45.0),
    ]

    told = one(
        advised(*records, samples=[{"disk_free_bytes": 9 * GIB}, {"disk_free_bytes": 2 * GIB}]),
        "disk",
    )
    assert told.text == snapshot


def test_what_costs_most_comes_first(advised: Advise) -> None:
    records = [
        *steps(wait_s=0.2),
        loader(1, w1=0.04, w2=0.02),
        *many("evaluation", 10, 3.0),
        end(75.0),
    ]

    assert [each.topic for each in advised(*records)] == ["evaluation", "loader"]


def test_two_advices_do_not_give_one_key_two_values(advised: Advise) -> None:
    records = [
        *steps(),
        *many("evaluation", 10, 3.0),
        *many("checkpoint", 10, 1.0, bytes=MIB),
        end(85.0),
    ]

    assert [(each.topic, each.change) for each in advised(*records)] == [
        ("evaluation", "evaluation.every=40"),
        ("checkpoint", "evaluation.every=40"),
    ]


def test_times_that_no_float_adds_up_give_no_advice_on_them(
    advised: Advise,
) -> None:
    records = [
        *steps(4e306),
        *many("checkpoint", 2, 5e307, bytes=GIB),
        *many("evaluation", 10, 1.0),
        end(1e308),
    ]

    assert {each.topic for each in advised(*records)} <= {"checkpoint"}


def test_integers_that_no_float_holds_are_no_measurements(
    advised: Advise,
) -> None:
    assert (
        advised(*steps(1.0), *many("evaluation", 2, 10**400), {**end(45.0), "step": 10**400}) == []
    )
