"""Traces of declared steps, kept on disk from one plan to the next."""

from collections.abc import Iterator
from contextlib import contextmanager

from brimful.base.env import cache_folder
from brimful.planning.memory import Replays
from brimful.planning.step import StepSpec
from brimful.planning.survey import Tracer
from brimful.rehearsal.store import StoredFamilies, StoredTraces, canonical_step

STEPS_IN_MEMORY = 48
"""Of a process that answers many questions; a step has a few MB."""


class KeptTraces:
    """Traces of declared steps and what replaying them gave, kept in the user's cache folder; a
    Tracer.
    """

    def __init__(self) -> None:
        self._folder = cache_folder() / "traces"
        self._families = StoredFamilies(self._folder)
        self._replays: dict[StepSpec, tuple[StoredTraces, Replays, int]] = {}

    def __call__(self, spec: StepSpec) -> Replays:
        key = canonical_step(spec)
        if key not in self._replays:
            stored = StoredTraces(key, self._folder, self._families)
            known = stored.read_known()
            self._replays[key] = (stored, Replays(stored, known), len(known))
        kept = self._replays[key] = self._replays.pop(key)  # the last used is the last to go
        return kept[1]

    def keep(self) -> None:
        """Write what was found out since, and let go of what a later question finds again
        quickly.
        """
        for key, (stored, replays, written) in self._replays.items():
            if len(replays.known) > written:
                stored.write_known(replays.known)
                self._replays[key] = (stored, replays, len(replays.known))
            replays.release()
        while len(self._replays) > STEPS_IN_MEMORY:
            self._replays.pop(next(iter(self._replays)))


@contextmanager
def kept_traces() -> Iterator[Tracer]:
    """Traces of declared steps, replayed once for all devices with the same kernels; what was found
    out is kept at the end, also of a failure.
    """
    kept = KeptTraces()
    try:
        yield kept
    finally:
        kept.keep()
