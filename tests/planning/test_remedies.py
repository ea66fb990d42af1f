"""What would take less memory is measured, and what it says on the command line does that."""

import dataclasses
import json
from typing import Any

import pytest
from fixture_types import Devices, Make, MakeRecipe

from brimful.base.units import GIB, MIB
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.planning.remedies import Remedy, cheapest_remedy, least_bytes, remedies
from brimful.planning.step import StepSpec
from brimful.planning.survey import Memory, Prepared, prepare
from brimful.planning.trace import Unrecorded


def _by_name(found: tuple[Remedy, ...]) -> dict[str, Remedy]:
    assert len({remedy.name for remedy in found}) == len(found)
    return {remedy.name: remedy for remedy in found}


def _one_bytes(prepared: Prepared, tracer: Any, *, recomputes: bool) -> float:
    return (
        Memory(tracer(prepared.spec(recompute=recomputes)), prepared.target).at(1).allocated.value
    )


@pytest.mark.parametrize(
    ("overrides", "recomputes", "names"),
    [
        ((), False, {"recomputation", "4-bit base", "half the sequence length"}),
        ((), True, {"4-bit base", "half the sequence length"}),
        (("quantize=nf4",), True, {"half the sequence length"}),
        (
            ("adapter=null", "optimizer.kind=adamw_8bit"),
            True,
            {"adapters", "half the sequence length"},
        ),
        (("adapter=null",), True, {"8-bit optimizer", "adapters", "half the sequence length"}),
        (
            ("plan.loss_chunk=2048",),
            True,
            {"4-bit base", "half the sequence length", "smaller pieces of the loss"},
        ),
        (("sequence_length=3",), True, {"4-bit base"}),
        (
            ("model=Qwen/Qwen3-30B-A3B", "sequence_length=3"),
            True,
            {"4-bit base", "4-bit experts"},
        ),
        (
            ("model=Qwen/Qwen3-30B-A3B", "sequence_length=3", "adapter.targets=q_proj"),
            True,
            {"4-bit base"},
        ),
    ],
)
def test_what_takes_less_is_offered_where_it_is_not_done_already(
    adapted: MakeRecipe,
    cheap_tracer: Any,
    overrides: tuple[str, ...],
    recomputes: bool,
    names: set[str],
) -> None:
    prepared = prepare(adapted(*overrides), catalog.get("Tesla T4"))

    found = _by_name(remedies(prepared, cheap_tracer, recomputes=recomputes))

    assert set(found) == names
    before_bytes = _one_bytes(prepared, cheap_tracer, recomputes=recomputes)
    for remedy in found.values():
        assert remedy.footprint.allocated.value < before_bytes, remedy.name
        assert remedy.footprint.micro_batch == 1
        assert remedy.change


def test_adapters_on_attention_let_experts_be_packed(
    adapted: MakeRecipe, cheap_tracer: Any
) -> None:
    asked: list[StepSpec] = []

    def tracer(spec: StepSpec) -> Any:
        asked.append(spec)
        return cheap_tracer(spec)

    prepared = prepare(adapted("model=Qwen/Qwen3-30B-A3B"), catalog.get("Tesla T4"))
    set_ = _by_name(remedies(prepared, tracer, recomputes=True))["4-bit experts"].set
    followed = prepare(adapted("model=Qwen/Qwen3-30B-A3B", *set_.split()), prepared.device)

    assert not prepared.spec(recompute=True).packs_experts
    assert followed.spec(recompute=True) in asked
    assert followed.spec(recompute=True).packs_experts


@pytest.mark.parametrize("overrides", [(), ("adapter=null",)])
def test_apple_gpus_are_not_offered_a_base_in_four_bits_which_they_refuse(
    adapted: MakeRecipe, cheap_tracer: Any, overrides: tuple[str, ...]
) -> None:
    small = dataclasses.replace(catalog.get("Apple M4"), memory_bytes=64 * MIB)
    prepared = prepare(adapted(*overrides), small)

    found = remedies(prepared, cheap_tracer, recomputes=False)
    cheapest = cheapest_remedy(prepared, cheap_tracer, recomputes=False)

    assert found
    assert not any("nf4" in each.set for each in (*found, cheapest) if each is not None)


def test_the_most_helpful_stands_first(adapted: MakeRecipe, cheap_tracer: Any) -> None:
    prepared = prepare(
        adapted("adapter=null"),
        dataclasses.replace(catalog.get("Tesla T4"), memory_bytes=24 * GIB),
    )

    found = remedies(prepared, cheap_tracer, recomputes=False)

    assert found[0].largest > found[-1].largest
    order = [(-remedy.largest, remedy.footprint.driver.value) for remedy in found]
    assert order == sorted(order)


@pytest.mark.parametrize("adapter", ["adapter={rank: 16}", "adapter=null"])
def test_an_override_makes_the_recipe_that_was_measured(
    adapted: MakeRecipe, cheap_tracer: Any, adapter: str
) -> None:
    device = catalog.get("Tesla T4")

    for remedy in remedies(prepare(adapted(adapter), device), cheap_tracer, recomputes=False):
        changed = prepare(adapted(adapter, remedy.set), device)
        recomputes = changed.recipe.plan.recompute is True
        assert (
            _one_bytes(changed, cheap_tracer, recomputes=recomputes)
            == remedy.footprint.allocated.value
        ), remedy.name


def test_blocks_that_keep_more_than_their_inputs_can_keep_less(
    adapted: MakeRecipe, cheap_tracer: Any
) -> None:
    def trace(spec: StepSpec) -> Any:
        traces = cheap_tracer(spec)
        kept = 20 if spec.recompute == "selective" else 4
        return dataclasses.replace(traces, sequence_bytes=traces.sequence_bytes * kept // 4)

    prepared = prepare(adapted("plan.recompute=selective"), catalog.get("Tesla T4"))

    found = _by_name(remedies(prepared, trace, recomputes="selective"))

    assert found["recomputation"].set == "plan.recompute=true"
    again = prepare(adapted("plan.recompute=true"), prepared.device)
    assert (
        _one_bytes(again, trace, recomputes=True)
        == found["recomputation"].footprint.allocated.value
    )


def test_a_fresh_model_is_neither_quantised_nor_adapted(
    tiny: MakeRecipe, cheap_tracer: Any, devices: Devices
) -> None:
    found = remedies(prepare(tiny("plan={}"), devices["small cpu"]), cheap_tracer, recomputes=False)

    assert {remedy.name for remedy in found} <= {
        "recomputation",
        "8-bit optimizer",
        "weights in bf16",
        "8-bit optimizer and weights in bf16",
        "half the sequence length",
        "smaller pieces of the loss",
    }


def test_what_takes_no_less_is_not_offered(
    tiny: MakeRecipe, by_hand: Make, devices: Devices
) -> None:
    """These traces need the same whatever is changed but the optimizer."""

    def tracer(spec: Any) -> Any:
        return by_hand(states_bytes=(50 if spec.optimizer == "8bit" else 200) * MIB)

    found = remedies(prepare(tiny("plan={}"), devices["small cpu"]), tracer, recomputes=False)

    assert [remedy.name for remedy in found] == ["8-bit optimizer"]


def test_what_has_no_recording_and_can_have_none_is_left_out(
    adapted: MakeRecipe, cheap_tracer: Any
) -> None:
    def tracer(spec: Any) -> Any:
        if spec.optimizer == "8bit":
            raise Unrecorded("no torch")
        return cheap_tracer(spec)

    prepared = prepare(adapted("adapter=null"), catalog.get("Tesla T4"))

    found = _by_name(remedies(prepared, tracer, recomputes=False))

    assert set(found) == {"recomputation", "adapters", "half the sequence length"}


def test_a_remedy_is_plain_values_for_json(adapted: MakeRecipe, cheap_tracer: Any) -> None:
    found = _by_name(
        remedies(prepare(adapted(), catalog.get("Tesla T4")), cheap_tracer, recomputes=False)
    )

    values = json.loads(json.dumps(found["4-bit base"].to_json()))

    assert values["set"] == "quantize=nf4"
    assert values["footprint"]["micro_batch"] == 1


def _sized(*overrides: str, gib: float, adapted: MakeRecipe) -> Prepared:
    device = dataclasses.replace(catalog.get("Tesla T4"), memory_bytes=int(gib * GIB))
    return prepare(adapted(*overrides), device)


@pytest.mark.parametrize("overrides", [(), ("adapter=null",)], ids=["adapters", "full"])
@pytest.mark.long_but("full")
def test_where_no_single_change_helps_the_first_that_do_together_are_offered(
    adapted: MakeRecipe, cheap_tracer: Any, overrides: tuple[str, ...]
) -> None:
    """From a device that needs no change downwards, there is one that needs several."""
    for tenths in range(600, 1, -2):
        prepared = _sized(*overrides, gib=tenths / 10, adapted=adapted)
        found = remedies(prepared, cheap_tracer, recomputes=False)
        if found[0].largest and " and " in found[0].name:
            break

    first, *singles = found
    assert not any(remedy.largest for remedy in singles)
    changed = prepare(adapted(*overrides, *first.set.split()), prepared.device)
    recomputes = changed.recipe.plan.recompute is True
    needed_bytes = _one_bytes(changed, cheap_tracer, recomputes=recomputes)
    assert needed_bytes == first.footprint.allocated.value


@pytest.mark.parametrize("overrides", [(), ("adapter=null",)], ids=["adapters", "full"])
def test_the_cheapest_remedy_is_the_one_of_all_that_costs_least(
    adapted: MakeRecipe, cheap_tracer: Any, overrides: tuple[str, ...]
) -> None:
    helped = []
    for gib in (40, 20, 12, 8, 4, 2, 1):
        prepared = _sized(*overrides, gib=gib, adapted=adapted)
        found = remedies(prepared, cheap_tracer, recomputes=False)
        fitting = [remedy for remedy in found if remedy.largest]
        expected = min(fitting, key=lambda remedy: remedy.price).set if fitting else None
        remedy = cheapest_remedy(prepared, cheap_tracer, recomputes=False)
        if expected is None or " " not in expected:
            assert (remedy and remedy.set) == expected
        else:
            assert remedy is not None
            assert remedy.largest
        helped.append(expected)
    assert len(set(helped)) > 2


def test_changes_whose_weights_alone_do_not_fit_are_not_tried(
    adapted: MakeRecipe, cheap_tracer: Any
) -> None:
    prepared, asked = _sized(gib=0.5, adapted=adapted), []

    def tracer(spec: Any) -> Any:
        asked.append(spec)
        return cheap_tracer(spec)

    found = remedies(prepared, tracer, recomputes=False)

    assert found
    assert not any(remedy.largest for remedy in found)
    parameters = found[0].footprint.parameters
    assert least_bytes(prepared.changed({"quantize": "nf4"}), parameters) > 0.5 * GIB
    assert len(asked) == 1 + len(found)


def test_weights_in_bf16_are_offered_where_all_train_and_the_device_multiplies_bf16(
    adapted: MakeRecipe, cheap_tracer: Any
) -> None:
    card, full = catalog.get("NVIDIA A100-SXM4-80GB"), ("adapter=null",)

    def offered(device: Device, *changes: str) -> dict[str, Remedy]:
        prepared = prepare(adapted(*changes), device)
        return _by_name(remedies(prepared, cheap_tracer, recomputes=True))

    assert offered(card, *full)["weights in bf16"].set == "optimizer.weights=bf16"
    assert "weights in bf16" not in offered(card)
    assert "weights in bf16" not in offered(card, *full, "optimizer.weights=bf16")
    assert "weights in bf16" not in offered(catalog.get("Tesla T4"), *full)


@pytest.mark.parametrize(
    ("changes", "variant"),
    [((), "rounded"), (("optimizer.kind=adamw_8bit",), "rounded_8bit")],
)
def test_weights_in_bf16_are_measured_as_the_override_would_train_them(
    adapted: MakeRecipe, cheap_tracer: Any, changes: tuple[str, ...], variant: str
) -> None:
    card, asked = catalog.get("NVIDIA A100-SXM4-80GB"), list[Any]()
    prepared = prepare(adapted("adapter=null", *changes), card)

    def tracer(spec: Any) -> Any:
        asked.append(spec)
        return cheap_tracer(spec)

    remedies(prepared, tracer, recomputes=True)

    overridden = prepare(adapted("adapter=null", *changes, "optimizer.weights=bf16"), card)
    expected = overridden.spec(recompute=True)
    assert (expected.weights, expected.optimizer) == ("bf16", variant)
    assert expected in asked


def test_both_changes_of_the_update_come_before_another_kind_of_tuning(
    adapted: MakeRecipe, cheap_tracer: Any
) -> None:
    card = dataclasses.replace(catalog.get("NVIDIA A100-SXM4-80GB"), memory_bytes=13 * GIB)

    found = cheapest_remedy(prepare(adapted("adapter=null"), card), cheap_tracer, recomputes=True)

    assert found is not None
    assert found.set == "optimizer.kind=adamw_8bit optimizer.weights=bf16"
    as_told = prepare(adapted("adapter=null", *found.set.split()), card)
    expected = Memory(cheap_tracer(as_told.spec(recompute=True)), as_told.target).at(1)
    assert found.footprint.allocated == expected.allocated
    assert expected.verdict == "fits"
