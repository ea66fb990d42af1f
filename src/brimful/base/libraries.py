"""The libraries that brimful needs: with which versions it was tried, whether those that are
installed fit each other, and what to type to install others.

All of it is read from the metadata of installed packages. Of brimful's own, a requirement is the
range that was tried, unless the extra `tried` has a narrower one.
"""

import functools
import re
import shlex
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from brimful.base.errors import LibraryError


@functools.cache
def version_of(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed. Each is read
    once: a run asks thirty times, a tenth of the time of a very short one.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def installed_version(package: str = "brimful") -> str:
    """Return the version of an installed package; "unknown" where it is not installed, as where
    brimful's source is used without being installed.
    """
    return version_of(package) or "unknown"


_PEFT_IN_TRANSFORMERS = "transformers/dependency_versions_table.py"
"""Where transformers says which versions of peft it takes; its metadata do not."""


def how_to_install(extra: str) -> str:
    """Return the command that installs what an extra stands for, as a sentence. It names the
    packages themselves, so that it works wherever brimful came from.
    """
    wanted = [_written(each) for each in _required_by("brimful", extra) if each.marker]
    if not wanted:
        return f"It comes with brimful's extra {extra}."
    return f"It comes with brimful's extra {extra}, or alone: pip install {shlex.join(wanted)}"


def untried() -> Iterator[str]:
    """Yield a sentence for each installed library whose version brimful was not tried with."""
    for name, tried in _tried().items():
        version = version_of(name)
        if version and not tried.specifier.contains(version, prereleases=True):
            yield f"{name} {version} is none of the versions tried with brimful: {_written(tried)}"


def refuse_unfit_adapters() -> None:
    """Raise LibraryError where transformers does not take the installed peft."""
    for name, sentence in misfits("transformers"):
        if name == "peft":
            raise LibraryError(sentence)


def misfits(*libraries: str) -> Iterator[tuple[str, str]]:
    """Yield what libraries need and is not installed in such a version: its name, and a sentence
    that says so, with the command that installs versions which fit.

    Args:
        libraries: Those that are asked about; none: all that brimful needs.
    """
    tried = _tried()
    for library in libraries or tried:
        for needed in _required_by(library):
            version = version_of(needed.name)
            if version and needed.specifier.contains(version, prereleases=True):
                continue
            found = f"{needed.name} {version} is installed" if version else "it is not installed"
            known = {needed.name: needed} | tried
            pair = [_written(known[each]) for each in (library, needed.name) if each in known]
            yield (
                needed.name,
                f"{library} {version_of(library)} needs {_written(needed)}, and {found}. Install"
                f" versions that fit each other: pip install {shlex.join(pair)}",
            )


def _tried() -> dict[str, Requirement]:
    """Return by name what was tried of the libraries that brimful cannot do without."""
    needed = _required_by("brimful", "tried")
    return {each.name: each for each in sorted(needed, key=lambda each: each.marker is not None)}


@functools.cache
def _required_by(library: str, extra: str = "") -> list[Requirement]:
    """Return what an installed library needs, and what one of its extras adds. Read once in a
    process: a training asks four times.
    """
    try:
        installed = metadata.distribution(library)
    except metadata.PackageNotFoundError:
        return []
    lines = list(installed.requires or [])
    table = Path(str(installed.locate_file(_PEFT_IN_TRANSFORMERS)))
    if library == "transformers" and table.is_file():
        lines += re.findall(r'"(peft[^"]*)",', table.read_text(encoding="utf-8"))
    needed = map(Requirement, lines)
    return [each for each in needed if not each.marker or each.marker.evaluate({"extra": extra})]


def _written(requirement: Requirement) -> str:
    """`Requirement("torch<3,>=2.11")` -> `torch>=2.11,<3`."""
    return requirement.name + ",".join(sorted(map(str, requirement.specifier), reverse=True))
