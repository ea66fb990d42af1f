"""A program that passes the asserts of its MBPP problem (Austin et al. 2021, arXiv 2108.07732), in
the sandbox.
"""

from collections.abc import Mapping
from typing import Any

from brimful.base.errors import DataError
from brimful.base.types import Json
from brimful.verify.code import mbpp_program
from brimful.verify.extract import MAX_CODE_CHARACTERS, parses, program
from brimful.verify.sandbox import Program
from brimful.verify.verifier import Verifier, VerifierExample


def _program(answer: str, row: Json) -> Program | None:
    """None where the answer holds no Python, or does not end."""
    if len(answer) > MAX_CODE_CHARACTERS:
        return None
    code = program(answer, row)
    if not parses(code).parses:
        return None
    return _program_of_code(code, row)


def _program_of_code(code: str, row: Json) -> Program:
    return mbpp_program(row, code)


def _check(reference: Any) -> None:
    if not isinstance(reference, Mapping):
        # One kind of error for every reference.
        raise ValueError(  # noqa: TRY004
            f"a problem of MBPP is a row with test_list and code, not {type(reference).__name__}"
        )
    try:
        mbpp_program(reference, "")
    except DataError as error:
        raise ValueError(str(error)) from None
    if not reference["test_list"]:
        raise ValueError("the problem has no tests, so every answer would pass")


_ROW = {
    "code": "def double(x):\n    return x * 2",
    "test_list": ["assert double(2) == 4", "assert double('a') == 'aa'"],
}

VERIFIER = Verifier(
    "The program passes the asserts of its MBPP problem.",
    (
        VerifierExample("def double(x):\n    return x + x\n", _ROW, "correct"),
        VerifierExample(
            "Here it is:\n```python\ndef double(x):\n    return 2 * x\n```", _ROW, "correct"
        ),
        VerifierExample(
            "Here it is:\ndef double(x):\n    return 2 * x\nIt doubles x.", _ROW, "correct"
        ),
        VerifierExample("def double(x):\n    return x ** 2\n", _ROW, "wrong"),
        VerifierExample(
            "class Any:\n    def __eq__(self, other): return True\ndef double(x): return Any()",
            _ROW,
            "wrong",
        ),
        VerifierExample("def twice(x):\n    return 2 * x\n", _ROW, "wrong"),
        VerifierExample("Multiply x by two.", _ROW, "unparsed"),
        VerifierExample("", _ROW, "unparsed"),
        VerifierExample("```\n```", _ROW, "unparsed"),
    ),
    _check,
    program=_program,
    program_of_code=_program_of_code,
)
