"""The tests behind docs/security.md and docs/fault-cases.md; `make security` runs them."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"
CASES = TESTS.parent / "benchmarks" / "faults.toml"


@cache
def named_tests() -> frozenset[str]:
    """Return each as `FILE` or `FILE::NAME`, FILE relative to tests/."""
    page = re.findall(r"`tests/([\w/]+\.py(?:::\w+)?)`", PAGE.read_text(encoding="utf-8"))
    cases = tomllib.loads(CASES.read_text(encoding="utf-8"))["case"]
    return frozenset([*page, *(test for case in cases for test in case.get("tests", ()))])


def exists(test: str) -> bool:
    """Return whether a named test, or any test of a named file, is there and can run."""
    file, _, name = test.partition("::")
    if not (TESTS / file).exists():
        return False
    found = {each for each in _functions(TESTS / file) if each.startswith("test_")}
    return name in found if name else bool(found)


def _functions(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return (node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def is_named(file: Path, name: str) -> bool:
    """Return whether a test of a file, without its parameters, is one of them."""
    place = file.relative_to(TESTS).as_posix()
    return not {place, f"{place}::{name}"}.isdisjoint(named_tests())
