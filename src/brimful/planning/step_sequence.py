"""A run of several steps from traces of two: batches of different lengths follow one another.

A trace holds the first optimizer step and the second; later ones repeat the second.

Suffixes: E events, S storages.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from brimful.base.arrays import Ints
from brimful.planning.block_rows import Irregular
from brimful.planning.trace import KINDS, Int32Array, Trace, same_events

MEASURED, SECOND_STEP, END = "measure 2", "inputs 2", "between steps"
_GRADIENTS = KINDS.index("gradients")


def sequence_of_steps(traces: Sequence[Trace]) -> Trace:
    """The first step of the first trace, then the second step of each following one.

    Gradients end between steps. What else a step leaves ends where the second step ends its
    counterpart from the first, else at once.

    Args:
        traces: Traces of one spec at different sizes, at least two.

    Raises:
        Irregular: their events differ, or they have one step only.
    """
    first = traces[0]
    if SECOND_STEP not in first.marks:
        raise Irregular("the trace has one step only")
    if any(not same_events(first, other) for other in traces[1:]):
        raise Irregular("the events differ between sizes")
    start = first.marks.get(MEASURED, first.marks[SECOND_STEP])
    end = first.marks.get(END, len(first.events_E))
    later, later_layers = first.events_E[start:end], first.event_layers_E[start:end]
    later_E = np.abs(later) - 1
    is_fresh_S, ends_S = np.zeros((2, len(first.sizes_S)), np.bool_)
    is_fresh_S[later_E[later > 0]], ends_S[later_E[later < 0]] = True, True
    fresh, found = np.flatnonzero(is_fresh_S), np.flatnonzero(ends_S & ~is_fresh_S)
    left = np.flatnonzero(is_fresh_S & ~ends_S)
    pairs = _paired(first, found, left)
    unpaired_S = is_fresh_S & ~ends_S
    unpaired_S[list(pairs.values())] = False
    unpaired = np.flatnonzero(unpaired_S)
    skipped_S = ends_S & ~is_fresh_S
    skipped_S[list(pairs)] = False
    now_S = np.arange(len(first.sizes_S))  # number in the run of each storage of the trace
    events: list[Int32Array | Ints]
    events, layers, origins = (
        [first.events_E[:start]],
        [first.event_layers_E[:start]],
        [np.arange(len(first.sizes_S))],
    )
    sizes = [np.where(is_fresh_S, 0, first.sizes_S)]
    for position, trace in enumerate(traces[1:]):
        before_S, now_S = now_S, now_S.copy()
        now_S[fresh] = sum(map(len, origins)) + np.arange(len(fresh))
        happens = np.ones(len(later), np.bool_)
        if position:
            events.append(-(before_S[unpaired] + 1))
            layers.append(first.layers_S[unpaired])
            happens = ~skipped_S[later_E]
            now_S[list(pairs)] = before_S[list(pairs.values())]
        events.append((np.sign(later) * (now_S[later_E] + 1))[happens])
        layers.append(later_layers[happens])
        sizes.append(trace.sizes_S[fresh])
        origins.append(fresh)
    origin_S = np.concatenate(origins)
    return dataclasses.replace(
        first,
        events_E=np.concatenate(events).astype(np.int32),
        event_layers_E=np.concatenate(layers).astype(np.int32),
        sizes_S=np.concatenate(sizes),
        kinds_S=first.kinds_S[origin_S],
        places_S=first.places_S[origin_S],
        layers_S=first.layers_S[origin_S],
    )


def _paired(trace: Trace, found: Ints, left: Ints) -> dict[int, int]:
    """Storages that the second step found and ends -> their counterparts among those it leaves: the
    next one of the same place.
    """
    by_place: dict[int, list[int]] = defaultdict(list)
    for number in left[trace.kinds_S[left] != _GRADIENTS]:
        by_place[int(trace.places_S[number])].append(int(number))
    return {
        int(number): by_place[place].pop(0)
        for number in found
        if by_place[place := int(trace.places_S[number])]
    }
