"""A machine with CUDA devices that are not there: torch's answers are replaced, everything built on
them is real.
"""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from brimful.base.units import GIB


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call it with (name, GiB, capability[, gfx name]) per GPU to make torch see them; `built` is
    what torch was built for.
    """

    def install(
        *cards: tuple[object, ...],
        built: tuple[str, ...] = ("sm_75", "sm_80", "sm_90"),
        current: int = 0,
        busy_bytes: int = 0,
        integrated: bool = False,
    ) -> None:
        gpus = [_properties(*card, is_integrated=integrated) for card in cards]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(built))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpus[index])
        monkeypatch.setattr(
            torch.cuda,
            "mem_get_info",
            lambda index: (gpus[index].total_memory - busy_bytes, gpus[index].total_memory),
        )

    return install


def _properties(
    name: str,
    memory_gib: float,
    capability: tuple[int, int],
    gfx: str = "",
    *,
    is_integrated: bool = False,
) -> SimpleNamespace:
    major, minor = capability
    return SimpleNamespace(
        name=name,
        total_memory=round(memory_gib * GIB),
        major=major,
        minor=minor,
        multi_processor_count=10,
        gcnArchName=gfx,
        is_integrated=int(is_integrated),
    )
