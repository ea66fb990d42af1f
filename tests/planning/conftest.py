"""Devices to plan for (catalog rows, and CPUs and GPUs made by hand) and traces whose every byte
can be worked out by hand.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import Devices, MakeDevice, MakePlan, MakeRates, MakeRecipe

from brimful.base.types import JsonDict
from brimful.base.units import GIB, MIB
from brimful.hardware import catalog
from brimful.hardware.device import Abilities, Device
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, Rates
from brimful.planning.derive import Facts, derive
from brimful.planning.plan import Plan
from brimful.planning.step import StepSpec
from brimful.planning.survey import Tracer
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import DTYPES, GLOBAL, PARTS, PHASES, Work
from brimful.recipe import Recipe, load


@pytest.fixture(scope="session")
def cpu() -> MakeDevice:
    """`cpu(free_memory_bytes=..., ...)` is a CPU with 2 threads whose bf16 products are twice as
    fast, with fields replaced; with little free memory it has not much more.
    """
    made = Device(
        name="a CPU",
        kind="cpu",
        memory_bytes=16 * GIB,
        free_memory_bytes=8 * GIB,
        dense_flop_per_s={"fp32": 1e11, "bf16": 2e11},
        abilities=Abilities(bf16=True, flash_attention=True, compile=True),
        threads=2,
        source="made by hand",
    )

    def make(**changes: Any) -> Device:
        small = (
            {"memory_bytes": 2 * GIB}
            if 0 < (changes.get("free_memory_bytes") or 0) < 2 * GIB
            else {}
        )
        return dataclasses.replace(made, **small | changes)

    return make


@pytest.fixture(scope="session")
def devices(cpu: MakeDevice) -> Devices:
    """Small and large, old and new."""
    names = ("Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA H200")
    made: JsonDict = {"cpu": cpu(), "small cpu": cpu(free_memory_bytes=GIB // 2)}
    return {name: catalog.get(name) for name in names} | made


@dataclasses.dataclass(frozen=True)
class HandTraces:
    """Weights; gradients and states from a first step that needs nothing else; activations and
    logits of a second one. All five are alive at the peak, in the second forward pass. Multiples of
    2 MiB from 10 MiB on are reserved as they are allocated.

    Attributes:
        weights_bytes, gradients_bytes, states_bytes: Whatever the micro-batch.
        sequence_bytes: Activations of one sequence.
        logits_bytes: Of a chunk of the loss.
        sequence_flop: Of one sequence's forward pass; its backward pass has twice as many.
        moved_bytes: By element-wise operators of one sequence; half of them when fused.
        update_bytes: By the optimizer.
        dtype: Of the products.
        recomputed: Every forward pass is computed twice.
        layer: Block of every operator.
    """

    weights_bytes: int = 100 * MIB
    gradients_bytes: int = 100 * MIB
    states_bytes: int = 200 * MIB
    sequence_bytes: int = 50 * MIB
    logits_bytes: int = 0
    parameters: int = 1000
    sequence_flop: int = 10**8
    moved_bytes: int = 10**7
    update_bytes: int = 10**8
    dtype: str = "fp32"
    recomputed: bool = False
    layer: int = GLOBAL

    def peak_bytes(self, micro_batch: int) -> int:
        """What is alive at the peak."""
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.states_bytes
            + micro_batch * self.sequence_bytes
            + self.logits_bytes
        )

    def at(self, micro_batch: int) -> Trace:
        """The trace of this micro-batch."""
        kinds = ("weights", "gradients", "optimizer states", "activations", "loss and logits")
        sizes = [
            self.weights_bytes,
            self.gradients_bytes,
            self.states_bytes,
            micro_batch * self.sequence_bytes,
            self.logits_bytes,
        ]
        events = [1, 2, 3, 4, 5, -5, -4]
        return Trace(
            events_E=np.array(events, np.int32),
            event_layers_E=np.full(len(events), GLOBAL, np.int32),
            sizes_S=np.array(sizes, np.int64),
            kinds_S=np.array([KINDS.index(kind) for kind in kinds], np.int32),
            places_S=np.arange(5, dtype=np.int32),
            layers_S=np.full(5, GLOBAL, np.int32),
            places=tuple(f"place of {kind}" for kind in kinds),
            marks={"inputs": 0, "backward": 1, "optimizer": 2, "forward 2": 3, "backward 2": 5},
            parameters=self.parameters,
            trainable=self.parameters,
        )

    def work_at(self, micro_batch: int) -> Work:
        """A pass issues 50 operators, 60 where it computes twice, 30 when fused; the update issues
        one.
        """
        flop, moved_bytes = micro_batch * self.sequence_flop, micro_batch * self.moved_bytes
        rows = [
            ("matrix", "micro-batch", "forward", flop, 0, 0, 10, 10),
            ("matrix", "micro-batch", "backward", 2 * flop, 0, 0, 20, 20),
            *(
                [("matrix", "micro-batch", "recomputation", flop, 0, 0, 10, 10)]
                if self.recomputed
                else []
            ),
            ("pointwise", "micro-batch", "forward", 0, moved_bytes, moved_bytes // 2, 20, 0),
            ("optimizer", "optimizer", "optimizer", 0, self.update_bytes, self.update_bytes, 1, 1),
        ]
        kinds, parts, phases, flop_W, bytes_W, fused_W, launches_W, fused_launches_W = (
            np.array(column) for column in zip(*rows, strict=True)
        )
        ones = np.ones(len(rows), np.int64)
        sides = 64 * (flop_W > 0)
        return Work(
            flop_W,
            bytes_W,
            fused_W,
            sides,
            sides,
            sides,
            ones,
            launches_W,
            fused_launches_W,
            classes_W=np.array([CLASSES.index(kind) for kind in kinds]),
            dtypes_W=DTYPES.index(self.dtype) * ones,
            parts_W=np.array([PARTS.index(part) for part in parts]),
            phases_W=np.array([PHASES.index(phase) for phase in phases]),
            layers_W=self.layer * ones,
            operators_W=0 * ones,
            repeats_W=np.ones(len(rows)),
            operators=("made by hand",),
        )


@pytest.fixture(scope="session")
def rates() -> MakeRates:
    """`rates(...)` are the dense rates of `cpu`, 100 GB/s and 0.1 ms for every operator issued, one
    after the other, with fields replaced.
    """
    made = Rates(
        flop_per_s={name: {"fp32": 1e11, "bf16": 2e11, "fp16": 2e11} for name in MATRIX_CLASSES},
        bytes_per_s=dict.fromkeys(CLASSES, 1e11),
        host_s=1e-4,
        overlaps=False,
        share=(0.8, 1.25),
        source="made by hand",
    )
    return lambda **changes: dataclasses.replace(made, **changes)


@pytest.fixture(scope="session")
def work_of() -> Callable[..., Work]:
    """`work_of({"flop": 8, "kind": "matrix"}, {...})` are operators, one per row; what a row leaves
    out is that of one fp32 addition of nothing.
    """
    plain: JsonDict = {
        "flop": 0,
        "bytes": 0,
        "m": 0,
        "n": 0,
        "k": 0,
        "batch": 1,
        "launches": 1,
        "repeats": 1.0,
        "kind": "pointwise",
        "dtype": "fp32",
        "part": "micro-batch",
        "phase": "forward",
        "layer": GLOBAL,
        "name": "add",
    }

    def make(*rows: JsonDict) -> Work:
        whole = [plain | row for row in rows]
        names = tuple(dict.fromkeys(row["name"] for row in whole))
        numbered = {
            "classes": ("kind", CLASSES),
            "dtypes": ("dtype", DTYPES),
            "parts": ("part", PARTS),
            "phases": ("phase", PHASES),
            "operators": ("name", names),
        }
        counts = {
            f"{key}_W": np.array([row[key] for row in whole], np.int64)
            for key in ("flop", "bytes", "m", "n", "k", "batch", "launches")
        }
        fused = {
            f"fused_{key}_W": np.array(
                [row.get(f"fused_{key}", row[key]) for row in whole], np.int64
            )
            for key in ("bytes", "launches")
        }
        indices = {
            f"{name}_W": np.array([known.index(row[key]) for row in whole], np.int64)
            for name, (key, known) in numbered.items()
        }
        layers = np.array([row["layer"] for row in whole], np.int64)
        return Work(
            **counts,
            **fused,
            **indices,
            layers_W=layers,
            repeats_W=np.array([row["repeats"] for row in whole], np.float64),
            operators=names,
        )

    return make


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., HandTraces]:
    """`by_hand(weights_bytes=..., ...)` are traces of those sizes; by default 400 MiB and 50 MiB
    for every sequence.
    """
    return HandTraces


def _cheap(spec: StepSpec) -> HandTraces:
    """Sizes in the proportions of a real step, from a few products of the config's numbers."""
    values = spec.config
    width, blocks = (
        values.get("n_embd") or values["hidden_size"],
        values.get("n_layer") or values["num_hidden_layers"],
    )
    frozen, length = spec.adapter is not None, spec.sequence_length
    count = values["vocab_size"] * width + 12 * blocks * width**2
    trained = count // 100 if frozen else count
    trained_bytes = 2 if not frozen and spec.weights == "bf16" else 4
    weight_bytes = (0.5 if spec.quantize == "nf4" else 2) if frozen else trained_bytes
    return HandTraces(
        weights_bytes=round(weight_bytes * count),
        gradients_bytes=trained_bytes * trained,
        states_bytes=(2 if spec.optimizer.endswith("8bit") else 8) * trained,
        sequence_bytes=length * width * (34 if not spec.recompute else 4) * blocks,
        logits_bytes=8 * values["vocab_size"] * min(spec.loss_chunk, length),
        parameters=count,
        sequence_flop=2 * count * length,
        moved_bytes=68 * length * width * blocks,
        update_bytes=28 * trained,
        dtype="fp32" if spec.autocast == "none" else "16-bit",
        recomputed=spec.recompute,
    )


@pytest.fixture(scope="session")
def cheap_tracer() -> Tracer:
    """Traces of any step in no time, by rule of thumb."""
    return _cheap


@pytest.fixture(scope="session")
def planned(cheap_tracer: Tracer) -> MakePlan:
    """`planned(recipe, device, vocabulary=..., ...)` is the plan that rests on the cheap traces."""

    def plan(recipe: Recipe, device: Device, tracer: Tracer = cheap_tracer, **facts: Any) -> Plan:
        return derive(recipe, device, tracer, Facts(**facts))

    return plan


ADAPTED = """
name: adapted
sequence_length: 2048
batch: {sequences: 16}
training: {steps: 3}
model: HuggingFaceTB/SmolLM2-1.7B
adapter: {rank: 16}
data: {path: a.txt}
optimizer: {learning_rate: 1e-3}
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], MakeRecipe]:
    """`written(text)("key=value", ...)` is the recipe in a file of this text, changed."""

    def write(text: str) -> MakeRecipe:
        path = tmp_path / "written.yaml"
        path.write_text(text)
        return lambda *overrides: load(str(path), overrides)

    return write


@pytest.fixture
def adapted(written: Callable[[str], MakeRecipe]) -> MakeRecipe:
    """`adapted("key=value", ...)` tunes adapters of a published model."""
    return written(ADAPTED)
