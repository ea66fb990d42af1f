"""The version of this package."""

from importlib import metadata


def installed_version() -> str:
    """Return the version of the installed package; "unknown" where its source is used without being
    installed.
    """
    try:
        return metadata.version("brimful")
    except metadata.PackageNotFoundError:
        return "unknown"
