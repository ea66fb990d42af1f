"""A function that passes the tests of its HumanEval problem (Chen et al. 2021, arXiv 2107.03374),
in the sandbox.
"""

from collections.abc import Mapping
from typing import Any

from brimful.base.errors import DataError
from brimful.base.types import Json
from brimful.verify.code import humaneval_program
from brimful.verify.extract import MAX_CODE_CHARACTERS, function, parses
from brimful.verify.sandbox import Program
from brimful.verify.verifier import Verifier, VerifierExample


def _program(answer: str, row: Json) -> Program | None:
    """None for an empty or endless answer, and where it is no Python, neither as a whole function
    nor as the body behind the prompt.
    """
    if not answer.strip() or len(answer) > MAX_CODE_CHARACTERS:
        return None
    code = function(answer, row)
    if not parses(code).parses:
        return None
    return _program_of_code(code, row)


def _program_of_code(code: str, row: Json) -> Program:
    return humaneval_program(row, code.removeprefix(row["prompt"]))


def _check(reference: Any) -> None:
    if not isinstance(reference, Mapping):
        # One kind of error for every reference.
        raise ValueError(  # noqa: TRY004
            "a problem of HumanEval is a row with prompt, test and entry_point, not"
            f" {type(reference).__name__}"
        )
    try:
        program = humaneval_program(reference, "    pass\n")
    except DataError as error:
        raise ValueError(str(error)) from None
    if not (found := parses(program.tests)).parses:
        raise ValueError(f"the tests are no Python ({found.error})")


_ROW = {
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "test": (
        "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate('a') == 'aa'\n"
    ),
    "entry_point": "double",
}

VERIFIER = Verifier(
    "The function passes the tests of its HumanEval problem.",
    (
        VerifierExample("    return 2 * x\n", _ROW, "correct"),
        VerifierExample("return x + x", _ROW, "correct"),
        VerifierExample(
            "Sure:\n```python\ndef double(x):\n    return 2 * x\n```\nDone.", _ROW, "correct"
        ),
        VerifierExample("    return x ** 2\n", _ROW, "wrong"),
        VerifierExample("    raise SystemExit(0)\n", _ROW, "wrong"),
        VerifierExample("```\ndef other(x):\n    return 2 * x\n```", _ROW, "wrong"),
        VerifierExample("I do not know.", _ROW, "unparsed"),
        VerifierExample("", _ROW, "unparsed"),
        VerifierExample("    return 2 * (x\n", _ROW, "unparsed"),
    ),
    _check,
    program=_program,
    program_of_code=_program_of_code,
)
