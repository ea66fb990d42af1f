"""Traces stored on disk by content, so that a repeated plan needs neither torch nor tracing."""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.errors import PlanError
from brimful.base.garbage import collector_off
from brimful.base.kept_values import kept_value, read_whole, write_whole
from brimful.planning.memory import Known
from brimful.planning.parametric import Irregular, ParametricTrace
from brimful.planning.parts import TraceInParts
from brimful.planning.step import ANY_NUMBER, StepSpec
from brimful.planning.trace import Trace
from brimful.planning.work import ARRAYS as WORK_ARRAYS
from brimful.planning.work import IrregularWork, ParametricWork, Work
from brimful.rehearsal.family_store import StoredFamilies, refuse_without_torch
from brimful.rehearsal.shipped import library_versions, state_of
from brimful.rehearsal.shipped_traces import SHIPPED_TRACES, trace_with_brimful

_SOURCES = (
    "rehearsal",
    "training",
    "model",
    "evaluation",
    "planning/step.py",
    "planning/trace.py",
    "planning/parametric.py",
    "planning/parts.py",
    "planning/family.py",
    "planning/family_file.py",
    "planning/family_key.py",
    "planning/recorded_sums.py",
    "planning/recordings.py",
    "planning/architecture.py",
    "planning/factors.py",
    "planning/skeleton.py",
    "planning/skeleton_file.py",
    "planning/skeleton_recordings.py",
    "planning/allocator.py",
    "planning/events.py",
    "planning/memory_pool.py",
    "planning/plain_replay.py",
    "planning/host_heap.py",
    "planning/work.py",
    "hardware/rates.py",
)
"""Code that decides what a trace holds and what its replays give: files, and folders with all in
them.
"""
_ARRAYS = ("events_E", "event_layers_E", "sizes_S", "kinds_S", "places_S", "layers_S")

_WORK_LINES = ("base", "slope", "chunk_slope", "chunks_W")
_WORDS = ("places", "blocks", "marks", "parameters", "trainable")


class TraceFiles:
    """Files of traces in a folder, named by content; with None nothing is stored.

    Args:
        folder: Of the user's cache.
        shipped: Of the traces that come with brimful; None to do without.
    """

    def __init__(self, folder: Path | None, shipped: Path | None = SHIPPED_TRACES) -> None:
        self.folder, self._shipped = folder, shipped

    def path(self, spec: StepSpec, name: str) -> Path | None:
        """Return the path of the file called `name` of a step."""
        if self.folder is None:
            return None
        return self.folder / file_name(_content(spec, name))

    def read(self, spec: StepSpec, name: str) -> tuple[Trace, dict[str, np.ndarray]] | None:
        """Return a stored trace and its further arrays; None if the file is missing or damaged. One
        that comes with brimful is stored first.
        """
        path = self.path(spec, name)
        if path is None:
            return None
        content = read_whole(path)
        if content is None:
            if self._shipped is not None:
                content = trace_with_brimful(spec, name, self._shipped)
            if content is None:
                return None
            write_whole(path, content)
        from safetensors.numpy import load  # noqa: PLC0415 - with numpy only

        arrays = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        words = json.loads(header["__metadata__"]["trace"])
        words["places"] = tuple(words["places"])
        operators, work = words.pop("operators"), None
        if operators is not None:
            work = Work(
                **{key: arrays.pop(f"work_{key}") for key in WORK_ARRAYS},
                operators=tuple(operators),
            )
        trace = Trace(**{key: arrays.pop(key) for key in _ARRAYS}, **words, work=work)
        return trace, arrays

    def write(self, spec: StepSpec, name: str, trace: Trace, extra: dict[str, np.ndarray]) -> None:
        """Store a trace with further arrays."""
        path = self.path(spec, name)
        if path is None:
            return
        from safetensors.numpy import save  # noqa: PLC0415 - as above

        operators = None if trace.work is None else trace.work.operators
        words = json.dumps(
            {key: getattr(trace, key) for key in _WORDS}
            | {"places": list(trace.places), "operators": operators}
        )
        arrays = {key: getattr(trace, key) for key in _ARRAYS}
        if trace.work is not None:
            arrays |= {f"work_{key}": getattr(trace.work, key) for key in WORK_ARRAYS}
        write_whole(
            path,
            save(
                {key: np.ascontiguousarray(value) for key, value in arrays.items()} | extra,
                metadata={"trace": words, "content": _content(spec, name)},
            ),
        )


def _content(spec: StepSpec, name: str) -> str:
    return f"{spec.key()} {name}"


def file_name(content: str) -> str:
    """Return the name of the file that holds this, with the present libraries and code."""
    return f"{hashlib.sha256(f'{_versions()} {content}'.encode()).hexdigest()[:32]}.safetensors"


class StoredTraces:
    """Traces of one step for every micro-batch, read from the folder or else made and stored.

    Args:
        spec: The step.
        folder: Where traces are stored; with None nothing is.
        families: Families of traces, shared with steps that differ in length and rank only.
        shipped: Folder of the traces that come with brimful; None to do without.
    """

    def __init__(
        self,
        spec: StepSpec,
        folder: Path | None,
        families: "StoredFamilies | None" = None,
        shipped: Path | None = SHIPPED_TRACES,
    ) -> None:
        self._spec, self._files = canonical_step(spec), TraceFiles(folder, shipped)
        self._families = StoredFamilies(folder) if families is None else families
        self._parametric: ParametricTrace | Irregular | None = None
        self._single: ParametricTrace | Irregular | None = None
        self._direct: dict[int, Trace] = {}

    def at(self, rows: float) -> Trace:
        """Return the trace of a micro-batch. It is made for this micro-batch alone where the step
        is irregular, or where one sequence is a special case without a family. A fraction stands
        for rows that are not full; where the step is irregular they count as full.

        Raises:
            PlanError: it cannot be traced, or is irregular with compiled blocks.
        """
        parametric = self._line(rows)
        if parametric is not None:
            return parametric.at(rows)
        if "blocks" in self._spec.compiled and isinstance(self._all(), Irregular):
            raise PlanError(
                "the memory of this compiled step cannot be computed from traces of small ones,"
                " and tracing it whole takes minutes; use plan.compile=false"
            )
        micro_batch = math.ceil(rows)
        if micro_batch not in self._direct:
            self._direct[micro_batch] = self._one(micro_batch)
        return self._direct[micro_batch]

    def work_at(self, micro_batch: int) -> Work:
        """Return the work of a micro-batch's operators.

        Raises:
            IrregularWork: it does not follow from small traces.
        """
        parametric = self._line(micro_batch)
        if parametric is not None and parametric.work is not None:
            return parametric.work.at(micro_batch, self._spec.loss_chunk)
        if micro_batch not in self._direct:
            self._direct[micro_batch] = self._one(micro_batch)
        work = self._direct[micro_batch].work
        if work is None:
            raise IrregularWork(
                "the operators of this step do not repeat from block to block, so its time cannot"
                " be predicted."
            )
        return work

    def is_kept(self) -> bool:
        """Return whether the traces of all micro-batches are stored, or why there are none."""
        path = self._files.path(dataclasses.replace(self._spec, loss_chunk=0), "all")
        return path is not None and path.is_file()

    def read_known(self) -> Known:
        """Return the results of replays of this step's traces in earlier processes."""
        path = self._files.path(self._spec, "replays")
        if path is None:
            return {}
        content = read_whole(path.with_suffix(".json"))
        known: Known = {} if content is None else json.loads(content)
        return known

    def write_known(self, known: Known) -> None:
        """Store the results of replays."""
        path = self._files.path(self._spec, "replays")
        if path is not None:
            write_whole(path.with_suffix(".json"), json.dumps(known).encode())

    def _line(self, rows: float) -> ParametricTrace | None:
        """Return the parametric trace that holds for this micro-batch, if there is one. A fraction
        of a row is never the special case of one sequence.
        """
        line = self._all()
        if isinstance(line, ParametricTrace) and rows == int(rows) and rows < line.lowest:
            if self._single is None:
                self._single = self._families.member(self._spec, is_single=True) or Irregular()
            line = self._single
        return line if isinstance(line, ParametricTrace) else None

    def _all(self) -> ParametricTrace | Irregular:
        if self._parametric is None:
            self._parametric = self._load_all()
        return self._parametric

    def _load_all(self) -> ParametricTrace | Irregular:
        anywhere = dataclasses.replace(self._spec, loss_chunk=0)
        if (stored := self._files.read(anywhere, "all")) is not None:
            trace, extra = stored
            return self._line_in(trace, extra) if len(trace.events_E) else Irregular()
        if (member := self._families.member(self._spec)) is not None:
            return member
        if not self._families.has_family(self._spec):
            line = self._line_in_parts()
            if line is not None:
                return line
        made = _trace_all(self._spec)
        if isinstance(made, Irregular):
            self._files.write(anywhere, "all", _nothing(), {})
            return made
        self._files.write(anywhere, "all", *_as_stored(made))
        return dataclasses.replace(made, loss_chunk=self._spec.loss_chunk)

    def _line_in_parts(self) -> ParametricTrace | None:
        """Return the line of a model in parts, which all numbers of ranks share that divide its
        rows; None for others.
        """
        ranks = self._spec.ranks
        if ranks == 1 or self._spec.compiled != "none" or not self._spec.serves_all_ranks:
            return None
        parts = self._parts(dataclasses.replace(self._spec, loss_chunk=0, ranks=ANY_NUMBER))
        if parts is None or not parts.serves(ranks):
            return None
        return dataclasses.replace(parts.at(ranks), loss_chunk=self._spec.loss_chunk)

    def _parts(self, anywhere: StepSpec) -> TraceInParts | None:
        if (stored := self._files.read(anywhere, "parts")) is not None:
            trace, extra = stored
            if not len(trace.events_E):
                return None
            line = self._line_in(trace, extra)
            return TraceInParts(line, extra["whole_S"], extra.get("whole_work"), int(extra["rows"]))
        made = _trace_parts(self._spec)
        if isinstance(made, Irregular):
            self._files.write(anywhere, "parts", _nothing(), {})
            return None
        trace, extra = _as_stored(made.alike)
        extra |= {"whole_S": made.whole_S, "rows": np.array(made.rows)}
        if made.whole_work is not None:
            extra["whole_work"] = made.whole_work
        self._files.write(anywhere, "parts", trace, extra)
        return made

    def _line_in(self, trace: Trace, extra: dict[str, np.ndarray]) -> ParametricTrace:
        """Return the line in a stored trace."""
        work = None
        if trace.work is not None and "line_base" in extra:
            work = ParametricWork(
                trace.work,
                **{name: extra[f"line_{name}"] for name in _WORK_LINES},
                sequence_length=self._spec.scored_tokens,
            )
        return ParametricTrace(
            trace,
            extra["base_S"],
            extra["slope_S"],
            extra["chunk_slope_S"],
            self._spec.scored_tokens,
            self._spec.loss_chunk,
            int(extra["lowest"]),
            work,
        )

    def _one(self, micro_batch: int) -> Trace:
        stored = self._files.read(self._spec, str(micro_batch))
        if stored is not None:
            return stored[0]
        trace: Trace = _tracer().trace_one(self._spec, micro_batch)
        self._files.write(self._spec, str(micro_batch), trace, {})
        return trace


def _tracer() -> Any:
    """Return the module that traces.

    Raises:
        PlanError: torch is not installed.
    """
    refuse_without_torch()
    with collector_off():
        from brimful.rehearsal import tracer  # noqa: PLC0415 - torch, only to trace
    return tracer


def _trace_all(spec: StepSpec) -> ParametricTrace | Irregular:
    try:
        line: ParametricTrace = _tracer().trace_all(spec)
    except Irregular as irregular:
        return irregular
    return line


def _trace_parts(spec: StepSpec) -> TraceInParts | Irregular:
    try:
        parts: TraceInParts = _tracer().trace_parts(spec)
    except Irregular as irregular:
        return irregular
    return parts


def _as_stored(line: ParametricTrace) -> tuple[Trace, dict[str, np.ndarray]]:
    """Return a line as a trace and further arrays."""
    extra = {
        "base_S": line.base_S,
        "slope_S": line.slope_S,
        "chunk_slope_S": line.chunk_slope_S,
        "lowest": np.array(line.lowest),
    }
    if line.work is None:
        return line.trace, extra
    extra |= {f"line_{name}": getattr(line.work, name) for name in _WORK_LINES}
    return dataclasses.replace(line.trace, work=line.work.work), extra


def canonical_step(spec: StepSpec) -> StepSpec:
    """Return the step as it is traced for all that take the same memory: on CUDA bf16 in place of
    fp16, and no flash kernel where no attention would use one.
    """
    if not spec.cuda:
        return spec
    if spec.attention == "eager":
        spec = dataclasses.replace(spec, flash=False)
    if spec.weights == "fp16":
        spec = dataclasses.replace(spec, weights="bf16")
    if spec.autocast == "fp16":
        spec = dataclasses.replace(spec, autocast="bf16")
    return spec


def _nothing() -> Trace:
    empty = np.zeros(0, np.int32)
    return Trace(empty, empty, np.zeros(0, np.int64), empty, empty, empty, ())


@functools.cache
def _versions() -> str:
    """Return library versions and a digest of brimful's own code, without importing any of it. The
    digest is kept for as long as no file has another size or time of change.
    """
    root = Path(__file__).parent.parent
    files = sorted(itertools.chain.from_iterable(_files(root / source) for source in _SOURCES))

    def digest() -> str:
        code = hashlib.sha256()
        for name, _, _ in files:
            code.update(Path(name).read_bytes())
        return code.hexdigest()

    return json.dumps(library_versions()) + str(kept_value("code", files, digest))


def _files(source: Path) -> list[tuple[str, int, int]]:
    """Return the files of a source, each with its size and time of change."""
    if source.suffix:
        return [(str(source), *state_of(source))]
    found, pending = [], [str(source)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.name.endswith((".py", ".toml")):
                    status = entry.stat()
                    found.append((entry.path, status.st_size, status.st_mtime_ns))
                elif entry.is_dir() and entry.name != "__pycache__":
                    pending.append(entry.path)
    return found
