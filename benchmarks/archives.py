"""The archives of recordings that come with brimful, written and read whole; plans read single
families of them (`rehearsal.shipped`).
"""

import dataclasses
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

from brimful.planning.family_file import compressed, opened
from brimful.rehearsal.shipped import ABOUT, About

TOGETHER = 8
"""Families that are compressed together: to read one of them takes some ten milliseconds."""


def families_in(path: Path) -> dict[str, bytes]:
    """Return the families of an archive, by the names of their files."""
    with zipfile.ZipFile(path) as archive:
        places = About(**json.loads(archive.read(ABOUT))).places
        groups = {entry: opened(archive.read(entry)) for entry, _, _ in places.values()}
    return {name: groups[entry][start:end] for name, (entry, start, end) in places.items()}


def write_archive(path: Path, about: About, files: Mapping[str, bytes]) -> None:
    """Write families, by the names of their files, as an archive; the same ones give the same
    bytes. Some that are alike are compressed together.
    """
    plain = [(opened(content), name) for name, content in files.items()]
    plain.sort(key=lambda each: (len(each[0]), each))  # those of one size are mostly alike
    places: dict[str, tuple[str, int, int]] = {}
    whole: dict[str, bytes] = {}
    for number in range(0, len(plain), TOGETHER):
        together = b""
        for content, name in plain[number : number + TOGETHER]:
            places[name] = (str(number), len(together), len(together) + len(content))
            together += content
        whole[str(number)] = compressed(together)
    said = dataclasses.asdict(dataclasses.replace(about, places=places))
    whole[ABOUT] = json.dumps(said, sort_keys=True).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in sorted(whole.items()):
            archive.writestr(zipfile.ZipInfo(name), content)
