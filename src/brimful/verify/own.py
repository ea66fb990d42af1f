"""Rewards of one's own: a Python file whose function `reward(answer, row)` says what an answer is
worth. It runs in the sandbox, as it may run answers.
"""

import ast
import json
import math
from functools import partial
from pathlib import Path

from brimful.base.errors import RequestError
from brimful.base.types import Json
from brimful.verify.sandbox import Program, ProgramResult
from brimful.verify.verifier import Verdict, VerdictStatus, Verifier

FUNCTION = "reward"
_WORTH = "Worth"
"""Name of the exception whose message is the reward. The harness raises it behind the user's file,
which cannot change the harness.
"""
_HELPERS = f"""
import json
class {_WORTH}(Exception): pass
def checked(found):
    if not isinstance(found, (bool, int, float)):
        raise TypeError(f"{FUNCTION} returned {{type(found).__name__}}, not a number")
    return repr(float(found))
"""
_TESTS = f"""
try:
    found = {FUNCTION}(*json.loads({{told!r}}))
except Exception as error:
    raise RuntimeError(f"{{{{type(error).__name__}}}}: {{{{error}}}}")
raise {_WORTH}(checked(found))
"""


def own_verifier(path: Path) -> Verifier:
    """Return the verifier that a file is.

    Raises:
        RequestError: there is no such file, or no function `reward` in it.
    """
    try:
        source = path.read_text(encoding="utf-8")
        found = ast.parse(source)
    except (OSError, ValueError, SyntaxError) as error:
        raise RequestError(f"{path} cannot be read as a Python file: {error}") from error
    if FUNCTION not in {each.name for each in found.body if isinstance(each, ast.FunctionDef)}:
        raise RequestError(
            f"{path} defines no function {FUNCTION}(answer, row), which returns what an answer is"
            " worth: a number, or True or False"
        )
    return Verifier(
        f"As {path} says.",
        (),
        lambda reference: None,
        program=partial(_program, source),
        verdict=_verdict,
    )


def _program(source: str, answer: str, row: Json) -> Program:
    told = json.dumps([answer, dict(row)], default=str)
    return Program(source, _TESTS.format(told=told), (FUNCTION,), _HELPERS)


def _verdict(result: ProgramResult) -> Verdict:
    """Return what an answer is worth: not a number, where the function failed."""
    named, _, said = result.detail.partition(": ")
    if result.status != "error" or named != _WORTH:
        return Verdict(None, "", "unparsed", result.detail or result.status, worth=math.nan)
    worth = float(said)
    status: VerdictStatus = "correct" if worth > 0 else "wrong"
    detail = "" if worth > 0 else said
    return Verdict(worth, said, status, detail, worth=worth)
