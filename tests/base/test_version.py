"""The version is the installed package's, and nothing else is claimed."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from brimful.base.version import installed_version, version_of


def test_the_version_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert installed_version() == metadata.version("brimful")

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    version_of.cache_clear()
    assert installed_version() == "unknown"
    version_of.cache_clear()


def test_versions_are_those_of_the_metadata(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the folder of a package's metadata is called."""
    for folder, name, version in (
        ("a_b-1.2.3+cpu.dist-info", "A-b", "1.2.3+cpu"),
        ("c-2.0.egg-info", "c", "2.0"),
        ("d-1.0.dist-info", "d", "1.0"),
        ("d_e-4.0.dist-info", "d-e", "4.0"),
    ):
        (tmp_path / folder).mkdir()
        kind = "PKG-INFO" if folder.endswith("egg-info") else "METADATA"
        (tmp_path / folder / kind).write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    for name in ("a-b", "A_B", "c", "d", "d.e"):
        assert version_of.__wrapped__(name) == metadata.version(name)


def test_versions_of_what_is_installed_are_those_of_the_metadata() -> None:
    for name in ("torch", "transformers", "numpy", "pydantic", "typer", "brimful"):
        assert version_of.__wrapped__(name) == metadata.version(name)
