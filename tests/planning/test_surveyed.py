"""What was found out about a recipe on a device, as plain values."""

import json
from typing import Any

from fixture_types import Devices, Make, MakeDevice, MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.planning.derive import derive_with_memory
from brimful.planning.remedies import remedies
from brimful.planning.surveyed import Surveyed, Unplanned


def test_everything_that_was_found_out_is_plain_values(
    tiny: MakeRecipe, devices: Devices, cheap_tracer: Any
) -> None:
    derived = derive_with_memory(tiny("plan={}"), devices["Tesla T4"], cheap_tracer)
    table = tuple(derived.memory.at(size) for size in (1, 2, 8))
    found = remedies(derived.prepared, cheap_tracer, recomputes=False)
    surveyed = Surveyed(derived, table, found, "NVIDIA H200")

    values = json.loads(json.dumps(surveyed.to_json(), allow_nan=False))

    assert (
        values["device"],
        values["verdict"],
        values["largest_micro_batch"],
        values["smallest_device"],
    ) == ("Tesla T4", "fits", 8, "NVIDIA H200")
    assert [row["micro_batch"] for row in values["table"]] == [1, 2, 8]
    assert [row["name"] for row in values["remedies"]] == [remedy.name for remedy in found]
    assert values["plan"] == json.loads(json.dumps(derived.plan.to_json()))
    assert values["memory"]["micro_batch"] == values["plan"]["micro_batch"] == 8


def test_device_and_verdict_are_those_of_the_plan(
    tiny: MakeRecipe, cpu: MakeDevice, by_hand: Make
) -> None:
    small = cpu(free_memory_bytes=2**20)

    surveyed = Surveyed(derive_with_memory(tiny("plan={}"), small, lambda spec: by_hand()))

    assert surveyed.device == small
    assert surveyed.verdict == "does not fit"
    assert (surveyed.table, surveyed.remedies, surveyed.smallest_device) == ((), (), None)


def test_a_device_without_a_plan_says_why(devices: Devices, snapshot: SnapshotAssertion) -> None:
    told = Unplanned(devices["Tesla T4"], "it cannot be traced").to_json()

    assert told == snapshot
