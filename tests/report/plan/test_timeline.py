"""The memory of a traced step as a figure."""

import warnings
from pathlib import Path

import numpy as np
from syrupy.assertion import SnapshotAssertion

from brimful.planning.memory import Tensor
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import GLOBAL
from brimful.report.plan import timeline
from brimful.report.plan.timeline import draw_timeline, short_place

STORAGES = [
    # kind, block, place, bytes
    ("weights", GLOBAL, "model.embed_tokens.weight", 100),
    ("weights", 0, "model.layers.0.mlp.weight", 50),
    ("inputs", GLOBAL, "batch", 8),
    ("activations", 0, "model.layers.0.mlp add", 70),
    ("loss and logits", GLOBAL, "mm", 200),
    ("gradients", 0, "model.layers.0.mlp.weight", 50),
    ("gradients", GLOBAL, "model.embed_tokens.weight", 100),
]
EVENTS = [1, 2, 3, 4, 5, -5, 6, -4, 7, -3, -6, -7]


def made(events: list[int] = EVENTS) -> Trace:
    kinds, layers, places, sizes = zip(*STORAGES, strict=True)
    return Trace(
        events_E=np.array(events, np.int32),
        event_layers_E=np.full(len(events), GLOBAL, np.int32),
        sizes_S=np.array(sizes, np.int64),
        kinds_S=np.array([KINDS.index(kind) for kind in kinds], np.int32),
        places_S=np.arange(len(STORAGES), dtype=np.int32),
        layers_S=np.array(layers, np.int32),
        places=places,
        blocks="model.layers",
        marks={"inputs": 2, "forward": 3, "backward": 5, "optimizer": 9, "between steps": 12},
    )


def test_places_are_shortened_for_reading(snapshot: SnapshotAssertion) -> None:
    blocks = "base_model.model.model.layers"

    assert (
        short_place(
            Tensor(1, "activations", f"{blocks}.3.mlp.down_proj.lora_A.default _to_copy"), blocks
        )
        == snapshot
    )
    assert (
        short_place(Tensor(1, "weights", "base_model.model.lm_head.weight"), blocks)
        == "lm_head.weight"
    )
    assert short_place(Tensor(1, "loss and logits", "mm"), blocks) == "loss mm"
    assert len(short_place(Tensor(1, "weights", "a" * 100), blocks)) <= 40


def test_the_figure_is_written_as_png_or_svg(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_timeline(made(), tmp_path / "step.png", "a step of $x_1$")
        draw_timeline(made(), tmp_path / "step.svg", "a step of $x_1$")

    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "step.svg").read_text(encoding="utf-8")
    assert "a step of $x_1$" in text
    assert "peak 428 B" in text


def test_the_same_trace_gives_the_same_svg(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_timeline(made(), tmp_path / name, "a step")

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_every_kind_has_a_colour_of_its_own() -> None:
    assert len(set(timeline.COLOURS)) == len(KINDS)
