"""Values that are read faster than made."""

from pathlib import Path
from typing import Any

import pytest

from brimful.base.env import cache_folder
from brimful.base.kept_values import kept_value


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


def test_where_nothing_can_be_written_it_is_made_each_time() -> None:
    cache_folder().mkdir(parents=True, exist_ok=True)
    (cache_folder() / "values").write_text("a file where the folder should be")
    make = _Making("x")

    assert [kept_value("one", "source", make) for _ in range(2)] == ["x", "x"]
    assert make.times == 2
