"""Answers about a run that take all its records are worked out once: a run that was read does not
change.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Run = TypeVar("Run")
Answer = TypeVar("Answer")


def once_per_run(function: Callable[[Run], Answer]) -> Callable[[Run], Answer]:
    """The same function, which keeps its answer with the run; nobody may change what it gives
    back.
    """

    @functools.wraps(function)
    def kept(run: Run) -> Answer:
        answers: dict[str, Any] = run.__dict__.setdefault("_answers", {})
        name = f"{function.__module__}.{function.__qualname__}"
        if name not in answers:
            answers[name] = function(run)
        found: Answer = answers[name]
        return found

    return kept
