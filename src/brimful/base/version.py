"""The versions of installed packages."""

import contextlib
import functools
import os
import re
import sys
from importlib import metadata


@functools.cache
def version_of(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed. Each is read
    once: a run asks thirty times, a tenth of the time of a very short one.
    """
    try:
        return _in_the_name(package) or metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _in_the_name(package: str) -> str | None:
    """Return the version in the name of the folder of a package's metadata, which is quicker than
    reading them; None where no folder of the path, or more than one, has such a name.
    """
    start = f"{re.sub('[-_.]+', '_', package).lower()}-"
    found = set()
    for folder in dict.fromkeys(sys.path):
        with contextlib.suppress(OSError):
            found |= {name for name in os.listdir(folder) if name.lower().startswith(start)}
    versions = [name[len(start) :] for name in found if name.endswith("-info")]
    if len(versions) != 1:
        return None
    version, ending = os.path.splitext(versions[0])
    return version if ending == ".dist-info" and "-" not in version else None


def installed_version(package: str = "brimful") -> str:
    """Return the version of an installed package; "unknown" where it is not installed, as where
    brimful's source is used without being installed.
    """
    return version_of(package) or "unknown"
