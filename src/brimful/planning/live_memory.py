"""Which bytes are alive when: the memory of a traced step, event by event.

Suffixes: E events, S storages, K kinds, P points shown.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from brimful.base.arrays import Ints
from brimful.base.types import Counts, JsonDict
from brimful.planning.memory import largest_at, phase_at, terms_at
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import GLOBAL

MAX_POINTS = 2000
"""Points kept of a longer trace, phase marks not counted."""
_STEP_PHASES = {"measure", "inputs", "forward", "backward", "optimizer"}
_GROUPS = {
    "embedding": ("embed", "wte", "wpe"),
    "head": (
        "lm_head",
        "score",
        "classifier",
        "predictions",
        "cls.",
        "embed_out",
        "output_projection",
    ),
    "final norm": ("norm", "ln_f"),
}
"""Parts of the names of modules outside the blocks, in the families of transformers."""
_LAST_GROUPS = ("final norm", "head", "loss", "inputs", "library workspaces", "elsewhere")
"""Groups behind the blocks, in the order of the network."""


@dataclass(frozen=True)
class Phase:
    """A phase of a step.

    Attributes:
        name: Name without its count.
        step: The optimizer step, from 1; None outside steps.
        first_event: Counted from the first batch.
    """

    name: str
    step: int | None
    first_event: int


@dataclass(frozen=True)
class MemoryTimeline:
    """The memory of a trace from the first batch on; what comes before builds the model."""

    trace: Trace

    @cached_property
    def start(self) -> int:
        """The event where the first batch arrives."""
        events = [event for event in self.trace.marks.values() if event < len(self.live_bytes)]
        return min(events, default=0)

    @cached_property
    def live_bytes(self) -> Ints:
        """Bytes alive after each event (E) of the trace."""
        return self.trace.live_E()

    @cached_property
    def peak(self) -> int:
        """The event after which most bytes are alive."""
        return self.start + int(self.live_bytes[self.start :].argmax())

    @property
    def peak_bytes(self) -> int:
        """Bytes alive at the peak."""
        return int(self.live_bytes[self.peak])

    @property
    def peak_phase(self) -> str:
        """The phase of the peak."""
        return phase_at(self.trace, self.peak)

    @property
    def num_events(self) -> int:
        """From the first batch to the end."""
        return len(self.live_bytes) - self.start

    @cached_property
    def shown_events(self) -> Ints:
        """Events to show (P): of each of equal stretches the lowest and the highest, the ends, the
        peak, and the first of each phase.
        """
        start, live_E = self.start, self.live_bytes
        if self.num_events <= MAX_POINTS:
            return np.arange(start, len(live_E), dtype=np.int64)
        width = -(-2 * self.num_events // MAX_POINTS)
        stretches = -(-self.num_events // width)
        missing = np.full(stretches * width - self.num_events, live_E[-1])
        padded = np.concatenate([live_E[start:], missing]).reshape(stretches, width)
        first = start + np.arange(stretches) * width
        extremes = np.concatenate([first + padded.argmin(axis=1), first + padded.argmax(axis=1)])
        marks = [event for event in self.trace.marks.values() if event < len(live_E)]
        kept = np.unique(np.concatenate([extremes, marks, [start, self.peak, len(live_E) - 1]]))
        return kept[(kept >= start) & (kept < len(live_E))].astype(np.int64)

    @cached_property
    def bytes_by_kind(self) -> Ints:
        """Bytes alive after each shown event (K, P), a row for each of KINDS."""
        trace = self.trace
        storages_E = np.abs(trace.events_E) - 1
        change_E = np.sign(trace.events_E) * trace.sizes_S[storages_E]
        kinds_E = trace.kinds_S[storages_E]
        rows = [
            np.cumsum(np.where(kinds_E == kind, change_E, 0), dtype=np.int64)[self.shown_events]
            for kind in range(len(KINDS))
        ]
        return np.stack(rows)

    @cached_property
    def phases(self) -> list[Phase]:
        """Every phase, in order. A step ends with its optimizer update."""
        step, is_updated = 1, False
        phases = []
        for mark, event in self.trace.marks.items():
            name = mark.rstrip("0123456789 ")
            is_in_step = name in _STEP_PHASES
            if is_updated and is_in_step:
                step, is_updated = step + 1, False
            phases.append(Phase(name, step if is_in_step else None, event - self.start))
            is_updated |= name == "optimizer"
        return phases

    def to_json(self) -> JsonDict:
        """Return plain values for JSON, in bytes before any rounding of an allocator.

        Returns:
            `events`: indices of the events shown, counted from the first batch on; all lists of
                bytes are parallel to it.
            `live_bytes`: bytes alive after each of them by kind, kinds without any left out;
                `total_bytes`: of all kinds.
            `phases`: name, optimizer step (null outside steps), and first event of each.
            `peak`: event, bytes, phase, bytes by kind and by group of modules, and the ten largest
                tensors.
        """
        by_kind = zip(KINDS, self.bytes_by_kind, strict=True)
        return {
            "events": (self.shown_events - self.start).tolist(),
            "live_bytes": {kind: row_P.tolist() for kind, row_P in by_kind if row_P.any()},
            "total_bytes": self.live_bytes[self.shown_events].tolist(),
            "phases": [
                {"name": phase.name, "step": phase.step, "first_event": phase.first_event}
                for phase in self.phases
            ],
            "peak": {
                "event": self.peak - self.start,
                "bytes": self.peak_bytes,
                "phase": self.peak_phase,
                "kinds_bytes": kinds_at(self.trace, self.peak),
                "groups_bytes": groups_at(self.trace, self.peak),
                "largest": [
                    {"bytes": tensor.num_bytes, "kind": tensor.kind, "place": tensor.place}
                    for tensor in largest_at(self.trace, self.peak)
                ],
            },
        }


def kinds_at(trace: Trace, event: int) -> Counts:
    """Return the bytes alive after an event by kind, kinds without any left out."""
    return {kind: size for kind, size in terms_at(trace, event).items() if size}


def groups_at(trace: Trace, event: int) -> Counts:
    """Return the bytes alive after an event by group of modules: embedding, each block, final norm,
    head, loss, and what belongs to none.
    """
    sums: Counter[str] = Counter()
    blocks = set()
    for storage in trace.alive_at(event).tolist():
        layer = int(trace.layers_S[storage])
        if layer == GLOBAL:
            group = _group(trace.places[trace.places_S[storage]], KINDS[trace.kinds_S[storage]])
        else:
            group = f"block {layer}"
            blocks.add(layer)
        sums[group] += int(trace.sizes_S[storage])
    order = ("embedding", *(f"block {layer}" for layer in sorted(blocks)), *_LAST_GROUPS)
    return {group: sums[group] for group in order if sums[group]}


def _group(place: str, kind: str) -> str:
    """Return the group of a storage outside the blocks."""
    if kind in {"inputs", "library workspaces"}:
        return kind
    module, space, _ = place.partition(" ")
    if place.startswith("final norm"):
        module = "norm"
    elif not space and "." not in module:
        # An operator outside all modules.
        module = ""
    for group, parts in _GROUPS.items():
        if any(part in module for part in parts):
            return group
    return "loss" if kind == "loss and logits" else "elsewhere"
