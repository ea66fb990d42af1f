"""A cache on disk of step traces and of what replaying them gave, shared by all plans."""

from collections.abc import Iterator
from contextlib import contextmanager

from brimful.base.console import Say, silent
from brimful.base.env import cache_folder
from brimful.planning.compiled import Untraced
from brimful.planning.memory import Replays
from brimful.planning.step import StepSpec
from brimful.planning.survey import Tracer
from brimful.rehearsal.store import StoredFamilies, StoredTraces, canonical_step

STEPS_IN_MEMORY = 48
"""Steps that stay in memory after `save`; each takes a few MB."""
STEPS_WITH_TRACES = 8
"""Steps of which single traces stay in memory, some 20 MB each; of the others they are made again
where a result is not known.
"""

UNTRACED = (
    "a plan does not compile; `brimful plan RECIPE --compiled` and a run do, and later plans of the"
    " same step know what they found"
)


class KeptTraces:
    """A Tracer that reads and stores traces and the results of their replays in the user's cache
    folder.

    Args:
        progress: Is told when a step is traced.
        compiles: Compiled steps are traced, which takes some ten seconds each; else Untraced is
            raised for those that are not stored.
    """

    def __init__(self, progress: Say = silent, *, compiles: bool = False) -> None:
        self._progress, self._compiles = progress, compiles
        self._folder = cache_folder() / "traces"
        self._families = StoredFamilies(self._folder)
        self._replays: dict[StepSpec, tuple[StoredTraces, Replays, int]] = {}

    def __call__(self, spec: StepSpec) -> Replays:
        key = canonical_step(spec)
        if key not in self._replays:
            stored = StoredTraces(key, self._folder, self._families)
            if spec.compiled != "none" and not stored.is_kept() and not self._compiles:
                raise Untraced(UNTRACED)
            recomputed = ", with recomputation" * bool(spec.recompute)
            compiled = ", compiled without kernels (some ten seconds)" * (spec.compiled != "none")
            self._progress(
                f"tracing the training step on tensors without values{recomputed}{compiled}"
            )
            known = stored.read_known()
            self._replays[key] = (stored, Replays(stored, known), len(known))
        kept = self._replays[key] = self._replays.pop(key)  # the last used is the last to go
        for _, replays, _ in list(self._replays.values())[:-STEPS_WITH_TRACES]:
            replays.release()
        return kept[1]

    def save(self) -> None:
        """Write new results of replays to the disk, and free the memory of what can be read or
        computed again quickly.
        """
        for key, (stored, replays, written) in self._replays.items():
            if len(replays.known) > written:
                stored.write_known(replays.known)
                self._replays[key] = (stored, replays, len(replays.known))
            replays.release()
        while len(self._replays) > STEPS_IN_MEMORY:
            self._replays.pop(next(iter(self._replays)))


@contextmanager
def kept_traces(progress: Say = silent, *, compiles: bool = False) -> Iterator[Tracer]:
    """Context of a Tracer with a cache on disk. Devices with the same kernels share a step's traces
    and replays. New results are saved on exit, also after an exception. For `progress`
    and `compiles` see KeptTraces.
    """
    traces = KeptTraces(progress, compiles=compiles)
    try:
        yield traces
    finally:
        traces.save()
