"""Recipes, methods and tasks found by the name of their file, with suggestions for misspelt
names.
"""

import difflib
import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from brimful.base.errors import RequestError


def names_in(package: str, suffix: str) -> list[str]:
    """Return the sorted stems of a package's files ending in `suffix`, private names left out.

    A package may lie in several folders (its `__path__`).
    """
    folders = map(Path, importlib.import_module(package).__path__)
    files = (path.name for folder in folders for path in folder.iterdir())
    return sorted(
        name.removesuffix(suffix)
        for name in files
        if name.endswith(suffix) and not name.startswith("_")
    )


def module_in(package: str, name: str, what: str) -> ModuleType:
    """Import `package.name` where a file of that name exists.

    Raises:
        RequestError: no such file; the message lists the known names and the closest one.
    """
    known = names_in(package, ".py")
    if name not in known:
        raise RequestError(
            f"unknown {what} {name!r}{did_you_mean(name, known)} Known: {', '.join(known)}."
        )
    return importlib.import_module(f"{package}.{name}")


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return ` - did you mean 'x'?` if there is a close name, else a full stop."""
    close = close_names(wrong, known)
    return f" - did you mean {close[0]!r}?" if close else "."


def what_stands_at(path: Path) -> str:
    """Return what is at a path where no file is: "a folder", "a pipe" ...; empty where nothing
    is.
    """
    kinds = {
        "a folder": path.is_dir(),
        "a pipe": path.is_fifo(),
        "a socket": path.is_socket(),
        "a device": path.is_char_device() or path.is_block_device(),
        "a link that leads nowhere": path.is_symlink() and not path.exists(),
    }
    return next((kind for kind, applies in kinds.items() if applies), "")


def close_names(wrong: str, known: Iterable[str]) -> list[str]:
    """Return a list of the closest known name; empty if none is close."""
    return difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
