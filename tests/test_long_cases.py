"""A case that `long_but` names is one of the test's."""

import subprocess
import sys
from pathlib import Path

import pytest

TOY = """
import pytest

@pytest.mark.long_but("quick", NAMED)
@pytest.mark.parametrize("case", ["quick", "slow", "slower"])
def test_toy(case): ...
"""


def test_a_case_that_is_none_of_the_test_is_an_error(tmp_path: Path) -> None:
    code, told = _collected(tmp_path, TOY.replace("NAMED", "'slwo'"), "")
    assert code != 0
    assert "test_toy: long_but names ['slwo']" in told


@pytest.mark.parametrize("asked", ["", "::test_toy[slower]"], ids=["all", "one"])
def test_the_cases_that_it_does_not_name_are_long(tmp_path: Path, asked: str) -> None:
    code, told = _collected(tmp_path, TOY.replace("NAMED", "'slow'"), asked)
    assert code == 0
    assert "test_toy[slower]" in told
    assert "test_toy[slow]" not in told


def _collected(folder: Path, text: str, asked: str) -> tuple[int, str]:
    """Exit code and output of a collection of the long cases."""
    file = folder / "test_toy.py"
    file.write_text(text, encoding="utf-8")
    shared = Path(__file__).parent / "shared"
    options = ["--collect-only", "-m", "long", "-o", f"pythonpath={shared}", "-p", "long_cases"]
    command = [sys.executable, "-m", "pytest", *options, f"{file}{asked}"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout + process.stderr
