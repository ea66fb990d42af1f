"""Every warning has a code that the documents explain."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.base import warning_codes
from brimful.base.warning_codes import WARNINGS, all_coded, as_note, coded

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/brimful").rglob("*.py"))
DOCUMENT = ROOT / "docs/warnings.md"
CODE = re.compile(r"\bB\d{3}\b")


def _texts(path: Path) -> Iterator[str]:
    """The strings of a module, its docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            is_text = isinstance(child, ast.Constant) and isinstance(child.value, str)
            if is_text and not isinstance(node, ast.Expr):
                yield child.value


@pytest.fixture(scope="module")
def texts() -> dict[Path, list[str]]:
    return {path: list(_texts(path)) for path in SOURCES}


def test_a_code_is_put_before_a_text() -> None:
    assert coded("B304", "a spike") == "B304: a spike"
    assert all_coded("B304", ["a", "b"]) == ["B304: a", "B304: b"]
    assert as_note("a spike", "B304") == "note B304: a spike"


def test_a_note_keeps_the_code_that_it_has() -> None:
    assert as_note(coded("B201", "no header"), "B212") == "note B201: no header"
    assert as_note("told by an earlier version") == "note B200: told by an earlier version"


def test_a_code_that_nobody_registered_is_an_error() -> None:
    with pytest.raises(KeyError):
        coded("B999", "what is this?")


def test_every_code_is_explained_once_and_nothing_else_is() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert re.findall(r"^- <a id=\"(b\d{3})\"></a>", text, re.MULTILINE) == [
        code.lower() for code in WARNINGS
    ]
    assert set(CODE.findall(text)) == set(WARNINGS)


def test_every_code_is_used_and_none_is_used_unregistered(texts: dict[Path, list[str]]) -> None:
    registry = Path(warning_codes.__file__)
    used = {
        code
        for path, found in texts.items()
        if path != registry
        for text in found
        for code in CODE.findall(text)
    }
    assert used | {"B200"} == set(WARNINGS)  # B200 is the default of `as_note`


def test_a_code_is_registered_once() -> None:
    keys = re.findall(r"^    \"(B\d{3})\":", Path(warning_codes.__file__).read_text(), re.MULTILINE)
    assert sorted(keys) == keys == list(dict.fromkeys(keys)) == list(WARNINGS)


def test_no_note_is_written_without_a_code(texts: dict[Path, list[str]]) -> None:
    bare = re.compile(r"\b(note|warning): ", re.IGNORECASE)
    found = [
        (path.name, text)
        for path, each in texts.items()
        for text in each
        if bare.match(text.strip(" -!"))
    ]
    assert found == []
