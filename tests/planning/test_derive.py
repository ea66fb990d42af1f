"""How a recipe runs on a device: the effective batch is a promise, choices follow from abilities,
and the user's word stands.
"""

import dataclasses
import random
from typing import Any

import pytest
import torch
from fixture_types import Devices, Make, MakeDevice, MakePlan, MakeRates, MakeRecipe, Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import PlanError
from brimful.base.units import GIB, MIB
from brimful.data.batches import Batch
from brimful.hardware import catalog
from brimful.hardware.guessed import guessed_rates
from brimful.model.description import count_parameters
from brimful.planning.derive import Facts, derive_with_memory, refuse_what_cannot_fit
from brimful.planning.longest_pass import split
from brimful.planning.plan import Plan
from brimful.planning.step import StepSpec
from brimful.planning.survey import Tracer
from brimful.planning.target import HOST_GROWTH_BYTES
from brimful.recipe import Recipe
from brimful.rehearsal.store import StoredTraces


def _choice(plan: Plan, name: str) -> object:
    (value,) = [choice.value for choice in plan.choices if choice.name == name]
    return value


def _reason(plan: Plan, name: str) -> str:
    (reason,) = [choice.reason for choice in plan.choices if choice.name == name]
    return reason


def _random_recipe(seed: int) -> Recipe:
    """Small and large models, short and long sequences, odd and even batches, some of the plan
    fixed.
    """
    draw = random.Random(seed)
    heads, length = draw.choice([1, 2, 8]), draw.choice([2, 33, 128, 1024, 4096])
    plan: dict[str, object] = {}
    if draw.random() < 0.3:
        plan["micro_batch"] = draw.randint(1, 600)
    if draw.random() < 0.3:
        plan["precision"] = draw.choice(["fp32", "bf16", "fp16"])
    if draw.random() < 0.3:
        plan["loss_chunk"] = draw.randint(1, 5000)
    if draw.random() < 0.5:
        plan["margin"] = draw.choice(["conservative", "tight"])
    batch = draw.randint(1, 600)
    return Recipe.model_validate(
        {
            "name": f"random-{seed}",
            "sequence_length": length,
            "batch": draw.choice([{"sequences": batch}, {"tokens": batch * length}]),
            "training": draw.choice([{"steps": 10}, {"epochs": 1.5}, {"tokens": 10**6}]),
            "model": {
                "architecture": draw.choice(["llama", "gpt2"]),
                "layers": draw.randint(1, 24),
                "heads": heads,
                "width": heads * 2 * draw.randint(1, 64),
                "tie_embeddings": draw.random() < 0.5,
            },
            "tokenizer": {"vocabulary": draw.choice([257, 4096, 50_257])},
            "data": {"path": "x.txt"},
            "optimizer": {"learning_rate": 1e-3},
            "plan": plan,
        }
    )


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("block", range(4))
def test_the_effective_batch_is_the_recipes_on_every_device(
    devices: Devices, block: int, planned: MakePlan, *, timed: bool
) -> None:
    """And the training loop gets through it in order, every sequence once. With rates every recipe
    is planned for one of the devices.
    """
    refused = 0
    for seed in range(50 * block, 50 * (block + 1)):
        recipe = _random_recipe(seed)
        for device in [list(devices.values())[seed % len(devices)]] if timed else devices.values():
            try:
                plan = planned(recipe, device, rates=guessed_rates(device) if timed else None)
            except PlanError:
                refused += 1
                continue

            assert sum(plan.micro_batches) == plan.effective_batch == recipe.effective_batch, (
                seed,
                device.name,
            )
            assert set(plan.micro_batches[:-1]) <= {plan.micro_batches[0]}, (seed, device.name)
            assert 0 < plan.micro_batches[-1] <= plan.micro_batches[0], (seed, device.name)
            assert plan.micro_batches[0] == _choice(plan, "micro_batch"), (seed, device.name)
            assert _sequences_seen(plan) == list(range(recipe.effective_batch)), (seed, device.name)
            assert ("step_time_s" in plan.predicted) is timed, (seed, device.name)
            assert all(
                entry.low <= entry.value <= entry.high for entry in plan.predicted.values()
            ), (seed, device.name)
            assert "mfu" not in plan.predicted or plan.predicted["mfu"].high <= 1 + 1e-9, (
                seed,
                device.name,
            )
            if recipe.plan.micro_batch != "auto":
                assert plan.micro_batches[0] == min(
                    recipe.plan.micro_batch, recipe.effective_batch
                ), (seed, device.name)
    assert refused < 50


def _sequences_seen(plan: Plan) -> list[int]:
    """What the training loop makes of a batch whose sequences hold their own number."""
    numbers_BT = torch.arange(plan.effective_batch).view(-1, 1)
    micro_batches = list(Batch(numbers_BT, -numbers_BT).micro_batches(plan.micro_batches))
    assert [len(micro.inputs_BT) for micro in micro_batches] == list(plan.micro_batches)
    assert all(torch.equal(micro.inputs_BT, -micro.targets_BT) for micro in micro_batches)
    seen: list[int] = torch.cat([micro.inputs_BT for micro in micro_batches]).flatten().tolist()
    return seen


@pytest.mark.parametrize(
    ("effective", "micro", "parts"),
    [(8, 3, (3, 3, 2)), (9, 3, (3, 3, 3)), (1, 1, (1,)), (5, 5, (5,)), (7, 4, (4, 3))],
)
def test_a_batch_is_split_with_only_the_last_part_smaller(
    effective: int, micro: int, parts: tuple[int, ...]
) -> None:
    assert split(effective, micro) == parts


# --- the user's word


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("precision", "fp32", "precision"),
        ("precision", "bf16", "precision"),
        ("precision", "fp16", "precision"),
        ("micro_batch", 3, None),
        ("attention", "eager", "attention"),
        ("recompute", True, "recompute"),
        ("recompute", False, "recompute"),
        ("compile", True, "compile"),
        ("compile", False, "compile"),
        ("loss_chunk", 7, "loss_chunk"),
        ("optimizer", "for_loop", "optimizer"),
        ("loader_workers", 0, "loader_workers"),
    ],
)
@pytest.mark.parametrize("device", ["Tesla T4", "NVIDIA H200", "cpu"])
def test_what_the_user_fixed_stands_and_is_costed(
    tiny: MakeRecipe,
    devices: Devices,
    device: str,
    key: str,
    value: str | int | bool,
    field: str | None,
    planned: MakePlan,
    rates: MakeRates,
    snapshot: SnapshotAssertion,
) -> None:
    plan = planned(
        tiny("plan={}", f"plan.{key}={str(value).lower()}"), devices[device], rates=rates()
    )

    assert _choice(plan, key) == value
    assert _reason(plan, key) == snapshot
    assert (getattr(plan, field) if field else plan.micro_batches[0]) == value
    assert {"step_time_s", "tokens_per_s"} <= plan.predicted.keys()


def test_threads_are_the_cpus_or_the_users_and_no_matter_of_a_gpu(
    tiny: MakeRecipe, devices: Devices, planned: MakePlan
) -> None:
    assert planned(tiny("plan={}"), devices["cpu"]).threads == 2
    assert planned(tiny("plan={threads: 1}"), devices["cpu"]).threads == 1
    assert planned(tiny("plan={}"), devices["Tesla T4"]).threads is None


# --- memory

LARGE = (
    "plan={}",
    "model={layers: 24, heads: 16, width: 1024}",
    "sequence_length=1024",
    "batch.sequences=64",
)


@pytest.fixture
def hand(by_hand: Make) -> Tracer:
    """400 MiB and 50 for every sequence, 10 where activations are recomputed."""
    return lambda spec: by_hand(sequence_bytes=(10 if spec.recompute else 50) * MIB)


def test_memory_terms_add_up_to_the_predicted_peak(devices: Devices, planned: MakePlan) -> None:
    apple = dataclasses.replace(devices["cpu"], kind="mps", threads=None)
    for seed in range(40):
        for device in (
            devices["Tesla T4"],
            devices["NVIDIA H200"],
            dataclasses.replace(devices["cpu"], free_memory_bytes=1000 * GIB),
            apple,
        ):
            try:
                plan = planned(_random_recipe(seed), device, process_bytes=300 * MIB)
            except PlanError:
                continue
            peak = plan.predicted["peak_memory_bytes"]

            assert sum(plan.memory_terms.values()) == round(peak.value), (seed, device.kind)
            assert peak.low <= peak.value <= peak.high
            assert all(term > 0 for term in plan.memory_terms.values())


def test_on_a_gpu_the_peak_is_that_of_torchs_allocator_and_the_drivers_stands_beside_it(
    tiny: MakeRecipe,
    devices: Devices,
    hand: Tracer,
    planned: MakePlan,
) -> None:
    """8 sequences: 800 MiB and two workspaces of 32 MiB; the context of 132 multiprocessors is
    outside.
    """
    plan = planned(tiny("plan={}"), devices["NVIDIA H200"], hand)

    peaks_mib = {
        name: entry.value / MIB for name, entry in plan.predicted.items() if name.endswith("_bytes")
    }
    context_mib = round((132 * 3.37 + 184) * MIB) / MIB
    assert peaks_mib == {
        "peak_memory_bytes": 864,
        "allocated_memory_bytes": 864,
        "device_memory_bytes": 864 + context_mib,
    }
    terms_mib = {name: size / MIB for name, size in plan.memory_terms.items()}
    assert terms_mib == {
        "weights": 100,
        "gradients": 100,
        "optimizer states": 200,
        "activations": 400,
        "library workspaces": 64,
    }


def test_the_micro_batch_on_a_cpu_is_the_largest_that_surely_fits(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    hand: Tracer,
    planned: MakePlan,
    snapshot: SnapshotAssertion,
) -> None:
    """1,350 of 1,500 MiB may be used; with half as much in doubt 900 MiB of tensors fit, which is
    400 and 10 x 50.
    """
    plan = planned(tiny("plan={}", "batch.sequences=64"), cpu(free_memory_bytes=1500 * MIB), hand)

    assert plan.micro_batches == (10,) * 6 + (4,)
    assert _reason(plan, "micro_batch") == snapshot
    assert plan.predicted["peak_memory_bytes"].value == pytest.approx(1.1 * 900 * MIB)


@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA H200"])
def test_the_micro_batch_on_a_gpu_is_the_largest_that_fits_and_is_not_tight(
    tiny: MakeRecipe, cheap_tracer: Tracer, name: str
) -> None:
    device = dataclasses.replace(catalog.get(name), memory_bytes=20 * GIB)
    derived = derive_with_memory(tiny(*LARGE), device, cheap_tracer)

    fitting = [
        size
        for size in range(1, 65)
        if derived.memory.at(size).verdict == "fits" and not derived.memory.at(size).is_tight
    ]
    assert 1 < derived.largest < 64
    assert fitting == list(range(1, derived.largest + 1))
    assert (
        derived.plan.micro_batches[0]
        == derived.footprint.micro_batch
        == -(-64 // -(-64 // derived.largest))
    )


def test_more_tokens_than_bring_speed_are_not_taken(
    tiny: MakeRecipe,
    devices: Devices,
    hand: Tracer,
    planned: MakePlan,
    snapshot: SnapshotAssertion,
) -> None:
    plan = planned(
        tiny("plan={}", "sequence_length=16384", "batch.sequences=6"), devices["NVIDIA H200"], hand
    )

    assert plan.micro_batches == (3, 3)
    assert _reason(plan, "micro_batch") == snapshot
    assert (
        _reason(planned(tiny("plan={}"), devices["NVIDIA H200"], hand), "micro_batch") == snapshot
    )


def test_less_memory_never_gives_a_larger_micro_batch(tiny: MakeRecipe, planned: MakePlan) -> None:
    card = catalog.get("Tesla T4")
    sizes = [
        planned(tiny(*LARGE), dataclasses.replace(card, memory_bytes=gib * GIB)).micro_batches[0]
        for gib in (9, 12, 16, 24, 48, 96)
    ]

    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_what_may_fit_is_tried_with_one_sequence_and_the_doubt_is_said(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    by_hand: Make,
    planned: MakePlan,
    snapshot: SnapshotAssertion,
) -> None:
    """One sequence takes 495 MiB, 450 to 675, recomputed or not; 504 of 560 MiB may be used."""
    plan = planned(tiny("plan={}"), cpu(free_memory_bytes=560 * MIB), lambda spec: by_hand())

    assert plan.micro_batches == (1,) * 8
    assert _reason(plan, "micro_batch") == snapshot
    assert plan.recompute is False
    assert _reason(plan, "recompute") == snapshot


def test_what_cannot_fit_is_refused_with_both_numbers_and_a_remedy(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    planned: MakePlan,
    refuses: Refuses,
) -> None:
    with refuses(PlanError):
        planned(tiny(*LARGE), cpu(free_memory_bytes=GIB))


def test_a_fixed_micro_batch_that_cannot_fit_is_refused_with_its_number(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    hand: Tracer,
    planned: MakePlan,
    refuses: Refuses,
) -> None:
    with refuses(PlanError):
        planned(tiny("plan={micro_batch: 8}"), cpu(free_memory_bytes=500 * MIB), hand)


def test_what_cannot_fit_can_still_be_looked_at(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    hand: Tracer,
    snapshot: SnapshotAssertion,
) -> None:
    derived = derive_with_memory(tiny("plan={}"), cpu(free_memory_bytes=100 * MIB), hand)

    assert (derived.largest, derived.plan.micro_batches, derived.footprint.verdict) == (
        0,
        (1,) * 8,
        "does not fit",
    )
    assert _reason(derived.plan, "recompute") == snapshot
    with pytest.raises(PlanError):
        refuse_what_cannot_fit(derived)


def test_what_main_memory_is_not_expected_to_hold_runs_only_where_the_recipe_says_so(
    tiny: MakeRecipe, cpu: MakeDevice, hand: Tracer
) -> None:
    recipe = tiny("plan={micro_batch: 1, recompute: false}")
    derived = derive_with_memory(recipe, cpu(free_memory_bytes=501 * MIB), hand)

    assert derived.footprint.verdict == "uncertain"
    with pytest.raises(PlanError, match=r"plan\.margin=tight tries it"):
        refuse_what_cannot_fit(derived)

    tight = derive_with_memory(
        tiny("plan={micro_batch: 1, recompute: false, margin: tight}"),
        derived.prepared.device,
        hand,
    )
    refuse_what_cannot_fit(tight)


@pytest.mark.parametrize(
    ("free_mib", "verdict"),
    [(751, "fits"), (750, "fits"), (749, "uncertain"), (500, "uncertain"), (499, "does not fit")],
)
def test_free_memory_counts_where_it_was_measured_and_the_process_is_in_it(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    hand: Tracer,
    free_mib: int,
    verdict: str,
) -> None:
    """One sequence takes 450 to 675 MiB, which is nine tenths of 500 to 750; the process is there
    already and still grows.
    """
    recipe, device = (
        tiny("plan={micro_batch: 1, recompute: false}"),
        cpu(free_memory_bytes=free_mib * MIB),
    )

    assert derive_with_memory(recipe, device, hand).footprint.verdict == verdict
    room = dataclasses.replace(
        device, free_memory_bytes=device.free_memory_bytes + -(-20 * HOST_GROWTH_BYTES // 9)
    )  # nine tenths of it are twice the growth
    with_process = derive_with_memory(recipe, room, hand, Facts(process_bytes=700 * MIB)).footprint
    assert with_process.verdict == ("fits" if verdict == "fits" else "uncertain")
    assert with_process.terms["process"] == 700 * MIB + HOST_GROWTH_BYTES


@pytest.mark.long
def test_weights_gradients_and_states_of_a_real_trace_follow_from_the_parameters(
    tiny: MakeRecipe, devices: Devices, planned: MakePlan
) -> None:
    recipe = tiny("plan={precision: bf16, recompute: false, loss_chunk: 64, micro_batch: 1}")
    parameters = count_parameters(recipe.fresh_model, 290, recipe.context).total

    plan = planned(recipe, devices["cpu"], lambda spec: StoredTraces(spec, None), vocabulary=290)

    assert plan.parameters == parameters
    assert [
        plan.memory_terms[term] // parameters
        for term in ("weights", "gradients", "optimizer states")
    ] == [4, 4, 8]
    assert sum(plan.memory_terms.values()) == round(plan.predicted["peak_memory_bytes"].value)


def test_traces_are_of_the_step_that_the_plan_decides(
    tiny: MakeRecipe,
    devices: Devices,
    by_hand: Make,
    planned: MakePlan,
) -> None:
    asked: list[StepSpec] = []

    def tracer(spec: StepSpec) -> Any:
        asked.append(spec)
        return by_hand(sequence_bytes=600 * MIB)

    plan = planned(tiny("plan={}"), devices["Tesla T4"], tracer)
    assert [spec.recompute for spec in asked] == [False]
    planned(tiny("plan={}"), dataclasses.replace(devices["Tesla T4"], memory_bytes=GIB), tracer)

    assert [spec.recompute for spec in asked] == [False, False, True]
    for spec in asked:
        assert (spec.autocast, spec.attention, spec.loss_chunk) == (
            plan.precision,
            plan.attention,
            plan.loss_chunk,
        )
        assert (spec.cuda, spec.flash, spec.sequence_length) == (True, False, 32)
