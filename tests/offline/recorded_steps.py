"""Traces of the steps that tests plan, stored in the repository. A step is recorded again only with
other libraries, or after a change of what is recorded (`TRACES` in `rehearsal/shipped.py`).

`make steps` adds those that its tests recorded.
"""

import hashlib
import json
import lzma
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.base.kept_values import read_whole, write_whole
from brimful.rehearsal.family_store import families_folder
from brimful.rehearsal.shipped import TRACES, library_versions
from brimful.rehearsal.store import file_name

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "recorded_steps.zip"
ABOUT = "about.json"
FAMILIES, STEPS = "families", "steps"


def fill(folder: Path) -> None:
    """Make a folder of kept traces with those of the archive. The first process of a session does
    it; the folder appears when it is complete.
    """
    if folder.is_dir():
        return
    aside = folder.with_name(f"{folder.name}-{os.getpid()}")
    (aside / families_folder()).mkdir(parents=True)
    for name, content in read_archive().items():
        kind, _, file = name.partition("/")
        path = families_folder() + f"/{file}" if kind == FAMILIES else file_name(_what(content))
        write_whole(aside / path, content)
    try:
        aside.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(aside)


def read_archive() -> dict[str, bytes]:
    """What the archive holds; nothing, if other libraries or another recorder made it."""
    if not ARCHIVE.is_file() or read_about() != _about():
        return {}
    with zipfile.ZipFile(ARCHIVE) as archive:
        names = [name for name in archive.namelist() if name != ABOUT]
        return {name: lzma.decompress(archive.read(name)) for name in names}


def read_about() -> dict[str, Any]:
    """The libraries and the recorder that made the archive."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        about: dict[str, Any] = json.loads(archive.read(ABOUT))
    return about


def store(folder: Path) -> None:
    """Add what a folder of kept traces holds to the archive."""
    stored = read_archive() | dict(found(folder))
    with zipfile.ZipFile(aside := ARCHIVE.with_suffix(".part"), "w") as archive:
        archive.writestr(zipfile.ZipInfo(ABOUT), json.dumps(_about()))
        for name, content in sorted(stored.items()):  # equal contents make an equal archive
            archive.writestr(zipfile.ZipInfo(name), lzma.compress(content))
    aside.replace(ARCHIVE)


def found(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Families, and steps that have none. Compiled steps depend on the machine and are left out."""
    for path in folder.glob(f"{families_folder()}/*.xz"):
        if (content := read_whole(path)) is not None:
            yield f"{FAMILIES}/{path.name}", content
    for path in folder.glob("*.safetensors"):
        content = read_whole(path)
        if content is not None and '"compiled"' not in (what := _what(content)):
            yield f"{STEPS}/{hashlib.sha256(what.encode()).hexdigest()[:32]}", content


def _about() -> dict[str, Any]:
    return {"traces": TRACES, "libraries": dict(library_versions())}


def _what(content: bytes) -> str:
    """What a file of the store holds, which does not change with the code as its name does."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + length])
    return header["__metadata__"]["content"]
