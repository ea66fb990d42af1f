"""Traces of the steps that tests plan, stored in the repository. A step is recorded again only with
other libraries, or after a change of what is recorded (`TRACES` in `rehearsal/shipped.py`).

`make steps` adds those that its tests recorded.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from brimful.base.kept_values import read_whole, write_whole
from brimful.planning.family_file import FORMAT, from_bytes
from brimful.rehearsal.shipped import TRACES, library_versions
from brimful.rehearsal.store import NO_FAMILY, families_folder

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "recorded_steps.zip"
ABOUT = "about.json"


def fill(folder: Path) -> None:
    """Make a folder of kept traces with those of the archive. The first process of a session does
    it; the folder appears when it is complete.
    """
    if folder.is_dir():
        return
    aside = folder.with_name(f"{folder.name}-{os.getpid()}")
    (aside / families_folder()).mkdir(parents=True)
    for name, content in read_archive().items():
        write_whole(aside / families_folder() / name, content)
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
        return {name: archive.read(name) for name in names}


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
            archive.writestr(zipfile.ZipInfo(name), content)
    aside.replace(ARCHIVE)


def found(folder: Path, besides: Container[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Families, and that steps have none; not those whose names are in `besides`. Compiled steps,
    which have no work, depend on the machine and are left out.
    """
    for path in folder.glob(f"{families_folder()}/*.xz"):
        content = None if path.name in besides else read_whole(path)
        if content == NO_FAMILY or (content is not None and from_bytes(content).work is not None):
            yield path.name, content


def _about() -> dict[str, Any]:
    return {"format": FORMAT, "traces": TRACES, "libraries": dict(library_versions())}
