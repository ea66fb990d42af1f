"""Devices to plan for (catalog rows, and CPUs and GPUs made by hand) and traces whose every byte can be worked out by hand."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from brimful.base.units import GIB, MIB
from brimful.hardware import catalog
from brimful.hardware.device import Abilities, Device
from brimful.planning.derive import Facts, derive
from brimful.planning.plan import Plan
from brimful.planning.step import StepSpec
from brimful.planning.survey import Tracer
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import GLOBAL
from brimful.recipe import Recipe


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


@dataclasses.dataclass(frozen=True)
class HandTraces:
    """Weights; gradients and states from a first step that needs nothing else; activations and logits of a second one. All five are alive at
    the peak, in the second forward pass. Multiples of 2 MiB from 10 MiB on are reserved as they are allocated.

    Attributes:
        weights_bytes, gradients_bytes, states_bytes: Whatever the micro-batch.
        sequence_bytes: Activations of one sequence.
        logits_bytes: Of a chunk of the loss.
    """

    weights_bytes: int = 100 * MIB
    gradients_bytes: int = 100 * MIB
    states_bytes: int = 200 * MIB
    sequence_bytes: int = 50 * MIB
    logits_bytes: int = 0
    parameters: int = 1000

    def peak_bytes(self, micro_batch: int) -> int:
        """What is alive at the peak."""
        return self.weights_bytes + self.gradients_bytes + self.states_bytes + micro_batch * self.sequence_bytes + self.logits_bytes

    def at(self, micro_batch: int) -> Trace:
        """The trace of this micro-batch."""
        kinds = ("weights", "gradients", "optimizer states", "activations", "loss and logits")
        sizes = [self.weights_bytes, self.gradients_bytes, self.states_bytes, micro_batch * self.sequence_bytes, self.logits_bytes]
        events = [1, 2, 3, 4, 5, -5, -4]
        return Trace(
            events_E=np.array(events, np.int32), event_layers_E=np.full(len(events), GLOBAL, np.int32), sizes_S=np.array(sizes, np.int64),
            kinds_S=np.array([KINDS.index(kind) for kind in kinds], np.int32), places_S=np.arange(5, dtype=np.int32),
            layers_S=np.full(5, GLOBAL, np.int32), places=tuple(f"place of {kind}" for kind in kinds),
            marks={"inputs": 0, "backward": 1, "optimizer": 2, "forward 2": 3, "backward 2": 5},
            parameters=self.parameters, trainable=self.parameters,
        )  # fmt: skip


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., HandTraces]:
    """`by_hand(weights_bytes=..., ...)` are traces of those sizes; by default 400 MiB and 50 MiB for every sequence."""
    return HandTraces


def _cheap(spec: StepSpec) -> HandTraces:
    """Sizes in the proportions of a real step, from a few products of the config's numbers."""
    values = spec.config
    width, blocks = values.get("n_embd") or values["hidden_size"], values.get("n_layer") or values["num_hidden_layers"]
    frozen, length = spec.adapter is not None, spec.sequence_length
    count = values["vocab_size"] * width + 12 * blocks * width**2
    trained = count // 100 if frozen else count
    weight_bytes = (0.5 if spec.quantize == "nf4" else 2) if frozen else 4
    return HandTraces(
        weights_bytes=round(weight_bytes * count), gradients_bytes=4 * trained, states_bytes=(2 if spec.optimizer == "8bit" else 8) * trained,
        sequence_bytes=length * width * (34 if not spec.recompute else 4) * blocks, logits_bytes=8 * values["vocab_size"] * min(spec.loss_chunk, length),
        parameters=count,
    )  # fmt: skip


@pytest.fixture(scope="session")
def cheap_tracer() -> Tracer:
    """Traces of any step in no time, by rule of thumb."""
    return _cheap


@pytest.fixture(scope="session")
def planned(cheap_tracer: Tracer) -> Callable[..., Plan]:
    """`planned(recipe, device, vocabulary=..., ...)` is the plan that rests on the cheap traces."""

    def plan(recipe: Recipe, device: Device, tracer: Tracer = cheap_tracer, **facts: Any) -> Plan:
        return derive(recipe, device, tracer, Facts(**facts))

    return plan
