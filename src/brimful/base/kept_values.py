"""Values that take longer to make than to read, kept as JSON in the cache folder: one file for each
name, which holds what its value was made from. Tables that come with brimful as TOML files are such
values. Here too: how any file of that folder is written and read back, so that one that is damaged,
or that another user could have written, is made again.
"""

import contextlib
import hashlib
import json
import os
import stat
import time
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from brimful.base.env import cache_folder
from brimful.base.types import JsonDict


def kept_value(name: str, made_from: object, make: Callable[[], Any]) -> Any:
    """Return the kept value if it was made from the same; else make it, and keep it where that is
    possible.

    Args:
        name: Name of the file.
        made_from: A JSON value that decides the result.
        make: Makes the value, of what JSON gives back as it is.
    """
    path = cache_folder() / "values" / f"{name}.json"
    # As it comes back: lists for tuples.
    source = json.loads(json.dumps(made_from))
    if (content := read_whole(path)) is not None:
        kept = json.loads(content)
        if kept["made_from"] == source:
            return kept["value"]
    value = make()
    write_whole(path, json.dumps({"made_from": source, "value": value}).encode())
    return value


def read_whole(path: Path) -> bytes | None:
    """Return what `write_whole` wrote; None where there is none, where a byte of it or the name of
    its file is another, or where another user could have written it.
    """
    with contextlib.suppress(OSError):
        noted, _, content = read_own(path).partition(b"\n")
        if noted == _hash_of(path, content):
            return content
    return None


def read_own(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read, or another user could have written it.
    """
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if os.name != "nt" and (
            status.st_uid != os.geteuid()
            or status.st_mode & stat.S_IWOTH
            or (status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid())
        ):
            raise PermissionError(f"{path} belongs to another user, or others may write it")
        return file.read()


def _hash_of(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\n" + content).hexdigest().encode()


def write_whole(path: Path, content: bytes) -> None:
    """Write a whole file of the cache folder behind a hash of it, or none. Errors are ignored: what
    cannot be kept is made again.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}-{time.monotonic_ns()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(_hash_of(path, content) + b"\n" + content)
        aside.replace(path)


def shipped_table(package: str, name: str) -> JsonDict:
    """Return the content of a file of a package, which takes some ten milliseconds to parse for the
    first time.

    Args:
        package: Such as `brimful.hardware`.
        name: Name of the file, such as `catalog.toml`.
    """
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()
    values: JsonDict = kept_value(f"{package}.{name}", digest, lambda: tomllib.loads(text))
    return values
