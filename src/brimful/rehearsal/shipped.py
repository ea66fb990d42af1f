"""Families of traces that come with brimful: one archive for each network, with the network's
config and the versions of the libraries that it was traced with.

`benchmarks/ship_families.py` makes them. They are used where the installed libraries have the same
major and minor versions, or are not installed; else a step is traced.
"""

import dataclasses
import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.base.version import version_of
from brimful.planning.family_file import FORMAT
from brimful.planning.family_key import TraceFamilyKey
from brimful.planning.step import StepSpec, canonical

TRACES = {"cuda": 1, "other devices": 2}
"""Raised by hand when the code that is traced, or that makes families of traces, gives others for
the same step. A test compares families that come with brimful with new ones.
"""
FOLDER = Path(__file__).parent / "families"
ABOUT = "about.json"
_LIBRARIES = ("torch", "transformers", "peft")
_NOT_OF_THE_STEP = frozenset(
    {
        "_model_name_or_path",
        "bos_token_id",
        "chunk_size_feed_forward",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "return_dict",
        "rms_norm_eps",
        "rope_parameters",
        "sep_token_id",
        "unk_token_id",
    }
)
"""Values of a config that change no tensor's size and no operator of a training step."""


@dataclass(frozen=True)
class About:
    """What an archive says of itself.

    Attributes:
        model: The published model whose network it is.
        versions: Of the libraries that it was traced with.
        config: As in the catalog of models, canonical JSON.
        values: The same with the libraries' defaults for what that leaves out.
    """

    model: str
    versions: Mapping[str, str]
    config: str
    values: Mapping[str, Any]

    def is_of(self, key: TraceFamilyKey) -> bool:
        """Return whether a family's network is this one."""
        wanted = self.config_of(key)
        if key.spec.config_json == wanted:
            return True
        own, other = (
            {
                name: value
                for name, value in values.items()
                if name not in _NOT_OF_THE_STEP and name != key.follows
            }
            for values in (json.loads(canonical(self.values)), key.spec.config)
        )
        return own == other and key.spec.task == "causal_lm"

    def config_of(self, key: TraceFamilyKey) -> str:
        """Return the config under which a family is kept here."""
        if not key.follows:
            return self.config
        return canonical({**json.loads(self.config), key.follows: 0})


class ShippedFamilies:
    """The archives in a folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def read(self, key: TraceFamilyKey) -> bytes | None:
        """Return the file of a family; None where there is none, or none for these libraries."""
        for path, about in _archives(self._folder, str(key.spec.config.get("model_type"))):
            if about.is_of(key) and agree(about.versions):
                has_flash = key.spec.flash and key.spec.cuda  # only there kernels are asked for
                spec = dataclasses.replace(
                    key.spec, config_json=about.config_of(key), flash=has_flash
                )
                content = read_entry(path, name_of(dataclasses.replace(key, spec=spec)))
                if content is not None:
                    return content
        return None


def write_archive(path: Path, about: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write files, by name, as an archive that says of itself what `about` holds; the same ones
    give the same bytes.
    """
    whole = {ABOUT: json.dumps(about, sort_keys=True).encode(), **files}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in sorted(whole.items()):
            archive.writestr(zipfile.ZipInfo(name), content)


def traces_of(spec: StepSpec) -> int:
    """Return the number in `TRACES` that holds for a step."""
    return TRACES["cuda" if spec.cuda else "other devices"]


def name_of(key: TraceFamilyKey) -> str:
    """Return the name of a family's file: a digest of all that decides it but the libraries."""
    traces = traces_of(key.spec)
    what = f"{FORMAT} {traces} {key.spec.key()} {key.lengths} {key.follows} {key.is_single}"
    what += " any length" * key.any_length
    return f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.xz"


@functools.cache
def _archives(folder: Path, model_type: str) -> list[tuple[Path, About]]:
    """Return the readable archives of a model type."""
    found = []
    for path in sorted(folder.glob(f"{model_type}.*.zip")):
        content = read_entry(path, ABOUT)
        try:
            found.append((path, About(**json.loads(content or b""))))
        except (TypeError, ValueError):
            continue  # a damaged archive: its steps are traced
    return found


def read_entry(path: Path, name: str) -> bytes | None:
    """Return an entry of an archive; None where one of the two is missing or damaged."""
    try:
        return _opened(path, *state_of(path)).read(name)
    except (OSError, KeyError, zipfile.BadZipFile):
        return None


def state_of(path: Path) -> tuple[int, int]:
    """Return size and time of change of a file; another content has others."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=32)
def _opened(path: Path, _size_bytes: int, _changed_ns: int) -> zipfile.ZipFile:
    """Return an archive in memory: to list its entries takes longer than to read one."""
    return zipfile.ZipFile(io.BytesIO(path.read_bytes()))


def agree(versions: Mapping[str, str]) -> bool:
    """Return whether what is installed has these versions but for the last number."""
    installed = library_versions()
    return all(
        version.split(".")[:2] == installed.get(name, version).split(".")[:2]
        for name, version in versions.items()
    )


@functools.cache
def library_versions() -> Mapping[str, str]:
    """Return the versions of the installed libraries that decide a trace, without importing
    them.
    """
    found = {name: version_of(name) for name in _LIBRARIES}
    return {name: version for name, version in found.items() if version is not None}
