"""Rewards of one's own, run in the sandbox."""

import math
from pathlib import Path

import pytest

from brimful.base.errors import RequestError
from brimful.verify.judge import judge
from brimful.verify.own import own_verifier
from brimful.verify.sandbox import Sandbox
from brimful.verify.verifier import Verdict

SOURCE = """
import math, time

def reward(answer, row):
    if answer == "loop":
        time.sleep(60)
    if answer == "raise":
        raise ValueError("no")
    if answer == "exit":
        raise SystemExit(0)
    if answer == "cheat":
        class Worth(Exception): pass
        raise Worth("9.0")
    if answer == "run":
        exec("raise AssertionError")
    return {"nan": math.nan, "text": "much", "half": 0.5, "no": False}.get(
        answer, answer == row["reference"])
"""


def _judged(folder: Path, sandbox: Sandbox, *answers: str) -> list[Verdict]:
    path = folder / "own.py"
    path.write_text(SOURCE)
    row = {"reference": "yes", "other": [1, None]}
    found = judge(own_verifier(path), answers, [row] * len(answers), sandbox)
    return [each for each in found if each is not None]


def test_a_file_says_what_an_answer_is_worth(tmp_path: Path, sandbox: Sandbox) -> None:
    found = _judged(tmp_path, sandbox, "yes", "half", "no", "other", 'quotes " and {braces}\\')
    assert [each.worth for each in found] == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert [each.is_correct for each in found] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("raise", "ValueError: no"),
        ("exit", "SystemExit"),
        ("nan", "nan"),
        ("text", "returned str"),
        ("cheat", "Worth"),
        ("run", "AssertionError"),
    ],
)
def test_a_failure_is_worth_no_number_and_says_why(
    answer: str, why: str, tmp_path: Path, sandbox: Sandbox
) -> None:
    (found,) = _judged(tmp_path, sandbox, answer)
    assert found.worth is not None
    assert math.isnan(found.worth)
    assert why in found.detail


def test_a_function_that_does_not_end_is_stopped(tmp_path: Path, sandbox: Sandbox) -> None:
    (found,) = _judged(tmp_path, sandbox, "loop")
    assert math.isnan(found.worth or 0.0)
    assert "not done after" in found.detail


@pytest.mark.parametrize(
    ("source", "named"),
    [(None, "cannot be read"), ("x = (", "cannot be read"), ("x = 1", r"reward\(answer, row\)")],
)
def test_a_file_without_the_function_is_refused(
    source: str | None, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(RequestError, match=named):
        own_verifier(path)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def reward(answer, row)\n    return 1", r"own\.py, line 1"),
        (
            "def reward(completions, **others):\n    return [1.0]",
            r"no function reward\(answer, row\)",
        ),
        ("def reward(answer, row, more):\n    return 1", r"no function reward\(answer, row\)"),
        ("def reward(answer, row, *, more):\n    return 1", r"no function reward\(answer, row\)"),
        (
            "import numpy.linalg\ndef reward(answer, row):\n    return 1",
            "imports numpy: .* sandbox",
        ),
        ("from .near import far\ndef reward(answer, row):\n    return 1", r"imports \.near"),
        ("def reward(answer, row):\n    from near import far\n    return 1", "imports near"),
    ],
)
def test_what_cannot_work_for_any_answer_is_refused_at_once(
    source: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    path.write_text(source)
    with pytest.raises(RequestError, match=why):
        own_verifier(path)


@pytest.mark.parametrize(
    "source",
    [
        "import re, json\nfrom math import log\ndef reward(answer, row, weight=2.0):\n    return 1",
        "def reward(*given):\n    return 1",
        "try:\n    import numpy\nexcept ImportError:\n    pass\ndef reward(answer, row):\n    return 1",
    ],
)
def test_what_may_work_is_taken(source: str, tmp_path: Path, sandbox: Sandbox) -> None:
    path = tmp_path / "own.py"
    path.write_text(source)
    (found,) = judge(own_verifier(path), ["x"], [{"reference": "y"}], sandbox)
    assert found is not None
    assert found.worth == 1.0
