"""Families that come with brimful: one archive for each model type, with the versions of the
libraries that they were recorded with.

`benchmarks/ship_recordings.py` makes them. They are used where the installed libraries have the
same major and minor versions, or are not installed; else a step is recorded.
"""

import dataclasses
import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from brimful.base.kept_values import kept_value
from brimful.base.libraries import version_of
from brimful.base.types import Json, Texts
from brimful.planning.architecture import NOT_OF_THE_STEP, NotOfItsKind, Widths, network_of, serves
from brimful.planning.family_file import FORMAT, DamagedFile, opened
from brimful.planning.family_key import LONGEST, SHORTEST, TraceFamilyKey
from brimful.planning.step import StepSpec, canonical

TRACES = {"cuda": 3, "cuda, scores written out": 4, "other devices": 4}
"""Versions of recorded traces, by the steps that they are of. Raise one after a change by which the
same step gives another trace, or traces another family: recordings of other versions are not used.
A test compares families that come with brimful with new ones.
"""
FOLDER = Path(__file__).parent / "recordings"
ABOUT = "about.json"
_DAMAGED = (OSError, KeyError, NotImplementedError, zipfile.BadZipFile)
"""What reading an archive of other bytes may raise."""
_LIBRARIES = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class About:
    """What an archive says of itself.

    Attributes:
        versions: The versions of the libraries that its families were recorded with.
        defaults: Values of a config of this type where it leaves them out.
        places: The entry that a family is part of, and where it begins and ends, by the family's
            name.
    """

    versions: Texts
    defaults: Json
    places: Mapping[str, tuple[str, int, int]] = field(default_factory=dict)


class Shipped:
    """The archives in a folder; none with None."""

    def __init__(self, folder: Path | None = FOLDER) -> None:
        self._folder = folder

    def path(self, key: TraceFamilyKey) -> Path | None:
        """Return the archive that a family would be in."""
        model_type = key.spec.config.get("model_type")
        return None if self._folder is None else self._folder / f"{model_type}.zip"

    def about(self, key: TraceFamilyKey) -> About:
        """Return what that archive says of itself; nothing of a missing or damaged one."""
        path = self.path(key)
        found = None if path is None else _opened(path)
        return About({}, {}) if found is None else found[1]

    def read(self, key: TraceFamilyKey, name: str) -> bytes | None:
        """Return the file of a family; None where there is none, or none for these libraries."""
        path = self.path(key)
        found = None if path is None else _opened(path)
        if found is None or name not in found[1].places or not agree(found[1].versions):
            return None
        entry, start, end = found[1].places[name]
        content = _group(found[0], entry)
        return None if content is None else content[start:end]


def widened(key: TraceFamilyKey, defaults: Json) -> tuple[TraceFamilyKey, Widths] | None:
    """Return the key of the family that serves networks of any width with this structure, and the
    widths of this network; None where steps of this kind have no such family.

    Args:
        key: The key of a family of one network.
        defaults: Values of a config of its type where it leaves them out.
    """
    if key.is_alone or key.in_parts or not serves(key):
        return None
    try:
        network = network_of(key.spec.config, defaults, eight_bit="8bit" in key.spec.optimizer)
    except NotOfItsKind:
        return None
    lengths = None if key.lengths is None else (SHORTEST, LONGEST)
    spec = dataclasses.replace(key.spec, config_json=network.structure)
    wide = dataclasses.replace(key, spec=spec, lengths=lengths, follows="", any_width=True)
    return wide, network.widths


def name_of(key: TraceFamilyKey, defaults: Json) -> str:
    """Return the name of a family's file: a digest of all that decides it but the libraries.

    Args:
        key: The family.
        defaults: Values of a config of its type where it leaves them out.
    """
    spec = key.spec
    if not key.any_width and spec.task == "causal_lm":
        values = {**defaults, **spec.config}
        ignored = {*NOT_OF_THE_STEP, key.follows}
        config = {name: value for name, value in values.items() if name not in ignored}
        spec = dataclasses.replace(spec, config_json=canonical(config))
    open_ = [key.lengths, key.follows, key.is_single, key.any_width, key.micro_batch]
    what = f"{FORMAT} {traces_of(spec)} {spec.key()} {open_}"
    return f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.xz"


def obstacle(model_type: str, folder: Path = FOLDER) -> str | None:
    """Return why the recordings of a model type that come with brimful cannot be used, and what is
    done instead; None where they can, or where there are none.
    """
    path = folder / f"{model_type}.zip"
    if not path.exists():
        return None
    found = _opened(path)
    if found is None or not _is_whole(path):
        why = f"{path} is damaged (install brimful anew to have them)"
    elif not agree(found[1].versions):
        installed = library_versions()
        made = ", ".join(
            f"{name} {version} ({installed[name]} is installed)"
            for name, version in sorted(found[1].versions.items())
            if not agree({name: version})
        )
        why = f"they were made with {made}"
    else:
        return None
    return (
        f"recordings of {model_type} models that come with brimful cannot be used: {why}. Steps are"
        " recorded here instead, some ten seconds each, and kept."
    )


def _is_whole(path: Path) -> bool:
    """Return whether all of an archive can be read. That is checked once for a file."""
    made_from = [str(path), *state_of(path)]
    return bool(kept_value(f"whole {path.name}", made_from, lambda: _reads_whole(path)))


def _reads_whole(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except _DAMAGED:
        return False


def traces_of(spec: StepSpec) -> int:
    """Return the number in `TRACES` that holds for a step. On CUDA the attention scores are tensors
    in memory under eager attention, and may be where torch takes its math kernel: in fp32 with
    grouped heads, and for padded texts of their own.
    """
    if not spec.cuda:
        return TRACES["other devices"]
    fp32 = (spec.weights, spec.autocast) == ("fp32", "none")
    fused = spec.attention != "eager" and spec.task == "causal_lm" and not fp32
    return TRACES["cuda" if fused else "cuda, scores written out"]


def _opened(path: Path) -> tuple[zipfile.ZipFile, About] | None:
    """Return an archive and what it says of itself; None where it is missing or damaged."""
    return _in_memory(path, *state_of(path)) if path.is_file() else None


@functools.lru_cache(maxsize=32)
def _in_memory(
    path: Path, _size_bytes: int, _changed_ns: int
) -> tuple[zipfile.ZipFile, About] | None:
    """Return the same of a file in this state: listing its entries takes longer than reading."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
        return archive, About(**json.loads(archive.read(ABOUT)))
    except (TypeError, ValueError, *_DAMAGED):
        return None


@functools.lru_cache(maxsize=16)
def _group(archive: zipfile.ZipFile, entry: str) -> bytes | None:
    """Return families that are compressed together; None where they are damaged."""
    try:
        return opened(archive.read(entry))
    except (DamagedFile, *_DAMAGED):
        return None


def state_of(path: Path) -> tuple[int, int]:
    """Return size and time of change of a file; another content has others."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def agree(versions: Texts) -> bool:
    """Return whether what is installed has these versions but for the last number."""
    installed = library_versions()
    return all(
        version.split(".")[:2] == installed.get(name, version).split(".")[:2]
        for name, version in versions.items()
    )


@functools.cache
def library_versions() -> Texts:
    """Return the versions of the installed libraries that decide a recording, without importing
    them.
    """
    found = {name: version_of(name) for name in _LIBRARIES}
    return {name: version for name, version in found.items() if version is not None}
