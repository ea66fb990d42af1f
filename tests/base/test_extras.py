"""What to type for an extra: its packages, which install wherever brimful came from."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from brimful.base.extras import how_to_install

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
INSTALLED = set(metadata.metadata("brimful").get_all("Provides-Extra") or ())
"""Extras of the installed package; an editable one may be older than pyproject.toml."""


@pytest.mark.parametrize("extra", sorted((INSTALLED & EXTRAS.keys()) - {"dev"}))
def test_an_extra_is_named_with_its_packages(extra: str) -> None:
    told = how_to_install(extra)
    assert f"extra {extra}," in told
    for requirement in EXTRAS[extra]:
        assert requirement.split(">=")[0] in told


def test_without_metadata_the_extra_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    assert how_to_install("studio") == "It comes with brimful's extra studio."
