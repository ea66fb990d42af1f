"""Recorded families of steps: those that come with brimful, and those of the user's cache. What
neither has is recorded.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
from pathlib import Path

from brimful.base.errors import PlanError
from brimful.base.garbage import importing
from brimful.base.kept_values import kept_value, read_whole, write_whole
from brimful.planning.block_rows import Irregular
from brimful.planning.family import Family
from brimful.planning.family_file import DamagedFile, from_bytes, to_bytes
from brimful.planning.family_key import TraceFamilyKey, family_keys_of
from brimful.planning.memory import Known
from brimful.planning.parametric import ParametricTrace
from brimful.planning.step import StepSpec
from brimful.planning.trace import Trace, Unrecorded
from brimful.planning.work import IrregularWork, Work
from brimful.rehearsal.shipped import FOLDER, Shipped, library_versions, name_of, widened

IN_MEMORY = 24
"""Families kept in memory, a few MB each."""
NO_FAMILY = b"none"
"""In place of a family: the step has none."""
_SOURCES = ("rehearsal", "training", "model", "evaluation", "planning", "hardware")
"""Folders of the code that decides what replays give."""


class StoredFamilies:
    """Families, each recorded when it is first needed; the last used stay in memory.

    Args:
        folder: The folder of the user's cache; with None nothing is stored.
        shipped: Folder of the archives that come with brimful; None to do without.
    """

    def __init__(self, folder: Path | None, shipped: Path | None = FOLDER) -> None:
        self.folder, self._shipped = folder, Shipped(shipped)
        self._made: dict[TraceFamilyKey, Family | None] = {}

    def find(self, key: TraceFamilyKey, fewest: int = 0) -> Family | None:
        """Return a family; None where steps of this kind have none.

        Args:
            key: The family.
            fewest: See `tracer.record_family`.

        Raises:
            Unrecorded: it is not kept, and cannot be recorded here.
            PlanError: the step cannot be recorded at all.
        """
        if key not in self._made:
            while len(self._made) >= IN_MEMORY:
                self._made.pop(next(iter(self._made)))
            self._made[key] = self._load(key, fewest)
        found = self._made[key] = self._made.pop(key)  # the last used is the last to go
        return found

    def path(self, key: TraceFamilyKey) -> Path | None:
        """Return the file of a family in the user's cache."""
        if self.folder is None:
            return None
        return self.folder / families_folder() / name_of(key, self._shipped.about(key).defaults)

    def _load(self, key: TraceFamilyKey, fewest: int) -> Family | None:
        defaults = self._shipped.about(key).defaults
        wide = widened(key, defaults)
        if wide is not None:
            family = _read(self._shipped.read(key, name_of(wide[0], defaults)))
            if family is not None and (own := family.of(wide[1])) is not None:
                return own
        path = self.path(key)
        for content in (
            self._shipped.read(key, name_of(key, defaults)),
            None if path is None else read_whole(path),
        ):
            if content == NO_FAMILY:
                return None
            if (family := _read(content)) is not None:
                return family
        made = _recorded(key, fewest)
        if path is not None:
            write_whole(path, NO_FAMILY if made is None else to_bytes(made))
        return made


def families_folder() -> str:
    """Return the name of the folder in the cache that holds families recorded with the present
    libraries.
    """
    versions = hashlib.sha256(json.dumps(library_versions()).encode()).hexdigest()[:16]
    return f"row-families-{versions}"


def _read(content: bytes | None) -> Family | None:
    """Return the family in a file; None for none, and for a damaged one, which is made again."""
    if content is None:
        return None
    try:
        return from_bytes(content)
    except DamagedFile:
        return None


def _recorded(key: TraceFamilyKey, fewest: int) -> Family | None:
    if "torch" not in library_versions():
        raise Unrecorded(
            "this step's recordings do not come with brimful, and without torch none can be made."
            " Install torch, transformers and peft, or ask about a model whose recordings come with"
            " brimful (docs/plan.md)."
        )
    with importing("brimful.rehearsal.tracer"):
        from brimful.rehearsal import tracer  # noqa: PLC0415 - brings torch
    try:
        return tracer.record_family(key, fewest=fewest)
    except Irregular:
        return None


class StoredTraces:
    """Traces of one step for every micro-batch.

    Args:
        spec: The step.
        folder: Where recordings are stored; with None nothing is.
        families: Shared with other steps.
    """

    def __init__(
        self, spec: StepSpec, folder: Path | None, families: StoredFamilies | None = None
    ) -> None:
        self._spec = canonical_step(spec)
        self._families = StoredFamilies(folder) if families is None else families
        self._direct: dict[int, ParametricTrace] = {}

    def at(self, rows: float) -> Trace:
        """Return the trace of a micro-batch. It is recorded for this micro-batch alone where the
        step is irregular, or where one sequence is a special case without a family. A fraction
        stands for rows that are not full; where the step is irregular they count as full.

        Raises:
            PlanError: it cannot be traced, or is irregular with compiled blocks.
        """
        if (line := self._line(rows)) is not None:
            return line.at(rows)
        if "blocks" in self._spec.compiled and self._all is None:
            raise PlanError(
                "the memory of this compiled step cannot be computed from traces of small ones,"
                " and tracing it whole takes minutes; use plan.compile=false"
            )
        return self._one(math.ceil(rows)).at(math.ceil(rows))

    def work_at(self, micro_batch: int) -> Work:
        """Return the work of a micro-batch's operators.

        Raises:
            IrregularWork: it does not follow from small traces.
        """
        line = self._line(micro_batch)
        if line is not None and line.work is not None:
            work = line.work.at(micro_batch, self._spec.loss_chunk)
            if work.is_possible:
                return work
        line = self._one(micro_batch)
        if line.work is None:
            raise IrregularWork(
                "the operators of this step do not repeat from block to block, so its time cannot"
                " be predicted."
            )
        return line.work.at(micro_batch, self._spec.loss_chunk)

    def is_kept(self) -> bool:
        """Return whether the traces of all micro-batches are stored, or why there are none."""
        path = self._families.path(family_keys_of(self._spec)[-1])
        return path is not None and path.is_file()

    def read_known(self) -> Known:
        """Return the results of replays of this step's traces in earlier processes."""
        path = self._replays
        content = None if path is None else read_whole(path)
        known: Known = {} if content is None else json.loads(content)
        return known

    def write_known(self, known: Known) -> None:
        """Store the results of replays."""
        if self._replays is not None:
            write_whole(self._replays, json.dumps(known).encode())

    @property
    def _replays(self) -> Path | None:
        """The file of these results, for the present libraries and code."""
        if self._families.folder is None:
            return None
        content = f"{library_versions()} {code_digest()} {self._spec.key()}"
        name = hashlib.sha256(content.encode()).hexdigest()[:32]
        return self._families.folder / f"{name}.json"

    def _line(self, rows: float) -> ParametricTrace | None:
        """Return the parametric trace that holds for this micro-batch, if there is one. A fraction
        of a row is never the special case of one sequence.
        """
        found = self._all
        if found is None or rows != int(rows) or rows >= found[1].lowest:
            return None if found is None else found[1]
        return self._single

    @functools.cached_property
    def _all(self) -> tuple[TraceFamilyKey, ParametricTrace] | None:
        """The trace of all micro-batches, and its family; None where the step is irregular."""
        keys, problem = family_keys_of(self._spec), None
        for key in keys:
            try:
                found = self._families.find(key)
            except Unrecorded as unrecorded:
                problem = unrecorded
                continue
            if found is not None and (key is keys[-1] or found.serves(self._spec.ranks)):
                return key, found.at(self._spec)
        if problem is not None:
            raise problem
        return None

    @functools.cached_property
    def _single(self) -> ParametricTrace | None:
        """The trace of one sequence, where that is a special case in a family."""
        if self._all is None or self._all[0].is_alone:
            return None
        key = self._all[0]
        like = self._families.find(key)
        fewest = 0 if like is None else len(like.rows.few)
        found = self._families.find(dataclasses.replace(key, is_single=True), fewest)
        return None if found is None else found.at(self._spec)

    def _one(self, micro_batch: int) -> ParametricTrace:
        if micro_batch not in self._direct:
            found = self._families.find(TraceFamilyKey(self._spec, micro_batch=micro_batch))
            if found is None:
                raise PlanError("the training step cannot be traced")
            self._direct[micro_batch] = found.at(self._spec)
        return self._direct[micro_batch]


def canonical_step(spec: StepSpec) -> StepSpec:
    """Return the step as it is recorded for all that take the same memory: no flash kernel where no
    attention would use one, and on CUDA bf16 in place of fp16, unless scores are written out, whose
    softmax takes fp16 as it is and bf16 converted.
    """
    if spec.attention == "eager" or not spec.cuda:
        return dataclasses.replace(spec, flash=False)
    if spec.weights == "fp16":
        spec = dataclasses.replace(spec, weights="bf16")
    if spec.autocast == "fp16":
        spec = dataclasses.replace(spec, autocast="bf16")
    return spec


@functools.cache
def code_digest() -> str:
    """Return a digest of brimful's own code that decides recordings and replays, without importing
    any of it. It is kept for as long as no file has another size or time of change.
    """
    root = Path(__file__).parent.parent
    files = sorted(found for source in _SOURCES for found in _files(root / source))

    def digest() -> str:
        code = hashlib.sha256()
        for name, _, _ in files:
            code.update(Path(name).read_bytes())
        return code.hexdigest()

    return str(kept_value("code", files, digest))


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Return the files of code in a folder, each with its size and time of change."""
    found, pending = [], [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.name.endswith((".py", ".toml")):
                    status = entry.stat()
                    found.append((entry.path, status.st_size, status.st_mtime_ns))
                elif entry.is_dir() and entry.name != "__pycache__":
                    pending.append(entry.path)
    return found
