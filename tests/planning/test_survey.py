"""The largest micro-batch that fits, the sizes worth showing, and what would take less."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import Devices, Make, MakeRecipe, Refuses

from brimful.base.errors import PlanError
from brimful.base.units import GIB, MIB
from brimful.hardware import catalog
from brimful.planning.longest_pass import LongestPass
from brimful.planning.memory import Replays, roomy_bytes
from brimful.planning.specs import model_facts
from brimful.planning.survey import (
    Margin,
    Memory,
    _last,
    _last_below,
    prepare,
    table_sizes,
)
from brimful.planning.target import Target
from brimful.recipe import load

MARGINS: tuple[Margin, ...] = ("conservative", "balanced", "tight")


def test_examples_have_many_lengths_which_leaves_the_allocator_more_in_pieces(
    adapted: MakeRecipe, by_hand: Make
) -> None:
    device = catalog.get("NVIDIA H200")
    of_examples, of_sequences = (
        prepare(adapted(f"method={method}"), device)
        .memory(lambda spec: by_hand(), recompute=False)
        .at(1)
        for method in ("sft", "pretrain")
    )

    assert of_examples.allocated == of_sequences.allocated
    assert of_examples.reserved.high > 1.3 * of_sequences.reserved.high


@pytest.mark.parametrize("kernel", ["brimful_blocks", "brimful_expanded", "brimful_packed"])
@pytest.mark.parametrize("encoder", ["bert"], indirect=True)
def test_a_classifiers_encoder_refuses_a_kernel_that_looks_to_the_left_only(
    labels_recipe_file: Path, kernel: str, refuses: Refuses
) -> None:
    with refuses(PlanError, names=[f"plan.attention={kernel}"]):
        prepare(
            load(str(labels_recipe_file), [f"plan.attention={kernel}"]), catalog.get("NVIDIA H200")
        )


@pytest.mark.parametrize("encoder", ["llama"], indirect=True)
def test_a_causal_classifier_takes_it(labels_recipe_file: Path) -> None:
    prepared = prepare(
        load(str(labels_recipe_file), ["plan.attention=brimful_blocks"]), catalog.get("NVIDIA H200")
    )

    assert prepared.choices["attention"].value == "brimful_blocks"


# --- the largest that fits


@pytest.mark.parametrize("seed", range(30))
def test_the_largest_micro_batch_is_the_one_that_trying_all_would_find(
    by_hand: Make, seed: int
) -> None:
    draw = random.Random(seed)
    traces = by_hand(
        weights_bytes=draw.randint(1, 300) * MIB,
        sequence_bytes=draw.randint(1, 200) * MIB,
        logits_bytes=draw.choice([0, 30 * MIB]),
    )
    usable_bytes, highest = draw.randint(300, 8000) * MIB, draw.randint(1, 70)
    uncertainty_bytes, workspace_bytes = (
        draw.choice([0, 75, 250]) * MIB,
        draw.choice([0, 8_519_680, 32 * MIB]),
    )
    target = Target(
        draw.choice(["cuda", "cuda", "cpu", "mps"]),
        usable_bytes,
        100 * MIB,
        uncertainty_bytes,
        workspace_bytes,
    )

    memory = Memory(traces, target)

    sizes = range(1, highest + 1)
    fitting = [size for size in sizes if memory.at(size).verdict == "fits"]
    if target.kind == "cuda":
        roomy = [size for size in sizes if memory.replayed(size).fits_in(roomy_bytes(target))]
        fitting = roomy or fitting[:1]
    assert memory.largest(highest) == max(fitting, default=0)


def test_a_plan_leaves_3_percent_or_half_a_gib_free_where_it_can(
    by_hand: Make,
) -> None:
    """400 MiB and 50 a sequence: 3 % of 40 GiB are 1.2 GiB, 3 % of 8 GiB are less than half a
    GiB, and of 2 GiB a tenth is left. Of 500 MiB one sequence takes nearly all.
    """

    def target(usable_mib: int) -> Target:
        return Target("cuda", usable_mib * MIB)

    for usable_mib, room_mib in ((40_000, 1200), (8000, 512), (2000, 200)):
        memory = Memory(by_hand(), target(usable_mib))
        footprint = memory.at(memory.largest(1000))
        assert target(usable_mib).room_bytes == room_mib * MIB
        assert room_mib * MIB <= footprint.headroom_bytes < (room_mib + 50) * MIB
        assert not footprint.is_tight
    full = Memory(by_hand(), target(470))
    assert full.largest(1000) == 1
    assert full.at(1).is_tight


def test_in_the_doubt_of_a_small_device_nothing_surely_fits(by_hand: Make) -> None:
    """800 MiB for torch, 250 of them in doubt: 600 MiB are less than four fifths and may still be
    too much.
    """
    target = Target("cuda", 900 * MIB, 100 * MIB, 250 * MIB)

    memory = Memory(by_hand(sequence_bytes=200 * MIB), target)

    assert memory.at(1).verdict == "uncertain"
    assert memory.largest(4) == 0


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("seed", range(10))
def test_a_bolder_margin_never_takes_less(by_hand: Make, kind: Any, seed: int) -> None:
    draw = random.Random(seed)
    traces = by_hand(
        weights_bytes=draw.randint(1, 300) * MIB, sequence_bytes=draw.randint(1, 200) * MIB
    )
    memory = Memory(
        traces,
        Target(kind, draw.randint(300, 8000) * MIB, 100 * MIB, draw.choice([0, 75, 250]) * MIB),
    )

    sizes = [memory.largest(70, margin=margin) for margin in MARGINS]

    assert sizes == sorted(sizes)


def test_margins_are_the_upper_end_the_sure_and_the_possible(by_hand: Make) -> None:
    """400 MiB and 50 a sequence; a context of 50 to 150 MiB leaves 1850 to 1950 of 2000: 1850 /
    1.15 = 1608, 1900 less a tenth of 2000 = 1700, 1950 / 0.985 = 1980.
    """
    memory = Memory(by_hand(), Target("cuda", 2000 * MIB, 100 * MIB, 50 * MIB))

    assert [memory.largest(70, margin=margin) for margin in MARGINS] == [24, 26, 31]


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize("margin", MARGINS)
def test_one_micro_batch_fits_up_to_the_largest_that_does(
    by_hand: Make, margin: Margin, kind: str
) -> None:
    memory = Memory(by_hand(), Target(kind, 2000 * MIB, 100 * MIB, 50 * MIB))
    largest = memory.largest(70, margin=margin)

    assert largest > 1
    assert [memory.fits(largest + more, margin) for more in (-1, 0, 1)] == [True, True, False]


def test_a_base_in_4_bits_is_refused_where_training_would_refuse_it(
    adapted: MakeRecipe, refuses: Refuses
) -> None:
    apple = catalog.get("M3 Max 48GB")

    with refuses(PlanError):
        prepare(adapted("method=sft", "quantize=nf4"), apple)

    as_told = adapted("method=sft", "quantize=none", "plan.precision=bf16")
    assert prepare(as_told, apple).spec(recompute=False).weights == "bf16"


def test_a_recipe_can_leave_memory_to_the_desktop(labels_recipe_file: Path) -> None:
    card = catalog.get("RTX 4090")
    prepared = prepare(load(str(labels_recipe_file), ["plan.leave_gib=1.5"]), card)

    assert prepared.target.usable_bytes == card.memory_bytes - round(1.5 * GIB)


def test_no_more_than_what_was_asked_for_is_looked_at(by_hand: Make) -> None:
    target = Target("cuda", 100 * GIB)

    assert [Memory(by_hand(), target).largest(highest) for highest in (1, 2, 3, 64)] == [
        1,
        2,
        3,
        64,
    ]


def test_few_of_many_micro_batches_are_traced(by_hand: Make) -> None:
    traces, asked = by_hand(), []

    class Counted:
        def at(self, micro_batch: int) -> Any:
            asked.append(micro_batch)
            return traces.at(micro_batch)

        def work_at(self, micro_batch: int) -> Any:
            return traces.work_at(micro_batch)

    assert Memory(Counted(), Target("cuda", 64 * GIB)).largest(4096) > 1000
    assert len(asked) == len(set(asked)) < 40


def test_passes_that_are_not_full_take_less(by_hand: Make) -> None:
    """100 MiB of weights and 300 of gradients and states, and 50 for each full row."""
    target = Target("cpu", 2000 * MIB)
    memory = Memory(
        by_hand(), target, longest_pass_at=lambda room: LongestPass(0.75 * room, 0.75 * room)
    )

    assert memory.at(2).allocated.value == (400 + 75) * MIB
    assert Memory(by_hand(), target).at(2).allocated.value == (400 + 100) * MIB


def test_all_sequences_in_one_pass_accumulate_no_gradients(
    adapted: MakeRecipe, by_hand: Make
) -> None:
    """Of 16 sequences in two passes, only the second one finds gradients beside its activations."""
    second = {"inputs 3": 3, "optimizer 2": 7}

    class Accumulating:
        def at(self, rows: float) -> Any:
            trace = by_hand().at(rows)
            return dataclasses.replace(trace, marks={**trace.marks, **second})

        def work_at(self, micro_batch: int) -> Any:
            return by_hand().work_at(micro_batch)

    prepared = prepare(adapted(), catalog.get("NVIDIA H200"))
    prepared = dataclasses.replace(prepared, target=Target("cpu", 2000 * MIB))
    memory = prepared.memory(lambda _: Accumulating(), recompute=False)

    assert memory.replayed(15).trace.live_E().max() == (400 + 15 * 50) * MIB
    assert memory.replayed(16).trace.live_E().max() == 400 * MIB


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("longest", "later", "peak_mib"),
    [
        (4, 0, 100 + 4 * 50),
        (4, 3, 100 + 60 + 3 * 50),
        (4, 1, 100 + 4 * 50),
        (3, 3, 100 + 60 + 3 * 50),
    ],
    ids=["no other", "later, with gradients", "first, without them", "of one length"],
)
def test_a_long_pass_alone_in_its_step_finds_no_gradients(
    by_hand: Make, kind: Any, longest: float, later: float, peak_mib: int
) -> None:
    """100 MiB of weights, 60 of gradients that the first pass of a step leaves, 50 for each row."""

    class TwoPasses:
        def at(self, rows: float) -> Any:
            row = round(rows * 50 * MIB)
            return dataclasses.replace(
                by_hand().at(rows),
                events_E=np.array([1, 2, -2, 3, 4, -4, -3], np.int32),
                sizes_S=np.array([100 * MIB, row, 60 * MIB, row, 0], np.int64),
                marks={"inputs 2": 1, "inputs 3": 4, "optimizer 2": 6},
            )

        def work_at(self, micro_batch: int) -> Any:
            return by_hand().work_at(micro_batch)

    memory = Memory(
        TwoPasses(),
        Target(kind, 2000 * MIB),
        longest_pass_at=lambda room: LongestPass(longest, later),
    )

    assert memory.at(4).allocated.value == peak_mib * MIB


@pytest.mark.parametrize(
    ("passes", "share"), [(None, 0.6), (10**6, 0.6), (35, 0.385), (4, 0.17), ("one length", 0.0)]
)
def test_a_cpus_heap_is_that_of_a_run_of_so_many_passes(
    by_hand: Make, passes: Any, share: float
) -> None:
    memory = Memory(
        by_hand(),
        Target("cpu", 20_000 * MIB),
        fractions=() if passes == "one length" else (0.5, 1.0),
        longest_pass_at=lambda room: LongestPass(
            room, room, passes=None if passes == "one length" else passes
        ),
    )
    found = memory.at(2)
    held = sum(found.terms.get(kind, 0) for kind in ("activations", "loss and logits"))

    lost = max(0.1 * found.allocated.value, share * held)
    assert found.terms["allocator slack"] == pytest.approx(lost, rel=0.01)


def test_devices_share_what_was_replayed(by_hand: Make) -> None:
    replays = Replays(by_hand())
    small, large = (Memory(replays, Target("cuda", gib * GIB)) for gib in (1, 80))

    assert small.replayed(3) is large.replayed(3)
    assert small.at(30).verdict != large.at(30).verdict
    assert large.at(30) is large.at(30)


# --- sizes worth showing


@pytest.mark.parametrize(
    ("chosen", "largest", "highest", "sizes"),
    [
        (4, 7, 64, [1, 2, 4, 7, 8, 16]),
        (8, 8, 8, [1, 2, 4, 8]),
        (3, 3, 3, [1, 2, 3]),
        (1, 0, 64, [1, 2, 4]),
        (6, 64, 64, [1, 2, 4, 6, 8, 16, 32, 64]),
        (1, 0, 1, [1]),
    ],
)
def test_powers_of_two_the_chosen_the_largest_and_two_beyond_are_shown(
    chosen: int, largest: int, highest: int, sizes: list[int]
) -> None:
    assert table_sizes(chosen, largest, highest) == sizes


# --- what is decided before memory


def test_what_needs_no_memory_is_decided_at_once(tiny: MakeRecipe, devices: Devices) -> None:
    recipe = tiny("plan={}")
    model = model_facts(recipe, 290)
    prepared = prepare(recipe, devices["Tesla T4"], model=model, process_bytes=MIB)

    assert {name: choice.value for name, choice in prepared.choices.items()} == {
        "precision": "fp16",
        "attention": "sdpa",
        "loss_chunk": 16_384,
        "optimizer": "fused",
        "loader_workers": 1,
        "packing": "stream",
    }
    assert (prepared.model.vocabulary, prepared.target.kind) == (290, "cuda")
    assert [prepared.spec(recompute=on).recompute for on in (False, True)] == [False, True]
    assert prepared.spec(recompute=False, optimizer="8bit").optimizer == "8bit"


@pytest.mark.parametrize("highest", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("last", [0, 1, 2, 6, 33, 40])
def test_the_largest_that_holds_is_found_from_above_as_from_below(highest: int, last: int) -> None:
    assert (
        _last_below(highest, lambda size: size <= last)
        == _last(highest, lambda size: size <= last)
        == min(highest, last)
    )
