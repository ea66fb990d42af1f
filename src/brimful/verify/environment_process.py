"""The process of an environment of the package `verifiers`: loads it and calls its reward
functions.

The library's own scoring takes a function that fails for a reward of 0; here it is told.
"""

import asyncio
import contextlib
import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.base.types import Json
from brimful.verify.children import MAX_DETAIL
from brimful.verify.plain import ClosedError, channel, decode, encode, receive, send

_OF_GROUPS = {"states", "prompts", "completions", "answers", "tasks", "infos"}
"""Parameters by which the library tells functions that reward a group at once."""
_INSTEAD = (
    "Choose a SingleTurnEnv whose reward functions need neither, or write what it rewards as a file"
    " with reward(answer, row) (docs/verifiers.md)"
)


def serve(name: str, arguments: str) -> None:
    """The process: answers with rewards, or why there is none, until the other side is gone."""
    incoming, outgoing = channel()
    try:
        rubric = LoadedRubric(name, json.loads(arguments))
    except Exception as error:  # whatever the user's code raises
        send(outgoing, encode({"error": _said(error)}))
        return
    send(outgoing, encode({"digest": rubric.digest}))
    with contextlib.suppress(ClosedError), asyncio.Runner() as runner:
        while True:
            answer, row = json.loads(decode(receive(incoming)))
            send(outgoing, encode(runner.run(rubric.reward(answer, row))))


class LoadedRubric:
    """The reward functions of an environment.

    Attributes:
        digest: What identifies the source of its module.

    Raises:
        ValueError: with what to tell.
    """

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        library = importlib.import_module("verifiers")
        if not hasattr(library, "SingleTurnEnv"):
            raise ValueError("version")
        module = _module(name)
        self._environment = module.load_environment(**arguments)
        kind = type(self._environment).__name__
        if not isinstance(self._environment, library.SingleTurnEnv):
            raise ValueError(  # noqa: TRY004 - told as it stands
                f"it is a {kind}, and answers have one turn here. {_INSTEAD}"
            )
        if any(getattr(self._environment, each, None) for each in ("tool_defs", "oai_tools")):
            raise ValueError(f"it gives tools to the model, and there are none here. {_INSTEAD}")
        self._functions = [*_functions(self._environment.rubric)]
        for _, function, _ in self._functions:
            if _OF_GROUPS & inspect.signature(function).parameters.keys():
                raise ValueError(
                    f"{function.__name__} rewards a group of answers at once, and answers are"
                    f" rewarded alone here. {_INSTEAD}"
                )
        if not self._functions:
            raise ValueError(f"no reward function of it has a weight. {_INSTEAD}")
        self.digest = _digest(Path(str(module.__file__)))

    async def reward(self, answer: str, row: Json) -> float | str:
        """Return the weighted sum of the reward functions, or which of them failed and how."""
        total = 0.0
        told = self._told(answer, row)
        for rubric, function, weight in self._functions:
            names = inspect.signature(function).parameters
            takes_all = any(each.kind == each.VAR_KEYWORD for each in names.values())
            values = told | rubric.class_objects
            try:
                found = function(**{k: v for k, v in values.items() if takes_all or k in names})
                total += weight * float(await found if inspect.isawaitable(found) else found)
            except Exception as error:  # whatever the user's code raises
                return f"{function.__name__}: {_said(error)}"
        return total

    def _told(self, answer: str, row: Json) -> dict[str, Any]:
        """Return what reward functions may ask for, as the library has it."""
        row = dict(row)
        asked, reference = row.pop("asked"), row.pop("reference")
        info = row.get("info") or {}
        is_text = getattr(self._environment, "message_type", "chat") == "completion"
        messages = [{"role": "assistant", "content": answer}]
        prompt = row.get("prompt")
        if not isinstance(prompt, list):
            prompt = [{"role": "user", "content": asked}]
        told = {
            "answer": row.get("answer", reference),
            "info": json.loads(info) if isinstance(info, str) else info,
            "task": row.get("task") or "default",
            "prompt": asked if is_text else prompt,
            "completion": answer if is_text else messages,
        }
        return {**row, **told, "state": {**row, **told, "input": row | told, "turn": 1}}


def _functions(rubric: Any) -> Iterator[tuple[Any, Any, float]]:
    """Yield the reward functions that count, each with its rubric and weight."""
    if "judge" in rubric.class_objects:
        raise ValueError(f"a model judges its answers, and there is none here. {_INSTEAD}")
    for each in getattr(rubric, "rubrics", ()):
        yield from _functions(each)
    for function, weight in zip(rubric.funcs, rubric.weights, strict=True):
        if weight:
            yield rubric, function, float(weight)


def _module(name: str) -> Any:
    """Import an installed environment, or a file or folder."""
    path = Path(name)
    if name.startswith((".", "/")) or path.suffix == ".py":
        path = path.resolve()
        if not path.exists():
            raise ValueError(f"there is no {path}. Correct the path")
        is_inside = path.is_dir() and not (path / "__init__.py").exists()
        sys.path.insert(0, str(path if is_inside else path.parent))
    module = importlib.import_module(path.stem.replace("-", "_"))
    if not hasattr(module, "load_environment"):
        raise ValueError(f"{module.__file__} defines no function load_environment()")
    return module


def _digest(path: Path) -> str:
    files = sorted(path.parent.rglob("*.py")) if path.stem == "__init__" else [path]
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:16]


def _said(error: Exception) -> str:
    if type(error) is ValueError:
        return str(error)
    return f"{type(error).__name__}: {error}"[:MAX_DETAIL]
