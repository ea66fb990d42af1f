"""Checkpoints that are complete or absent.

A checkpoint is written under a temporary name, hashed while streaming, fsynced, listed in a
manifest and committed by one rename. It is read back before an older one is removed. Loading goes
from newest to oldest and puts a damaged one in quarantine; nothing is resumed with a file missing.

Of a model that several ranks hold in parts, each rank writes its own rows of weights and optimizer
states, and the manifest says how many parts there are. Loading joins them, so any number of ranks
goes on from them.
"""

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from brimful.base.errors import CheckpointError, RunFolderError
from brimful.base.manifest import MANIFEST, problem_of_file
from brimful.base.rundir import (
    SCHEMA_VERSION,
    Journal,
    Lease,
    NoJournal,
    add_checksum,
    fsync_folder,
    read_json,
    write_text_atomically,
)
from brimful.base.types import Json, JsonDict, Texts
from brimful.base.units import format_bytes
from brimful.base.warning_codes import coded
from brimful.runs.deciding import DECIDING_FILES, problem_of
from brimful.runs.files import CHECKPOINTS_FOLDER, MODEL_FOLDER, STATUS_FILE
from brimful.training.tensorfile import (
    HashedFile,
    JoinedTensors,
    Tensors,
    load_tensors,
    same_bits,
    save_tensors,
)
from brimful.training.world import World

FORMAT_VERSION = 1
IN_PARTS_VERSION = 2
"""Format of a checkpoint that several ranks wrote, each its part."""
STATE_FILE = "state.json"
TENSOR_FILES = ("model", "optimizer", "random")
IN_PARTS = ("model", "optimizer")
"""Those of them of which every rank writes a part."""
DISK_RESERVE_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class Snapshot:
    """Everything a run needs to continue bit for bit.

    Attributes:
        step: Optimizer updates done.
        tensors: Tensors by file: `model`, `optimizer`, `random`.
        state: The rest as JSON (data cursor, guard, schedule, best score, and the texts of the
            files of the run that decide its answers).
        identity: Fingerprints that a resumed run must share (data, tokenizer, objective).
    """

    step: int
    tensors: Mapping[str, Tensors]
    state: Json
    identity: Texts


@dataclass(frozen=True)
class Loaded:
    """A verified snapshot, and the checkpoints that were tried before it and damaged."""

    snapshot: Snapshot
    quarantined: tuple[str, ...]

    def notes(self, best_step: int | None = None) -> list[str]:
        """Say what was damaged, and that the best checkpoint is not the one that was loaded."""
        notes = [
            coded("B301", f"a damaged checkpoint was put in quarantine ({problem})")
            for problem in self.quarantined
        ]
        if best_step not in {None, self.snapshot.step}:
            notes.append(
                f"the model is that of step {self.snapshot.step}: the checkpoint of step"
                f" {best_step}, which had the best validation loss, is lost"
            )
        return notes


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: Holds `step-NNNNNNNN` folders; made when absent.
        keep: Newest checkpoints kept, beside the protected one.
        check_writer: Called before every commit; raises when this process no longer owns the run
            folder.
    """

    def __init__(
        self, folder: Path, *, keep: int, check_writer: Callable[[], None] = lambda: None
    ) -> None:
        self.folder = folder
        self._keep = keep
        self._check_writer = check_writer

    def steps(self) -> list[int]:
        """Steps of committed checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        matches = (re.fullmatch(r"step-(\d+)", entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def path_of(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def save(self, snapshot: Snapshot, *, protect_step: int | None = None) -> int:
        """Commit a snapshot, verify it, and remove the checkpoints that are no longer kept; return
        its size in bytes.

        Raises:
            CheckpointError: no space or not writable; every older checkpoint is intact.
            RunFolderError: another process took the run folder over.
        """
        aside = self.begin(snapshot.step, num_bytes_of(snapshot))
        with self.abandoned_if_it_fails(aside):
            files = write_tensors(aside, snapshot.tensors)
        return self.commit(aside, snapshot, files, protect_step=protect_step)

    def refuse_full_disk(self, num_bytes: int) -> None:
        """Raise CheckpointError if the disk has no room for a checkpoint of so many bytes."""
        try:
            require_space(self.folder.parent, num_bytes)
        except OSError as error:
            raise CheckpointError(
                f"the first checkpoint would not fit into {self.folder}: {error}. Free space there,"
                " or train elsewhere: BRIMFUL_RUNS names the folder of runs."
            ) from error

    def begin(self, step: int, num_bytes: int) -> Path:
        """Return a new folder beside the checkpoints for the files of one; raises as `save`."""
        aside = self.folder / f"{self.path_of(step).name}.tmp-{uuid.uuid4().hex[:8]}"
        with self.abandoned_if_it_fails(aside):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            require_space(self.folder, num_bytes)
            aside.mkdir()
        return aside

    def commit(
        self,
        aside: Path,
        snapshot: Snapshot,
        files: Mapping[str, Mapping[str, str | int]],
        *,
        protect_step: int | None = None,
        parts: int = 1,
    ) -> int:
        """Make a folder that `begin` returned and its tensors a checkpoint; raises as `save`.

        Args:
            files: Entries of the manifest for the tensors' files.
            parts: How many ranks wrote them.
        """
        final = self.path_of(snapshot.step)
        with self.abandoned_if_it_fails(aside):
            num_bytes = _write_rest(aside, snapshot, dict(files), parts)
            fsync_folder(aside)
            self._check_writer()
            if final.exists():
                os.rename(final, final.with_name(f"{final.name}.replaced-{uuid.uuid4().hex[:8]}"))
            os.rename(aside, final)
            fsync_folder(self.folder)
        verify(final)
        self._rotate(protect_step)
        return num_bytes

    @contextmanager
    def abandoned_if_it_fails(self, aside: Path, *, removes: bool = True) -> Iterator[None]:
        """Remove a folder that `begin` returned if the disk refuses what is done to it.

        Args:
            removes: False while other ranks still write into it.

        Raises:
            CheckpointError: the disk refused.
        """
        try:
            yield
        except OSError as error:
            if removes:
                shutil.rmtree(aside, ignore_errors=True)
            kept = "no checkpoint exists yet"
            if steps := self.steps():
                kept = f"the checkpoint of step {steps[-1]} is intact"
            step = int(aside.name.partition(".")[0].removeprefix("step-"))
            raise CheckpointError(
                f"checkpoint of step {step} could not be written to {self.folder}:"
                f" {error}; {kept}. Free space or fix the permissions and run the same command to"
                " continue."
            ) from error

    def load_newest(self, preferred_step: int | None = None) -> Loaded | None:
        """Load the newest checkpoint that verifies; return None if there has never been one.

        Args:
            preferred_step: Step of a checkpoint that is tried before newer ones.

        Raises:
            CheckpointError: there were checkpoints and none can be trusted.
        """
        self._restore_replaced()
        quarantined: list[str] = []
        for step in sorted(self.steps(), key=lambda each: (each != preferred_step, -each)):
            try:
                return Loaded(load(self.path_of(step)), tuple(quarantined))
            except CheckpointError as error:
                quarantined.append(f"step {step}: {error}")
                os.rename(
                    self.path_of(step),
                    self.folder / f"quarantine-step-{step:08d}-{uuid.uuid4().hex[:8]}",
                )
        if quarantined:
            problems = "\n".join(f"  - {problem}" for problem in quarantined)
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be trusted:\n{problems}\nStart over with"
                " --fresh, or restore a copy of the folder."
            )
        return None

    def load_best(self, best_step: int | None) -> Loaded:
        """Load the best checkpoint; the newest one if that is lost, or none is the best.

        Raises:
            CheckpointError: there is none, or none can be trusted.
        """
        loaded = self.load_newest(best_step)
        if loaded is None:
            raise CheckpointError(f"there is no checkpoint in {self.folder}")
        return loaded

    def _restore_replaced(self) -> None:
        """Undo a replacement that was interrupted between its two renames."""
        if self.folder.is_dir():
            for entry in self.folder.glob("step-*.replaced-*"):
                final = entry.with_name(entry.name.partition(".")[0])
                if not final.exists():
                    os.rename(entry, final)

    def _remove_leftovers(self) -> None:
        self._restore_replaced()
        for entry in self.folder.iterdir():
            if re.fullmatch(r"step-\d+\.(tmp|replaced)-\w+", entry.name):
                shutil.rmtree(entry)

    def _rotate(self, protect_step: int | None) -> None:
        for step in self.steps()[: -self._keep]:
            if step != protect_step:
                shutil.rmtree(self.path_of(step))


def num_bytes_of(snapshot: Snapshot) -> int:
    """Return the bytes of a snapshot's tensors."""
    return sum(
        tensor.numel() * tensor.element_size()
        for group in snapshot.tensors.values()
        for tensor in group.values()
    )


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise OSError if a disk has no room for so many bytes, with some in reserve."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < 1.1 * needed_bytes + DISK_RESERVE_BYTES:
        raise OSError(
            f"{format_bytes(needed_bytes)} to write with {format_bytes(DISK_RESERVE_BYTES)} in"
            f" reserve, but only {format_bytes(free_bytes)} free"
        )


def write_tensors(
    folder: Path, tensors: Mapping[str, Tensors], part: int | None = None
) -> dict[str, dict[str, str | int]]:
    """Write tensors by file; return the entries of the manifest.

    Args:
        part: Number of the rank whose part of the tensors they are; None: they are whole.
    """
    names = {name: name if part is None else _part(name, part) for name in tensors}
    return {
        f"{names[name]}.safetensors": save_tensors(folder / f"{names[name]}.safetensors", group)
        for name, group in tensors.items()
    }


def _part(name: str, part: int) -> str:
    return f"{name}.part{part}"


def _write_rest(
    folder: Path, snapshot: Snapshot, files: dict[str, Mapping[str, str | int]], parts: int
) -> int:
    """Write state and manifest; return the bytes of all files."""
    state = add_checksum(dict(snapshot.state), STATE_FILE)
    files[STATE_FILE] = _save_json(folder / STATE_FILE, state)
    manifest = {
        "format_version": FORMAT_VERSION if parts == 1 else IN_PARTS_VERSION,
        "step": snapshot.step,
        "identity": snapshot.identity,
        "files": files,
        **({} if parts == 1 else {"parts": parts}),
    }
    _save_json(folder / MANIFEST, add_checksum(manifest, MANIFEST))
    return sum(int(entry["bytes"]) for entry in files.values())


def _save_json(path: Path, value: object) -> dict[str, str | int]:
    file = HashedFile(path)
    try:
        file.write(json.dumps(value, indent=2, allow_nan=False).encode())
        return file.finish()
    finally:
        file.abandon()


def verify(folder: Path) -> JsonDict:
    """Read a checkpoint back and compare it with its manifest; return the manifest.

    Raises:
        CheckpointError: a file is missing, of another size, or differs in any bit; the manifest is
            unreadable or of a newer format.
    """
    manifest = _read_manifest(folder)
    for name, entry in manifest["files"].items():
        if problem := problem_of_file(folder, name, entry):
            raise CheckpointError(problem)
    return manifest


def _read_manifest(folder: Path) -> JsonDict:
    try:
        manifest = read_json(folder / MANIFEST)
        version, step, files = manifest["format_version"], manifest["step"], set(manifest["files"])
    except Exception as error:
        raise CheckpointError(f"{MANIFEST} is missing or unreadable: {error}") from error
    if version not in {FORMAT_VERSION, IN_PARTS_VERSION}:
        raise CheckpointError(
            f"it has format {version}, and this version of brimful reads format {FORMAT_VERSION};"
            " the version that wrote it can read it"
        )
    expected = {
        STATE_FILE,
        *(path.name for name in TENSOR_FILES for path in _files(folder, name, manifest)),
    }
    if files != expected:
        raise CheckpointError(
            f"the manifest lists {sorted(files)}, a checkpoint has {sorted(expected)}"
        )
    if folder.name != f"step-{step:08d}":
        raise CheckpointError(f"the manifest is of step {step}, the folder is named {folder.name}")
    return manifest


def _files(folder: Path, name: str, manifest: Json) -> list[Path]:
    """Return the files that hold one kind of tensors, in the order of their parts."""
    parts = int(manifest.get("parts", 0))
    if not parts or name not in IN_PARTS:
        return [folder / f"{name}.safetensors"]
    return [folder / f"{_part(name, part)}.safetensors" for part in range(parts)]


def weights_of(folder: Path) -> JoinedTensors:
    """Return the weights in a checkpoint, each read when it is asked for.

    Raises:
        OSError: they are not there.
    """
    parts = len(list(folder.glob("model.part*.safetensors")))
    return JoinedTensors(_files(folder, "model", {"parts": parts}))


def load(folder: Path) -> Snapshot:
    """Verify a checkpoint and read it. Tensors in parts are read and joined when asked for.

    Raises:
        CheckpointError: as `verify`.
    """
    manifest = verify(folder)
    tensors: dict[str, Tensors] = {}
    for name in TENSOR_FILES:
        paths = _files(folder, name, manifest)
        tensors[name] = load_tensors(paths[0]) if len(paths) == 1 else JoinedTensors(paths)
    return Snapshot(manifest["step"], tensors, read_json(folder / STATE_FILE), manifest["identity"])


def stored_files(folder: Path) -> Texts:
    """Return the texts of the run's deciding files that a checkpoint holds, by name. One of an
    earlier version holds none.

    Raises:
        CheckpointError: its state is damaged.
    """
    if problem := problem_of_file(folder, STATE_FILE, _read_manifest(folder)["files"][STATE_FILE]):
        raise CheckpointError(problem)
    files: Texts = read_json(folder / STATE_FILE).get("run_files", {})
    return files


def differences(left: Snapshot, right: Snapshot) -> list[str]:
    """Return what is not equal bit for bit in two snapshots: tensors as `file/name`, and fields of
    the progress as `state/name`.
    """
    unequal = []
    for file in TENSOR_FILES:
        ours, theirs = left.tensors[file], right.tensors[file]
        unequal += [
            f"{file}/{name}"
            for name in sorted(ours.keys() | theirs.keys())
            if name not in ours or name not in theirs or not same_bits(ours[name], theirs[name])
        ]
    mine, other = dict(left.state["progress"]), dict(right.state["progress"])
    return unequal + [
        f"state/{key}"
        for key in sorted(mine.keys() | other.keys())
        if mine.get(key) != other.get(key)
    ]


_STOPPED = json.dumps({"schema_version": SCHEMA_VERSION, "status": "stopped"}) + "\n"


def mend(run_folder: Path) -> list[str]:
    """Write damaged or missing files of `DECIDING_FILES` again, as the newest sound checkpoint that
    holds them has them; return what was done, in sentences.

    Raises:
        RunFolderError: no checkpoint holds one that is damaged, or that a finished run lacks; or
            another process writes the folder.
    """
    every = {name: problem_of(run_folder / name) for name in DECIDING_FILES}
    problems = {name: problem for name, problem in every.items() if problem}
    if not problems or not _is_run(run_folder):
        return []
    copies = _copies(run_folder)
    for name in problems.keys() - copies.keys():
        if (run_folder / name).exists() or (run_folder / MODEL_FOLDER).exists():
            raise RunFolderError(
                f"{problems[name]}.\nNo checkpoint of this run holds a copy of {name}. Put a copy"
                f" back, or train again under another name: run.name={run_folder.name}-2"
            )
    mended = sorted(problems.keys() & copies.keys())
    with Lease.acquire(run_folder):
        for name in mended:
            write_text_atomically(run_folder / name, copies[name][1])
    return [
        f"{problems[name]}; it was brought back from the checkpoint of step {copies[name][0]}"
        for name in mended
    ]


def _is_run(run_folder: Path) -> bool:
    return any((run_folder / name).exists() for name in (*DECIDING_FILES, CHECKPOINTS_FOLDER))


def _copies(run_folder: Path) -> dict[str, tuple[int, str]]:
    """Return by name the step of the newest sound checkpoint that holds a file, and its text."""
    store = CheckpointStore(run_folder / CHECKPOINTS_FOLDER, keep=1)
    copies: dict[str, tuple[int, str]] = {}
    for step in store.steps():
        try:
            files = stored_files(store.path_of(step))
        except (CheckpointError, RunFolderError):
            continue
        # A checkpoint of an earlier version holds no copies; how its run stands is known all the
        # same: it can go on from there.
        copies |= {STATUS_FILE: (step, _STOPPED)}
        copies |= {name: (step, text) for name, text in files.items() if name in DECIDING_FILES}
    return copies


def open_journal(path: Path, loaded: Loaded | None, world: World) -> Journal:
    """Return the run's journal without what is recorded again; ranks after the first write none."""
    if not world.is_first:
        return NoJournal(path)
    keep_bytes = 0
    if loaded is not None:
        keep_bytes = _kept_bytes(path, int(loaded.snapshot.state["journal_bytes"]))
    return Journal(path, keep_bytes=keep_bytes)


def _kept_bytes(journal: Path, journal_bytes: int) -> int:
    """Return how much of a journal is kept when the run continues from a checkpoint.

    Everything up to the checkpoint, and the records of the session's end after it, provided that
    no step or evaluation was recorded after the checkpoint.
    """
    if not journal.exists():
        return journal_bytes
    after = journal.read_bytes()[journal_bytes:]
    complete_lines = after[: after.rfind(b"\n") + 1]
    try:
        kinds = {json.loads(line)["kind"] for line in complete_lines.splitlines()}
    except (ValueError, KeyError, TypeError):
        return journal_bytes
    if kinds <= {"checkpoint", "loader", "event", "end"}:
        return journal_bytes + len(complete_lines)
    return journal_bytes
