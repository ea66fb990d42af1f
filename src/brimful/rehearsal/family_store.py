"""Families of traces on disk: those of the user's cache first, then those that come with brimful;
what neither has is traced.

In the cache a family is named by all that decides it: the step, the exact versions of the
libraries, and `shipped.TRACES`.
"""

import contextlib
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from brimful.base.garbage import collector_off, importing
from brimful.base.kept_values import read_whole, write_whole
from brimful.planning.family import Family, ShortFamily
from brimful.planning.family_file import DamagedFile, from_bytes, to_bytes
from brimful.planning.family_key import TraceFamilyKey, family_keys_of
from brimful.planning.parametric import Irregular, ParametricTrace
from brimful.planning.step import StepSpec
from brimful.planning.trace import Unrecorded
from brimful.rehearsal.recorded_ahead import RecordedAhead
from brimful.rehearsal.shipped import ShippedFamilies, library_versions, name_of
from brimful.rehearsal.shipped_skeletons import ShippedSkeletons

IN_MEMORY = 24
"""Families kept in memory, a few MB each."""
WITH_BRIMFUL = ShippedFamilies()
SKELETONS_WITH_BRIMFUL = ShippedSkeletons()
_NO_FAMILY = b"none"
"""In place of a family: the step has none."""


class StoredFamilies:
    """Families of traces, each made when first needed; the last used stay in memory.

    Args:
        folder: Of the user's cache; with None nothing is stored.
        shipped, skeletons: Those that come with brimful; None to do without.
        ahead: What will probably be asked for next is recorded meanwhile, where there are cores.
    """

    def __init__(
        self,
        folder: Path | None,
        shipped: ShippedFamilies | None = WITH_BRIMFUL,
        skeletons: ShippedSkeletons | None = SKELETONS_WITH_BRIMFUL,
        *,
        ahead: bool = False,
    ) -> None:
        self._folder, self._shipped, self._skeletons = folder, shipped, skeletons
        self._ahead = RecordedAhead(self._record) if ahead and folder is not None else None
        self._made: dict[TraceFamilyKey, Family | None] = {}

    def member(self, spec: StepSpec, *, is_single: bool = False) -> ParametricTrace | None:
        """Return the traces of a step from its family, for micro-batches of one sequence with
        `is_single`; None where it has no family, or one that does not serve its number of devices.

        Raises:
            Unrecorded: none of its families is kept, and none can be made here.
        """
        problem: Unrecorded | None = None
        for key in family_keys_of(spec):
            try:
                family = self._family(key)
                if family is not None and is_single:
                    family = self._family(dataclasses.replace(key, is_single=True), family)
            except Unrecorded as unrecorded:
                problem = unrecorded
                continue
            if family is not None:
                return family.at(spec) if family.serves(spec.ranks) else None
        if problem is not None:
            raise problem
        return None

    def has_family(self, spec: StepSpec) -> bool:
        """Return whether a step that was asked about has a family, also one that does not serve
        it.
        """
        return any(self._made.get(key) is not None for key in family_keys_of(spec))

    def path(self, key: TraceFamilyKey) -> Path | None:
        """Return the file of a family in the user's cache."""
        if self._folder is None:
            return None
        return self._folder / families_folder() / name_of(key)

    def _family(self, key: TraceFamilyKey, like: Family | None = None) -> Family | None:
        if key not in self._made:
            while len(self._made) >= IN_MEMORY:
                self._made.pop(next(iter(self._made)))
            self._made[key] = self._load(key, like)
        family = self._made[key] = self._made.pop(key)  # the last used is the last to go
        return family

    def end(self) -> None:
        """End recordings that nobody waits for."""
        if self._ahead is not None:
            self._ahead.end()

    def _load(self, key: TraceFamilyKey, like: Family | None) -> Family | None:
        if self._ahead is not None:
            self._ahead.wait_for(key)
        content = self._kept(key)
        if content == _NO_FAMILY:
            return None
        short = None if content is None else _read(content)
        if short is None:
            short = self._with_brimful(key)
        if short is None:
            if self._ahead is not None:
                _load_all_that_traces(key)
                self._ahead.start_after(key, self._is_there)
            short = self._record(key, like)
        return None if short is None else short.stretched(key)

    def _record(self, key: TraceFamilyKey, like: Family | None = None) -> ShortFamily | None:
        """Trace a family and write it into the user's cache."""
        short = _traced(key, like)
        path = self.path(key)
        if path is not None:
            write_whole(path, _NO_FAMILY if short is None else to_bytes(short))
        return short

    def _is_there(self, key: TraceFamilyKey) -> bool:
        return self._kept(key) is not None or self._with_brimful(key) is not None

    def _kept(self, key: TraceFamilyKey) -> bytes | None:
        path = self.path(key)
        return None if path is None else read_whole(path)

    def _with_brimful(self, key: TraceFamilyKey) -> ShortFamily | None:
        found = None if self._skeletons is None else self._skeletons.family(key)
        if found is not None or self._shipped is None:
            return found
        content = self._shipped.read(key)
        return None if content is None else _read(content)


def families_folder() -> str:
    """Return the name of the folder in the cache that holds families recorded with the present
    libraries.
    """
    versions = hashlib.sha256(json.dumps(library_versions()).encode()).hexdigest()[:16]
    return f"families-{versions}"


def _read(content: bytes) -> ShortFamily | None:
    """Return the family in a file; None for a damaged one, which is made again."""
    with contextlib.suppress(DamagedFile):
        return from_bytes(content)
    return None


def _load_tracer() -> Any:
    """Return the module that traces.

    Raises:
        Unrecorded: torch is not installed.
    """
    refuse_without_torch()
    with importing("brimful.rehearsal.tracer"):
        from brimful.rehearsal import tracer  # noqa: PLC0415 - brings torch
    return tracer


def _load_all_that_traces(key: TraceFamilyKey) -> None:
    """Import what a family's recordings need, so that no other process has to import it again."""
    _load_tracer()
    if key.spec.adapter is not None:
        from brimful.model.published import import_adapters  # noqa: PLC0415 - brings torch

        with collector_off():
            import_adapters(quantized=key.spec.quantize != "none")


def _traced(key: TraceFamilyKey, like: Family | None) -> ShortFamily | None:
    try:
        short: ShortFamily = _load_tracer().trace_family(key, like)
    except Irregular:
        return None
    return short


def refuse_without_torch() -> None:
    """Raise Unrecorded where torch is not installed, so that nothing can be traced."""
    if "torch" not in library_versions():
        raise Unrecorded(
            "this step's recordings do not come with brimful, and without torch none can be made."
            " Install torch, transformers and peft, or ask about a model whose recordings come with"
            " brimful (docs/plan.md)."
        )
