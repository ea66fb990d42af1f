"""The versions of installed packages."""

from importlib import metadata


def installed_version(package: str = "brimful") -> str:
    """Return the version of an installed package; "unknown" where it is not installed, as where
    brimful's source is used without being installed.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
