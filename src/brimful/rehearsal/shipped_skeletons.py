"""Skeletons that come with brimful: one archive for each model type, for every network of the
structures that were recorded.

`benchmarks/ship_skeletons.py` makes them. They are used where the installed libraries have the same
major and minor versions, or are not installed; else a step is traced.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.base.kept_values import kept_value
from brimful.planning.architecture import NotOfItsKind, SizedNetwork, network_of, serves
from brimful.planning.family import ShortFamily
from brimful.planning.family_file import FORMAT, DamagedFile
from brimful.planning.family_key import TraceFamilyKey
from brimful.planning.skeleton_file import from_bytes
from brimful.rehearsal.shipped import (
    ABOUT,
    agree,
    library_versions,
    read_entry,
    state_of,
    traces_of,
)

SKELETONS = Path(__file__).parent / "skeletons"


@dataclass(frozen=True)
class AboutType:
    """What an archive says of itself.

    Attributes:
        versions: Of the libraries that its skeletons were traced with.
        defaults: Values of a config of this type where it leaves them out.
    """

    versions: Mapping[str, str]
    defaults: Mapping[str, Any]


class ShippedSkeletons:
    """The archives in a folder."""

    def __init__(self, folder: Path = SKELETONS) -> None:
        self._folder = folder

    def family(self, key: TraceFamilyKey) -> ShortFamily | None:
        """Return a family; None where there is no skeleton of it, or none for these libraries."""
        path = self._folder / f"{key.spec.config.get('model_type')}.zip"
        about = about_type(path)
        if about is None or not serves(key) or not agree(about.versions):
            return None
        with contextlib.suppress(NotOfItsKind, DamagedFile):
            network = network_of_key(key, about.defaults)
            content = read_entry(path, name_of_skeleton(key, network.structure))
            if content is not None:
                return from_bytes(content).at(network.widths)
        return None


def obstacle(model_type: str, folder: Path = SKELETONS) -> str | None:
    """Return why the skeletons of a model type that come with brimful cannot be used, and what is
    done instead; None where they can, or where there are none.
    """
    path = folder / f"{model_type}.zip"
    if not path.exists():
        return None
    about = about_type(path)
    if about is None or not _is_whole(path):
        why = f"{path} is damaged (install brimful anew to have them)"
    elif not agree(about.versions):
        installed = library_versions()
        made = ", ".join(
            f"{name} {version} ({installed[name]} is installed)"
            for name, version in sorted(about.versions.items())
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
    except (OSError, zipfile.BadZipFile):
        return False


def network_of_key(key: TraceFamilyKey, defaults: Mapping[str, Any]) -> SizedNetwork:
    """Return the network of a family's steps.

    Raises:
        NotOfItsKind: see `network_of`.
    """
    return network_of(key.spec.config, defaults, eight_bit="8bit" in key.spec.optimizer)


def name_of_skeleton(key: TraceFamilyKey, structure: str) -> str:
    """Return the name of a skeleton's file: a digest of all that decides it but the libraries."""
    has_flash = key.spec.flash and key.spec.cuda  # no other kernels are asked for elsewhere
    spec = dataclasses.replace(key.spec, config_json=structure, flash=has_flash)
    what = f"{FORMAT} {traces_of(spec)} {spec.key()} {key.lengths is None} {key.is_single}"
    what += " any length" * key.any_length
    return f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.xz"


@functools.cache
def about_type(path: Path) -> AboutType | None:
    """Return what an archive says of itself; None where it is missing or damaged."""
    try:
        return AboutType(**json.loads(read_entry(path, ABOUT) or b""))
    except (TypeError, ValueError):
        return None
