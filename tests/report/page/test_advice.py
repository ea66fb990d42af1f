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


def bounded(reason: str) -> JsonDict:
    choice = {"name": "micro_batch", "value": 8, "reason": reason, "alternative": 4}
    return {
        "choices": [choice],
        "micro_batch": 8,
        "accumulation": 1,
        "predicted": {"peak_memory_bytes": 7 * GIB},
        "predicted_interval": {"peak_memory_bytes": [6 * GIB, 8 * GIB]},
    }


CALM = {
    "throttled_s": {},
    "process_swap_bytes": 0,
    "disk_free_bytes": 50 * GIB,
    "swap_used_bytes": GIB,
}
HOT = {"throttled_s": {"power cap": 1.0}, "power_w": 69.0, "temperature_c": 80}
SWAPPED = [{"process_swap_bytes": size, "swap_used_bytes": 9 * GIB} for size in (0, 2 * GIB)]
OTHERS_SWAP = [{"swap_used_bytes": size} for size in (9 * GIB, 10 * GIB)]
CHECKPOINTS = [*steps(), *many("evaluation", 2, 0.1), *many("checkpoint", 20, 0.5)]
COMPILED = [*steps(0.1, first_s=10.0), end(25.0)]
STEPS, WAITING, END = steps(), steps(wait_s=0.31), end(45.0)


def recipe(**values: JsonDict) -> str:
    return yaml.safe_dump({"name": "quickstart", **values})


CASES: dict[str, tuple[list[JsonDict], JsonDict]] = {
    "nothing stands out": (
        [
            *steps(wait_s=0.01),
            *many("checkpoint", 2, 0.5, bytes=GIB),
            *many("evaluation", 2, 1.0),
            END,
        ],
        {"samples": [CALM] * 5},
    ),
    "nothing measured": ([], {}),
    "seconds only": ([*steps(0.1), *many("evaluation", 10, 0.4), end(8.0)], {}),
    "more threads were faster, four hardly more than two": (
        [*WAITING, loader(1, w1=0.040, w2=0.022, w4=0.021), END],
        {},
    ),
    "more threads did not help": ([*WAITING, loader(1, w1=0.040, w2=0.039), END], {}),
    "batches made when needed": ([*WAITING, loader(0, w1=0.31, w2=0.31), END], {}),
    "waiting, threads not measured": ([*WAITING, END], {}),
    "waiting, other threads measured": ([*WAITING, loader(8, w1=0.04), END], {}),
    "waiting, damaged measurement": (
        [*WAITING, {"kind": "loader", "seconds_per_batch": "?"}, END],
        {},
    ),
    "waiting, senseless measurement": ([*WAITING, loader(1, w1=-1.0, two=0.1), END], {}),
    "long evaluations": ([*STEPS, *many("evaluation", 10, 3.0), end(70.0)], {}),
    "many evaluations": ([*STEPS, *many("evaluation", 20, 0.6), end(52.0)], {}),
    "checkpoints after every evaluation": (
        [
            *STEPS,
            *many("evaluation", 10, 0.1),
            *many("checkpoint", 10, 1.0, bytes=300 * MIB),
            end(52.0),
        ],
        {},
    ),
    "checkpoints as the recipe asks": (
        [*CHECKPOINTS, end(51.0)],
        {"recipe": recipe(checkpoint={"every": 2})},
    ),
    "checkpoints as brimful chose": ([*CHECKPOINTS, end(51.0)], {}),
    "compiled for few steps": (COMPILED, {"plan": {"compile": True}}),
    "eager": (COMPILED, {"plan": {"compile": False}}),
    "power cap": (
        [*STEPS, END],
        {
            "samples": [HOT, {"throttled_s": {}, "power_w": 69.0}] * 4,
            "limits": {"power_limit_w": 70.0},
        },
    ),
    "too hot": (
        [*STEPS, END],
        {"samples": [{"throttled_s": {"thermal (hardware)": 0.2}, "temperature_c": 93}]},
    ),
    "swap of this process": ([*STEPS, END], {"samples": SWAPPED}),
    "swap of this process beside a GPU": (
        [*STEPS, END],
        {"samples": SWAPPED, "plan": {"device": {"kind": "cuda"}, "micro_batch": 8}},
    ),
    "swap that grew": ([*STEPS, END], {"samples": OTHERS_SWAP}),
    "swap that was there before": ([*STEPS, END], {"samples": OTHERS_SWAP[:1]}),
    "room in memory": (
        [*STEPS, END],
        {"plan": bounded("256 ms a step; 4 would take 269 ms, 5% more; 8 sequences fit 9.00 GiB")},
    ),
    "time bounds the micro-batch": (
        [*STEPS, END],
        {"plan": bounded("256 ms a step; 4 would take 269 ms, 5% more")},
    ),
    "room in memory, tight already": (
        [*STEPS, END],
        {
            "plan": bounded("8 sequences fit 9.00 GiB, one more may not"),
            "recipe": recipe(plan={"margin": "tight"}),
        },
    ),
    "disk nearly full": (
        [*STEPS, *many("evaluation", 2, 0.1), *many("checkpoint", 2, 0.5, bytes=GIB), END],
        {"samples": [{"disk_free_bytes": size * GIB} for size in (9, 2)]},
    ),
    "what costs most first": (
        [
            *steps(wait_s=0.2),
            loader(1, w1=0.04, w2=0.02),
            *many("evaluation", 10, 3.0),
            end(75.0),
        ],
        {},
    ),
    "one value for one key": (
        [
            *STEPS,
            *many("evaluation", 10, 3.0),
            *many("checkpoint", 10, 1.0, bytes=MIB),
            end(85.0),
        ],
        {},
    ),
}
"""Records of a run, and its other files."""


@pytest.mark.parametrize("case", CASES)
def test_what_is_advised(advised: Advise, case: str, snapshot: SnapshotAssertion) -> None:
    records, files = CASES[case]
    told = advised(*records, **files)
    for each in told:
        if each.change and "FOLDER" not in each.change:
            load("quickstart", [each.change])  # what is advised can be typed
    assert [f"{each.topic}: {each}" for each in told] == snapshot


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
