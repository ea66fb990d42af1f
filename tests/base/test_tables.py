"""Tables that come with brimful."""

import tomllib
from importlib import resources

import pytest

from brimful.base.tables import shipped_table


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("brimful.hardware", "catalog.toml"),
        ("brimful.hardware", "efficiencies.toml"),
        ("brimful.hardware", "assumptions.toml"),
        ("brimful.model", "catalog.toml"),
    ],
)
def test_a_kept_table_is_what_stands_in_the_file(package: str, name: str) -> None:
    written = tomllib.loads(resources.files(package).joinpath(name).read_text(encoding="utf-8"))

    parsed, kept = shipped_table(package, name), shipped_table(package, name)

    assert parsed == written
    assert repr(kept) == repr(written)  # whole numbers stay whole
