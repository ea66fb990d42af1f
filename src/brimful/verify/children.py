"""The two processes of a judged program: the candidate's, which only answers calls, and the
checker's, which alone holds the tests.

They share no memory; between them travel names of functions and plain values. The checker's verdict
goes over a pipe that the candidate's process does not have. A candidate may lie in its answers, or
about why it failed; both can only cost it the verdict.
"""

import builtins
import contextlib
import errno
import importlib.abc
import sys
import types
from collections.abc import Callable
from typing import Any

from brimful.base.types import Json
from brimful.verify.plain import ClosedError, NotPlainError, decode, encode, receive, send

MAX_DETAIL = 200
"""Characters of a message that are kept."""
EQUALS = "a value that equals everything"
"""What an answer is told as to the tests, which do not get it."""
Verdict = dict[str, str]


class _Source(importlib.abc.InspectLoader):
    """Runs a text as a module's code."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, fullname: str) -> str:
        return self.text


def run_text(text: str, module: types.ModuleType) -> None:
    """Run Python source in a module's namespace; whatever it raises comes out."""
    _Source(text).exec_module(module)


def new_module(name: str) -> types.ModuleType:
    """An empty module that is found by its name, as dataclasses and pickling of classes expect."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def serve(code: str, incoming: int, outgoing: int) -> None:
    """The candidate's process: run its code, then answer calls until the checker is gone.

    An answer is `["value", value]`, `["object", type, truth]` for what is not plain, or `["raised",
    type, message, status]`; the first one tells how running the code went.
    """
    module = new_module("solution")
    send(outgoing, _answer(lambda: run_text(code, module)))
    with contextlib.suppress(ClosedError):
        while True:
            name, arguments, keywords = decode(receive(incoming))
            # Called at once.
            send(outgoing, _answer(lambda: getattr(module, name)(*arguments, **keywords)))  # noqa: B023


def _equals_everything(value: object) -> bool:
    with contextlib.suppress(Exception):
        return bool(value == object())
    return False


def _answer(action: Callable[[], object]) -> bytes:
    try:
        value = action()
        try:
            is_any = _equals_everything(value)
            answer = encode(["object", EQUALS, bool(value)] if is_any else ["value", value])
        except NotPlainError as error:
            answer = encode(["object", str(error), bool(value)])
    except BaseException as error:
        answer = encode(["raised", *describe(error)])
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    return answer


def describe(error: BaseException) -> tuple[str, str, str]:
    """Type, message and the status an error stands for: `blocked` if the sandbox refused something,
    else `error`.
    """
    try:
        message = str(error)[:MAX_DETAIL]
    except BaseException:
        message = ""
    refused = (
        isinstance(error, OSError) and error.errno in {errno.EPERM, errno.EACCES}
    ) or message == "can't start new thread"
    status = "blocked" if refused else "error"
    return type(error).__name__[:MAX_DETAIL], message, status


class _RaisedError(Exception):
    """The candidate raised something that is no built-in exception."""


class _Object:
    """Stands for a returned value that is not plain. Only its truth is known; it equals nothing but
    itself.
    """

    def __init__(self, truth: bool) -> None:
        self._truth = truth

    def __bool__(self) -> bool:
        return self._truth


class ProgramCalls:
    """The checker's side of the pipes: makes the functions that the tests call.

    Attributes:
        broken: Why the tests can no longer pass, whatever they do with the exception; a verdict, or
            empty.
        not_plain: What the last answer was, if it was not plain.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self.broken: Verdict = {}
        self.not_plain = ""

    def function(self, name: str) -> Callable[..., Any]:
        """A function that asks the candidate."""

        def candidate(*arguments: Any, **keywords: Any) -> Any:
            request = encode([name, list(arguments), keywords])
            try:
                send(self._outgoing, request)
            except ClosedError:
                raise self._gone() from None
            return self.answer()

        return candidate

    def answer(self) -> Any:
        """The value of the next answer.

        Raises:
            Exception: What the candidate raised, as far as it is a built-in exception.
        """
        try:
            answer = decode(receive(self._incoming))
        except ClosedError:
            raise self._gone() from None
        except NotPlainError as error:
            self.broken = {"status": "failed", "detail": f"answered with {error}"}
            raise _RaisedError from None
        match answer:
            case ["value", value]:
                return value
            case ["object", str(what), bool(truth)]:
                self.not_plain = f"; it returned {_one_line(what)}, which is not plain data"
                return _Object(truth)
            case ["raised", str(name), str(message), ("error" | "blocked") as status]:
                raise self._raised(name, message, status)
        self.broken = {"status": "failed", "detail": "answered with something else than a value"}
        raise _RaisedError

    def _gone(self) -> Exception:
        self.broken = {"status": "gone", "detail": "ended before the tests were over"}
        return _RaisedError()

    def _raised(self, name: str, message: str, status: str) -> Exception:
        verdict = _error_verdict(name, message, status)
        kind = getattr(builtins, name, None)
        error: Exception = _RaisedError(name)
        if (
            isinstance(kind, type) and issubclass(kind, Exception) and kind is not StopIteration
        ):  # it would end the tests' own loops unseen
            with contextlib.suppress(TypeError):
                error = kind(message)
        error.__dict__["verdict"] = verdict
        return error


def judge(tests: Json, calls: ProgramCalls) -> Verdict:
    """The checker's process: run the tests against the candidate's answers."""
    try:
        calls.answer()
        module = new_module("tests")
        run_text(tests["helpers"], module)
        vars(module).update({name: calls.function(name) for name in tests["functions"]})
    except BaseException as error:
        return calls.broken or _verdict_of(error, None)
    verdict = _tested(tests["tests"], module)
    if verdict["status"] != "passed":
        verdict["detail"] += calls.not_plain
    return calls.broken or verdict


def judge_together(code: str, tests: Json) -> Verdict:
    """Code and tests in one process: for tests that need the candidate's own objects. Built-ins are
    put back before the tests run; a candidate that wants to cheat still can.
    """
    originals = dict(vars(builtins))
    solution, module = new_module("solution"), new_module("tests")
    try:
        run_text(code, solution)
    except BaseException as error:
        return _verdict_of(error, None)
    vars(builtins).update(originals)
    try:
        vars(module).update({name: getattr(solution, name) for name in tests["functions"]})
    except AttributeError as error:
        return _verdict_of(error, None)
    return _tested(tests["tests"], module)


def _tested(text: str, module: types.ModuleType) -> Verdict:
    try:
        run_text(text, module)
    except BaseException as error:
        return _verdict_of(error, module)
    return {"status": "passed", "detail": ""}


def _verdict_of(error: BaseException, tests: types.ModuleType | None) -> Verdict:
    known: Verdict | None = error.__dict__.get("verdict")
    if known:
        return known
    name, message, status = describe(error)
    if isinstance(error, AssertionError) and tests:
        return {
            "status": "failed",
            "detail": f"the assertion in line {_line(error, tests)} of the tests does not hold",
        }
    return _error_verdict(name, message, status)


def _error_verdict(name: str, message: str, status: str) -> Verdict:
    detail = f"{name}: {_one_line(message)}" if message else name
    return {"status": status, "detail": detail}


def _line(error: BaseException, tests: types.ModuleType) -> int:
    """Line of the tests that led to an error."""
    line, step = 0, error.__traceback__
    while step:
        if step.tb_frame.f_globals is vars(tests):
            line = step.tb_lineno
        step = step.tb_next
    return line


def _one_line(message: str) -> str:
    shown = message[:MAX_DETAIL]
    return "".join(letter if letter.isprintable() else " " for letter in shown).strip()
