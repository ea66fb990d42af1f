"""Many answers at once."""

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.verify.judge import judge
from brimful.verify.sandbox import Program, ProgramResult, Sandbox
from brimful.verify.verifier import load_verifier

ROW = {"code": "def f(x):\n    return x + 1", "test_list": ["assert f(1) == 2"]}


def test_texts_are_judged_in_order_against_their_own_references() -> None:
    verdicts = judge(load_verifier("number"), ["<answer>1</answer>", "2", "many"], ["1", 3.0, "1"])
    assert [verdict and verdict.status for verdict in verdicts] == ["correct", "wrong", "unparsed"]


def test_programs_are_judged_in_the_sandbox_and_answers_without_code_stay_in_their_place(
    sandbox: Sandbox,
) -> None:
    answers = ["no code", "def f(x): return x + 1", "def f(x): return y", "def f(x): return 0"]
    verdicts = judge(load_verifier("mbpp"), answers, [ROW] * len(answers), sandbox)
    assert [verdict and (verdict.status, verdict.detail) for verdict in verdicts] == [
        ("unparsed", "no Python"),
        ("correct", ""),
        ("wrong", "error: NameError"),
        ("wrong", "failed"),
    ]


def test_nothing_is_said_about_a_program_that_the_machine_was_too_busy_to_judge(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = ProgramResult("timeout", "waited for a core", 8.0, "", sandbox.level, overloaded=True)
    monkeypatch.setattr(sandbox, "run_all", lambda programs: [busy for _ in programs])
    assert (
        judge(load_verifier("mbpp"), ["def f(x): return x + 1", "?"], [ROW, ROW], sandbox)[0]
        is None
    )


def test_programs_without_a_sandbox_are_refused(refuses: Refuses) -> None:
    assert load_verifier("mbpp").needs_sandbox
    assert isinstance(
        load_verifier("mbpp").program and load_verifier("mbpp").program("x = 1", ROW), Program
    )  # type: ignore[misc]
    with refuses(RequestError):
        judge(load_verifier("mbpp"), ["x = 1"], [ROW])
