import os
import threading
from collections.abc import Callable

import pytest

from brimful.base.types import JsonDict
from brimful.verify.children import ProgramCalls, describe, judge, judge_together, serve
from brimful.verify.plain import encode, receive, send


def judged(
    code: str, tests: str, functions: tuple[str, ...] = ("f",), helpers: str = ""
) -> dict[str, str]:
    """The verdict with both sides in this process; what is not plain crosses the pipes all the
    same.
    """
    return with_candidate(
        lambda incoming, outgoing: serve(code, incoming, outgoing), tests, functions, helpers
    )


def with_candidate(
    candidate: Callable[[int, int], None],
    tests: str,
    functions: tuple[str, ...] = ("f",),
    helpers: str = "",
) -> dict[str, str]:
    calls_out, calls_in = os.pipe()
    answers_out, answers_in = os.pipe()

    def run() -> None:
        candidate(calls_out, answers_in)
        os.close(answers_in)

    thread = threading.Thread(target=run)
    thread.start()
    verdict = judge(
        {"tests": tests, "helpers": helpers, "functions": list(functions)},
        ProgramCalls(answers_out, calls_in),
    )
    os.close(calls_in)
    thread.join()
    os.close(answers_out)
    os.close(calls_out)
    return verdict


@pytest.mark.parametrize(
    ("code", "tests", "status", "detail"),
    [
        ("def f(x): return x", "assert f(1) == 1", "passed", ""),
        (
            "def f(x): return x",
            "\nassert f(1) == 2",
            "failed",
            "the assertion in line 2 of the tests does not hold",
        ),
        (
            "def f(x): return 1 / x",
            "assert f(0) == 1",
            "error",
            "ZeroDivisionError: division by zero",
        ),
        ("def f(x): raise ValueError('a\\nb')", "assert f(0) == 1", "error", "ValueError: a b"),
        (
            "class Own(Exception): pass\ndef f(x): raise Own('why')",
            "assert f(0)",
            "error",
            "Own: why",
        ),
        (
            "def f(x): raise PermissionError(13, 'no')",
            "f(0)",
            "blocked",
            "PermissionError: [Errno 13] no",
        ),
        (
            "import missing_module",
            "f(0)",
            "error",
            "ModuleNotFoundError: No module named 'missing_module'",
        ),
        ("def f(x): raise StopIteration", "assert all(map(f, [1, 2]))", "error", "StopIteration"),
        ("def f(x:", "f(0)", "error", "SyntaxError: '(' was never closed (<string>, line 1)"),
        (
            "def f(x): return object()",
            "assert f(1) == 1",
            "failed",
            (
                "the assertion in line 1 of the tests does not hold; it returned a value of type"
                " object, which is not plain data"
            ),
        ),
        ("def f(x): return object()", "assert f(1)", "passed", ""),
        ("def f(x): return [i for i in range(x)]", "assert f(2) == [0, 1]", "passed", ""),
        ("def f(*a, **k): return a, k", "assert f(1, b={2}) == ((1,), {'b': {2}})", "passed", ""),
        (
            "def f(x): return x",
            "try:\n    f(1, 2)\nexcept TypeError:\n    pass\nelse:\n    assert False",
            "passed",
            "",
        ),
        ("def f(x): return x", "assert g(1) == 1", "error", "NameError: name 'g' is not defined"),
        (
            (
                "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\ndef f(x): return"
                " P(x).x"
            ),
            "assert f(3) == 3",
            "passed",
            "",
        ),
    ],
)
def test_verdicts_say_what_happened(code: str, tests: str, status: str, detail: str) -> None:
    assert judged(code, tests) == {"status": status, "detail": detail}


def test_helpers_are_the_tests_own_and_come_before_the_functions() -> None:
    helpers = "def f(x): pass\ndef twice(x): return 2 * x"

    assert (
        judged(
            "def f(x): return x\ndef twice(x): return 0", "assert twice(f(2)) == 4", helpers=helpers
        )["status"]
        == "passed"
    )


@pytest.mark.parametrize(
    "answer",
    [
        b"no json",
        encode(7),
        encode(["passed"]),
        encode(["raised", "X", "", "passed"]),
        encode(["value"]),
        encode(["object", "x", 7]),
    ],
)
def test_answers_that_are_none_fail_even_if_the_tests_swallow_them(answer: bytes) -> None:
    def candidate(incoming: int, outgoing: int) -> None:
        send(outgoing, encode(["value", None]))
        receive(incoming)
        send(outgoing, answer)

    assert (
        with_candidate(candidate, "try:\n    f(1)\nexcept BaseException:\n    pass")["status"]
        == "failed"
    )


def test_a_candidate_that_is_gone_is_told_apart_even_if_the_tests_swallow_it() -> None:
    def candidate(incoming: int, outgoing: int) -> None:
        send(outgoing, encode(["value", None]))
        receive(incoming)

    assert (
        with_candidate(candidate, "try:\n    f(1)\nexcept BaseException:\n    pass")["status"]
        == "gone"
    )
    assert with_candidate(lambda incoming, outgoing: None, "f(1)")["status"] == "gone"


def test_an_error_whose_text_raises_is_still_described() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Silent()) == ("Silent", "", "error")


@pytest.mark.parametrize(
    ("code", "tests", "status"),
    [
        ("class A:\n    def __init__(self): self.x = 1", "assert A().x == 1", "passed"),
        ("class A: pass", "assert A().x == 1", "error"),
        ("class A: x = 2", "assert A().x == 1", "failed"),
        ("pass", "assert A().x == 1", "error"),
        ("raise SystemExit", "assert A().x == 1", "error"),
        (
            "import builtins\nkept = builtins.len\nbuiltins.len = lambda x: 1\nclass A: x = ''",
            "assert len(A().x) == 1",
            "failed",
        ),
    ],
)
def test_tests_can_use_the_codes_own_objects_in_one_process(
    code: str, tests: str, status: str
) -> None:
    given: JsonDict = {"tests": tests, "functions": ["A"]}

    assert judge_together(code, given)["status"] == status
