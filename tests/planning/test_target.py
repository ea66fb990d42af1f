"""What devices take for themselves: workspaces, the context, and what is left."""

import dataclasses

import pytest
from fixture_types import MakeDevice, MakeRecipe

from brimful.base.units import GIB, MIB
from brimful.hardware import catalog
from brimful.hardware.host import brim_bytes
from brimful.planning.survey import prepare
from brimful.planning.target import (
    CUBLAS_WORKSPACE_BYTES,
    CUBLAS_WORKSPACE_HOPPER_BYTES,
    GROWTH_WITH_KERNELS_BYTES,
    HOST_GROWTH_BYTES,
    target_of,
    with_communication,
)

SMALL, HOPPER = CUBLAS_WORKSPACE_BYTES, CUBLAS_WORKSPACE_HOPPER_BYTES


def test_the_workspace_is_what_torch_asks_for_by_default() -> None:
    """4096 KiB x 2 + 16 KiB x 8; 32 MiB on Hopper."""
    assert (SMALL, HOPPER) == ((2 * 4096 + 8 * 16) * 1024, 32 * MIB)


@pytest.mark.parametrize(
    ("name", "workspace_bytes", "context_mib", "uncertainty_mib"),
    [
        ("Tesla T4", SMALL, 40 * 3.37 + 6, 250),
        ("NVIDIA A100-SXM4-80GB", SMALL, 108 * 3.37 + 67, 75),
        ("NVIDIA H100 80GB HBM3", HOPPER, 132 * 3.37 + 184, 75),
        ("NVIDIA H200", HOPPER, 132 * 3.37 + 184, 75),
    ],
)
def test_a_gpu_takes_a_context_by_its_multiprocessors_and_a_workspace_by_its_generation(
    name: str, workspace_bytes: int, context_mib: float, uncertainty_mib: int
) -> None:
    device = catalog.get(name)

    target = target_of(device)

    assert (target.kind, target.usable_bytes) == ("cuda", device.memory_bytes)
    assert target.workspace_bytes == workspace_bytes
    assert target.context_bytes == round(context_mib * MIB)
    assert target.context_uncertainty_bytes == uncertainty_mib * MIB
    assert target.torch_bytes == target.usable_bytes - target.context_bytes


def test_an_h100_shows_the_context_that_was_measured() -> None:
    """609 to 620 MiB with torch 2.10; ours may be off by what it says."""
    target = target_of(catalog.get("NVIDIA H100 80GB HBM3"))

    for seen_mib in (609, 620):
        assert abs(target.context_bytes - seen_mib * MIB) <= target.context_uncertainty_bytes


@pytest.mark.parametrize(
    ("capability", "workspace_bytes"),
    [((8, 9), SMALL), ((9, 0), HOPPER), ((10, 0), HOPPER), ((12, 0), SMALL)],
)
def test_large_workspaces_came_with_hopper_and_not_to_consumer_cards(
    capability: tuple[int, int], workspace_bytes: int
) -> None:
    device = dataclasses.replace(catalog.get("NVIDIA H200"), compute_capability=capability)

    assert target_of(device).workspace_bytes == workspace_bytes


def test_a_gpu_of_which_little_is_known_still_has_a_context_in_great_doubt() -> None:
    unknown = dataclasses.replace(
        catalog.get("NVIDIA H200"), compute_capability=None, multiprocessors=None
    )

    target = target_of(unknown)

    assert target.context_bytes == round((80 * 3.37 - 52) * MIB)
    assert target.context_uncertainty_bytes == 250 * MIB


def test_free_memory_counts_where_it_was_measured() -> None:
    here = dataclasses.replace(catalog.get("NVIDIA H200"), free_memory_bytes=20 * GIB)

    assert target_of(here).usable_bytes == 20 * GIB


def test_what_is_left_to_a_desktop_cannot_be_used() -> None:
    card = catalog.get("RTX 4090")

    assert target_of(card, leave_bytes=GIB).usable_bytes == card.memory_bytes - GIB


def test_a_context_larger_than_the_device_leaves_nothing() -> None:
    assert (
        target_of(
            dataclasses.replace(catalog.get("NVIDIA H200"), free_memory_bytes=MIB)
        ).torch_bytes
        == 0
    )


def test_a_tenth_of_a_hosts_free_memory_is_left_to_others_and_the_process_is_not_counted_twice(
    cpu: MakeDevice,
) -> None:
    host = cpu(free_memory_bytes=1000 * MIB, memory_bytes=4 * GIB)
    target = target_of(host, process_bytes=300 * MIB)

    assert (target.usable_bytes, target.context_bytes, target.torch_bytes) == (
        1200 * MIB,
        300 * MIB + HOST_GROWTH_BYTES,
        900 * MIB - HOST_GROWTH_BYTES,
    )
    assert (target.workspace_bytes, target.context_uncertainty_bytes) == (0, HOST_GROWTH_BYTES)


def test_what_a_run_keeps_free_is_no_memory_of_its_plan(cpu: MakeDevice) -> None:
    host = cpu(free_memory_bytes=2 * GIB, memory_bytes=50 * GIB)
    assert target_of(host).usable_bytes == 2 * GIB - brim_bytes(50 * GIB)
    assert target_of(dataclasses.replace(host, free_memory_bytes=MIB)).usable_bytes == 0


def test_of_memory_that_a_gpu_shares_with_the_system_a_tenth_is_left() -> None:
    spark = catalog.get("NVIDIA GB10")
    present = dataclasses.replace(spark, free_memory_bytes=100 * GIB)

    assert target_of(spark).usable_bytes == spark.memory_bytes
    assert target_of(present).usable_bytes == 90 * GIB
    assert target_of(present).shares_memory


def test_kernels_of_many_shapes_are_kept(cpu: MakeDevice) -> None:
    few, many = (
        target_of(cpu(), process_bytes=300 * MIB, keeps_kernels=keeps) for keeps in (False, True)
    )

    grown = many.context_bytes - 300 * MIB, many.context_uncertainty_bytes
    assert grown == GROWTH_WITH_KERNELS_BYTES
    assert many.context_bytes + many.context_uncertainty_bytes > 300 * MIB + 256 * 0.75 * MIB
    assert few.context_bytes < many.context_bytes
    assert target_of(cpu(), keeps_kernels=True).context_bytes == 0


@pytest.mark.parametrize(("precision", "grows"), [("bf16", True), ("fp32", False)])
def test_experts_get_ever_other_numbers_of_tokens(
    cpu: MakeDevice, adapted: MakeRecipe, precision: str, *, grows: bool
) -> None:
    plain, experts = (
        prepare(
            adapted(f"model=Qwen/{name}", "plan.packing=padded", f"plan.precision={precision}"),
            cpu(),
            process_bytes=300 * MIB,
            has_many_lengths=False,
        ).target.context_bytes
        for name in ("Qwen3-8B", "Qwen3-30B-A3B")
    )

    assert (experts > plain) is grows


def test_a_host_whose_free_memory_is_unknown_counts_with_all_of_it(
    cpu: MakeDevice,
) -> None:
    assert target_of(cpu(free_memory_bytes=None, memory_bytes=1000 * MIB)).usable_bytes == 900 * MIB


def test_an_apple_gpu_gives_all_that_metal_recommends(cpu: MakeDevice) -> None:
    target = target_of(cpu(kind="mps", free_memory_bytes=None, memory_bytes=10 * GIB))

    assert (target.kind, target.usable_bytes, target.workspace_bytes, target.context_bytes) == (
        "mps",
        10 * GIB,
        0,
        0,
    )


def test_older_versions_of_torch_take_more_for_communication() -> None:
    target = target_of(catalog.get("NVIDIA H100 80GB HBM3"))

    today, same, older = (
        with_communication(target, version) for version in (None, (2, 10), (2, 7))
    )

    assert today == same
    assert older.context_bytes - today.context_bytes == pytest.approx(1.8 * GIB, rel=0.05)
    assert with_communication(target_of(catalog.get("Apple M1")), (2, 7)).kind == "mps"
