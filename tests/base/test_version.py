"""The version is the installed package's, and nothing else is claimed."""

from importlib import metadata

import pytest

from brimful.base.version import installed_version, version_of


def test_the_version_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed_version() == metadata.version("brimful")

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    version_of.cache_clear()
    assert installed_version() == "unknown"
    version_of.cache_clear()
