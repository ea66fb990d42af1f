"""Rewards of one's own: a Python file whose function `reward(answer, row)` says what an answer is
worth. It runs in the sandbox, as it may run answers.
"""

import ast
import json
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from brimful.base.errors import RequestError
from brimful.base.types import Json
from brimful.verify.sandbox import Program, ProgramResult
from brimful.verify.verifier import Verdict, VerdictStatus, Verifier

FUNCTION = "reward"
_THERE = sys.stdlib_module_names
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
        RequestError: there is no such file, no function `reward` of two arguments in it, or it
            imports what the sandbox has not.
    """
    try:
        source = path.read_text(encoding="utf-8")
        found = ast.parse(source, str(path))
    except (OSError, ValueError, SyntaxError) as error:
        raise RequestError(f"{path} cannot be read as a Python file: {error}") from error
    functions = [each for each in found.body if isinstance(each, ast.FunctionDef)]
    reward = {each.name: each for each in functions}.get(FUNCTION)
    if reward is None or not _takes_two(reward.args):
        raise RequestError(
            f"{path} defines no function {FUNCTION}(answer, row), which returns what an answer is"
            " worth: a number, or True or False"
        )
    if absent := sorted({*_imported(found.body), *_imported(reward.body)} - _THERE):
        raise RequestError(
            f"{path} imports {', '.join(absent)}: it runs in the sandbox, which has Python's"
            " standard library only. Do without, or make it an environment of the package"
            " verifiers, which is not in the sandbox (docs/verifiers.md)."
        )
    return Verifier(
        f"As {path} says.",
        (),
        lambda reference: None,
        program=partial(_program, source),
        verdict=_verdict,
    )


def _takes_two(arguments: ast.arguments) -> bool:
    """Return whether a function can be called with two positional arguments."""
    places = len(arguments.posonlyargs) + len(arguments.args)
    needed = places - len(arguments.defaults)
    is_open = arguments.vararg is not None or places >= 2
    return is_open and needed <= 2 and None not in arguments.kw_defaults


def _imported(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the modules that statements import whatever happens."""
    for each in body:
        if isinstance(each, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            yield "." * each.level + (each.module or "").partition(".")[0]


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
