"""Folders whose files can be verified: MANIFEST.json lists every file with its size and SHA-256."""

import hashlib
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from brimful.base.env import cache_folder
from brimful.base.errors import RunFolderError
from brimful.base.rundir import fsync_files, read_json, write_json_atomically
from brimful.base.types import Json, JsonDict, Texts

MANIFEST = "MANIFEST.json"
NOTED_AS = "manifests"
"""Key in run.json of the SHA-256 of a MANIFEST.json beside it, by the name of its folder."""
FORMAT_VERSION = 1

_DECIDING = frozenset({".json", ".safetensors", ".bin", ".pt", ".jinja", ".model", ".txt", ".py"})
"""Suffixes of files that transformers may read from a model's folder."""
_SETTLED_AFTER_S = 2.0
"""A hash is remembered only for a file that has not changed for so long: within one tick of the
clock of the file system a second change leaves its times as they were.
"""

_BELIEVED_FOR_S = 24 * 3600.0
"""How long a remembered hash is believed: decay of a disk changes bits and no times."""

State = list[int]
"""What a changed file is recognised by: size, times of change in ns, inode."""


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entries_of(paths: Iterable[Path]) -> dict[str, dict[str, int | str]]:
    """Return size and SHA-256 of files by name, as `problem_of_file` compares them."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in paths}


def note_hashes(folder: Path, *, origin: Texts | None = None) -> None:
    """Write the size and SHA-256 of every file of a folder (not a checkpoint) into its
    MANIFEST.json, so that it can be verified later. All of it is durable when this returns.

    Args:
        origin: What the files were made of, and how, for `is_whole_of`.
    """
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    manifest = {"format_version": FORMAT_VERSION, "files": entries_of(paths)}
    if origin:
        manifest["origin"] = dict(origin)
    write_json_atomically(folder / MANIFEST, manifest, with_checksum=True)
    fsync_files(folder)


def is_whole_of(folder: Path, origin: Texts) -> bool:
    """Return whether a folder was made of this, as `note_hashes` noted it, and every file in it has
    its hash still; all are read.
    """
    try:
        manifest = read_json(folder / MANIFEST)
        listed, is_origin = manifest["files"], manifest.get("origin") == dict(origin)
        names = {path.name for path in folder.iterdir()} - {MANIFEST}
        return (
            is_origin
            and names == listed.keys()
            and not any(problem_of_file(folder, name, listed[name]) for name in names)
        )
    except (RunFolderError, OSError, KeyError, TypeError, AttributeError):
        return False


def problem_of_file(folder: Path, name: str, entry: Any, *, is_hashed: bool = True) -> str | None:
    """Return what is wrong with a file that a manifest lists; None if it is as listed.

    Args:
        folder: The manifest's.
        name: The file's path in it.
        entry: Its size and SHA-256, under `bytes` and `sha256`.
        is_hashed: Compare the hash too, not the size alone.
    """
    path, noted = folder / name, entry if isinstance(entry, Mapping) else {}
    if not path.is_file():
        return f"{name} is missing"
    num_bytes, listed_bytes = path.stat().st_size, noted.get("bytes")
    if num_bytes != listed_bytes:
        listed = f"{listed_bytes:,}" if isinstance(listed_bytes, int) else "nothing of its size"
        return f"{name} has {num_bytes:,} bytes, its manifest says {listed}"
    if is_hashed and sha256_of(path) != noted.get("sha256"):
        return f"{name} is damaged: its SHA-256 differs from the manifest's"
    return None


def require_sound(folder: Path) -> None:
    """Verify a model's folder against its MANIFEST.json, and the manifest against the hash in the
    run.json beside the folder. A folder without a manifest passes unless run.json records one.

    Sizes are compared every time. A file is hashed again if its size, times or inode changed since
    the last check, which the cache folder remembers, or if that check is more than a day old. The
    times include ctime, which a program that writes cannot set back, so a changed file is noticed.

    Raises:
        RunFolderError: a file is missing, of another size or damaged; a file that loading would
            read is not in the manifest; or the manifest is missing, damaged or of another model.
    """
    manifest, noted = folder / MANIFEST, _noted_hash(folder)
    if not (manifest.is_file() or (noted and folder.is_dir())):
        return
    try:
        problem = _problem(folder, read_json(manifest)["files"])
        if noted and noted != sha256_of(manifest):
            problem = problem or f"its {MANIFEST} is not the one that the run wrote"
    except RunFolderError as error:
        problem = str(error)
    except (OSError, KeyError, TypeError, AttributeError) as error:
        problem = f"{MANIFEST} does not list its files: {error!r}"
    if problem:
        raise RunFolderError(f"the model in {folder} is not as it was written: {problem}")


def _noted_hash(folder: Path) -> str:
    """Return the hash of a model's manifest in the run.json beside it; empty where none says it, as
    in runs of earlier versions.
    """
    try:
        return str(read_json(folder.parent / "run.json").get(NOTED_AS, {}).get(folder.name, ""))
    except (RunFolderError, AttributeError):
        return ""


def _problem(folder: Path, listed: Mapping[str, Json]) -> str | None:
    """Return what is wrong with the files of a folder; None if all are as listed."""
    for name, entry in listed.items():
        if problem := problem_of_file(folder, name, entry, is_hashed=False):
            return problem
    deciding = {path.name for path in folder.iterdir() if path.suffix in _DECIDING}
    if unlisted := sorted(deciding - listed.keys() - {MANIFEST}):
        return f"{', '.join(unlisted)} would be read and is not in {MANIFEST}. Move it away"
    memory = _memory_of(folder)
    known = _remembered(memory)
    states = {name: _state_of(folder / name) for name in listed}
    for name, entry in listed.items():
        is_known = known.get(name) == [*states[name], entry["sha256"]]
        if not is_known and (problem := problem_of_file(folder, name, entry)):
            return problem
    _remember(memory, listed, states, known)
    return None


def _memory_of(folder: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()
    return cache_folder() / "verified" / f"{name}.json"


def _state_of(path: Path) -> State:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _remembered(memory: Path) -> JsonDict:
    """Return the states of the files that were sound at the last time, with their hashes; nothing
    where that was more than a day ago.
    """
    try:
        age_s = time.time() - memory.stat().st_mtime
        known = read_json(memory, is_cached=True)
    except (OSError, RunFolderError):
        return {}
    return known if 0 <= age_s < _BELIEVED_FOR_S else {}


def _remember(
    memory: Path,
    listed: Mapping[str, Json],
    states: Mapping[str, State],
    known: Json,
) -> None:
    settled_ns = time.time_ns() - int(_SETTLED_AFTER_S * 1e9)
    sound = {
        name: [*state, listed[name]["sha256"]]
        for name, state in states.items()
        if max(state[1], state[2]) < settled_ns
    }
    if sound == known:
        return
    # A cache that cannot be written costs the time to hash again, no more.
    with suppress(OSError, RunFolderError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(memory, sound, with_checksum=True)
