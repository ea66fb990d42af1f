"""Values that take longer to make than to read, kept as JSON in the cache folder: one file for each
name, which holds what its value was made from.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brimful.base.env import cache_folder


def kept_value(name: str, made_from: object, make: Callable[[], Any]) -> Any:
    """Return the kept value if it was made from the same; else make it, and keep it where that is
    possible.

    Args:
        name: Of the file.
        made_from: A JSON value that decides the result.
        make: Makes the value, of what JSON gives back as it is.
    """
    path = cache_folder() / "values" / f"{name}.json"
    # As it comes back: lists for tuples.
    source = json.loads(json.dumps(made_from))
    try:
        kept = json.loads(path.read_bytes())
        if kept["made_from"] == source:
            return kept["value"]
    except (OSError, ValueError, TypeError, KeyError):  # missing or damaged: made again
        pass
    value = make()
    write_whole(path, json.dumps({"made_from": source, "value": value}).encode())
    return value


def write_whole(path: Path, content: bytes) -> None:
    """Write a whole file of the cache folder, or none. Errors are ignored: what cannot be kept is
    made again.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}-{time.monotonic_ns()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(content)
        aside.replace(path)
