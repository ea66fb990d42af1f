"""The canary set, through the public interface. None of it may pass."""

import pytest

from brimful.verify.sandbox import Program, Sandbox
from canary import canaries, squaring

CANARIES = canaries()


def test_right_code_passes(locked: Sandbox) -> None:
    assert locked.run(squaring("def f(x): return x * x")).status == "passed"


@pytest.mark.parametrize("program", CANARIES.values(), ids=CANARIES)
def test_a_cheat_does_not_pass(locked: Sandbox, program: Program) -> None:
    assert locked.run(program).status in {"failed", "error", "blocked", "timeout"}


def test_a_test_that_swallows_exceptions_does_not_forgive_a_program_that_ended() -> None:
    tests = "try:\n    f(2)\nexcept BaseException:\n    pass"
    with Sandbox() as sandbox:
        assert (
            sandbox.run(Program("import os\ndef f(x): os._exit(0)", tests, ("f",))).status
            == "error"
        )


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)",
        "raise SystemExit",
        "import builtins\nbuiltins.len = lambda _: 4\ndef f(x): return ''",
        "print('passed')",
    ],
)
def test_plain_cheats_fail_also_where_tests_and_code_share_a_process(
    sandbox: Sandbox, code: str
) -> None:
    result = sandbox.run(Program(code, "assert len(f(2)) == 4", ("f",), together=True))

    assert (result.status != "passed", result.mode) == (True, "together")
