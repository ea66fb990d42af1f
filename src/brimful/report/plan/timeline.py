"""The memory of a traced step as a figure: which kinds of tensors are alive when, and what makes up
the peak.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from brimful.base.units import format_bytes
from brimful.planning.live_memory import MemoryTimeline, kinds_at
from brimful.planning.memory import Tensor, largest_at
from brimful.planning.trace import KINDS, Trace
from brimful.report.chart import Chart, Mark, Rule, Series
from brimful.report.drawing import write

_MAX_PLACE_LETTERS = 40
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_LETTER = 0.0115
"""Share of the width that a letter of a name takes."""


def draw_timeline(trace: Trace, path: Path, title: str) -> None:
    """Draw what is alive over the step, kind on kind, with the peak taken apart below it.

    Args:
        trace: of the step.
        path: where to; `.png` or `.svg` decides the format.
        title: of the figure.

    Raises:
        OSError: the file cannot be written.
    """
    write(timeline_chart(MemoryTimeline(trace), title), [path])


def timeline_chart(timeline: MemoryTimeline, title: str) -> Chart:
    """Return the memory of a step over its course as stacked areas, each named with its size at the
    peak.
    """
    trace, highest = timeline.trace, timeline.peak_bytes
    unit = min(len(_UNITS) - 1, max(0, highest.bit_length() - 1) // 10)
    scale, at_peak = 1024**unit, kinds_at(trace, timeline.peak)
    events = tuple(map(float, timeline.shown_events - timeline.start))
    drawn = [
        Series(
            f"{kind} {format_bytes(size)}, {size / max(1, highest):.1%}",
            events,
            tuple(bytes_P / scale),
            "area",
            place=place,
        )
        for place, (kind, bytes_P) in enumerate(zip(KINDS, timeline.bytes_by_kind, strict=True))
        if bytes_P.any()
        for size in [at_peak.get(kind, 0)]
    ]
    largest = "; ".join(
        f"{short_place(each, trace.blocks)} {format_bytes(each.num_bytes)}"
        for each in largest_at(trace, timeline.peak)
    )
    peak = Mark(timeline.peak - timeline.start, highest / scale, f"peak {format_bytes(highest)}")
    return Chart(
        "timeline",
        title,
        title,
        "births and deaths of tensors, in order",
        tuple(drawn),
        f"live tensors, {_UNITS[unit]}",
        uprights=tuple(_phases(timeline)),
        marks=(peak,),
        x_range=(0.0, max(1.0, timeline.num_events - 1)),
        y_range=(0.0, highest / scale * 1.2 or 1.0),
        is_main=True,
        note=f"Sizes are those at the peak, in the {timeline.peak_phase} phase. The largest tensors"
        f" then: {largest}.",
    )


def _phases(timeline: MemoryTimeline) -> Iterator[Rule]:
    """Lines where phases end, named where there is room, with the number of their step."""
    firsts = [each.first_event for each in timeline.phases]
    for phase, (first, last) in zip(
        timeline.phases, pairwise([*firsts, timeline.num_events]), strict=True
    ):
        name = f"{phase.name} {phase.step or ''}".rstrip()
        has_room = (last - first) / timeline.num_events >= _LETTER * len(name)
        yield Rule(last, name * has_room, "plain")


def short_place(tensor: Tensor, blocks: str) -> str:
    """Return a module path for reading: without the wrappers of adapters, `model.layers.3.mlp` as
    `block 3 mlp`, and long ones cut in the middle.
    """
    module, space, operator = tensor.place.partition(" ")
    if tensor.kind == "loss and logits" and "." not in tensor.place:
        return f"loss {tensor.place}"
    if blocks and module.startswith(f"{blocks}."):
        number, _, rest = module[len(blocks) + 1 :].partition(".")
        module = f"block {number} {rest}".rstrip()
    module = module.removeprefix("base_model.model.").removesuffix(".default")
    text = f"{module}{space}{operator}"
    if len(text) <= _MAX_PLACE_LETTERS:
        return text
    half = (_MAX_PLACE_LETTERS - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
