"""Devices to plan for: catalog rows, and CPUs and GPUs made by hand."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from brimful.base.units import GIB
from brimful.hardware import catalog
from brimful.hardware.device import Abilities, Device


@pytest.fixture(scope="session")
def cpu() -> Callable[..., Device]:
    """`cpu(free_memory_bytes=..., ...)` is a CPU with 2 threads whose bf16 products are twice as fast, with fields replaced."""
    made = Device(
        name="a CPU", kind="cpu", index=None, memory_bytes=16 * GIB, free_memory_bytes=8 * GIB, bandwidth_bytes_per_s=None,
        dense_flop_per_s={"fp32": 1e11, "bf16": 2e11}, compute_capability=None, abilities=Abilities(flash_attention=True, compile=True), threads=2,
        source="made by hand",
    )  # fmt: skip
    return lambda **changes: dataclasses.replace(made, **changes)


@pytest.fixture(scope="session")
def devices(cpu: Callable[..., Device]) -> dict[str, Device]:
    """Small and large, old and new."""
    names = ("Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA H200")
    made: dict[str, Any] = {"cpu": cpu(), "small cpu": cpu(free_memory_bytes=GIB // 2)}
    return {name: catalog.get(name) for name in names} | made
