"""Results that take all records of a run are computed once: a run that was read does not change."""

import functools
from collections.abc import Callable
from typing import TypeVar

from brimful.base.types import JsonDict

RunT = TypeVar("RunT")
ResultT = TypeVar("ResultT")


def once_per_run(function: Callable[[RunT], ResultT]) -> Callable[[RunT], ResultT]:
    """Return the same function, which keeps its result with the run. Callers must not change it."""
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def kept(run: RunT) -> ResultT:
        results: JsonDict = run.__dict__.setdefault("_results", {})
        if name not in results:
            results[name] = function(run)
        result: ResultT = results[name]
        return result

    return kept
