"""Values that are read faster than made."""

import os
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from brimful.base.env import cache_folder
from brimful.base.errors import RunFolderError
from brimful.base.kept_values import kept_value, read_whole, shipped_table, write_whole
from brimful.base.rundir import read_json, write_json_atomically


class _Making:
    """Counts how often it makes a value."""

    def __init__(self, value: Any) -> None:
        self.value, self.times = value, 0

    def __call__(self) -> Any:
        self.times += 1
        return self.value


def _file() -> Path:
    (path,) = (cache_folder() / "values").iterdir()
    return path


def test_a_value_is_made_once_and_again_from_something_else() -> None:
    make = _Making({"a": [1, 0.1, "x", True, None]})

    same = [kept_value("one", ["source", (1, 2)], make) for _ in range(3)]
    assert (same, make.times) == ([make.value] * 3, 1)

    kept_value("one", ["another source", (1, 2)], make)
    assert make.times == 2
    assert _file().name == "one.json"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"made_from": "source"}', "\xff"])
def test_a_damaged_file_is_made_again(content: str) -> None:
    make = _Making(1)
    kept_value("one", "source", make)
    _file().write_text(content, encoding="latin-1")

    assert kept_value("one", "source", make) == 1
    assert kept_value("one", "source", make) == 1
    assert make.times == 2


@pytest.mark.parametrize("place", range(0, 120, 7))
def test_one_changed_byte_is_noticed(place: int) -> None:
    make = _Making({"learning_rate": 0.0001, "steps": [1, 2, 3]})
    kept_value("one", "source", make)
    content = bytearray(_file().read_bytes())
    content[place % len(content)] ^= 1
    _file().write_bytes(content)

    assert kept_value("one", "source", make) == make.value
    assert make.times == 2


def test_a_file_of_another_name_or_without_a_hash_is_none(tmp_path: Path) -> None:
    write_whole(tmp_path / "one", b"content\nof lines")
    assert read_whole(tmp_path / "one") == b"content\nof lines"

    (tmp_path / "one").rename(tmp_path / "other")
    (tmp_path / "plain").write_bytes(b"{}")
    assert [read_whole(tmp_path / name) for name in ("other", "plain", "absent")] == [None] * 3


@pytest.mark.skipif(os.name == "nt", reason="no POSIX permissions")
def test_a_file_that_others_may_write_is_none(tmp_path: Path) -> None:
    write_whole(tmp_path / "one", b"content")
    write_json_atomically(tmp_path / "one.json", {"a": 1}, with_checksum=True)
    for name in ("one", "one.json"):
        (tmp_path / name).chmod(0o666)

    assert read_whole(tmp_path / "one") is None
    with pytest.raises(RunFolderError, match="others may write it"):
        read_json(tmp_path / "one.json", is_cached=True)
    assert read_json(tmp_path / "one.json") == {"a": 1}


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_none(tmp_path: Path) -> None:
    write_whole(tmp_path / "one", b"content")
    os.chown(tmp_path / "one", 12345, -1)

    assert read_whole(tmp_path / "one") is None


def test_where_nothing_can_be_written_it_is_made_each_time() -> None:
    cache_folder().mkdir(parents=True, exist_ok=True)
    (cache_folder() / "values").write_text("a file where the folder should be")
    make = _Making("x")

    assert [kept_value("one", "source", make) for _ in range(2)] == ["x", "x"]
    assert make.times == 2


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
