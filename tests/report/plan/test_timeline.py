"""The memory of a traced step as a figure."""

import warnings
from pathlib import Path

from small_trace import small_trace
from syrupy.assertion import SnapshotAssertion

from brimful.planning.memory import Tensor
from brimful.planning.trace import KINDS
from brimful.report.drawing import AREAS
from brimful.report.plan.timeline import draw_timeline, short_place


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
        draw_timeline(small_trace(), tmp_path / "step.png", "a step of $x_1$")
        draw_timeline(small_trace(), tmp_path / "step.svg", "a step of $x_1$")

    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "step.svg").read_text(encoding="utf-8")
    assert "a step of $x_1$" in text
    assert "peak 428 B" in text


def test_the_same_trace_gives_the_same_svg(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_timeline(small_trace(), tmp_path / name, "a step")

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_every_kind_has_a_colour_of_its_own() -> None:
    assert len(set(AREAS)) == len(KINDS)
