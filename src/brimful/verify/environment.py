"""Rewards of an environment of the package `verifiers`: its rubric, in a process of its own."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install, version_of
from brimful.base.types import Json
from brimful.recipe.rewards import environment_of, is_own
from brimful.verify.helper_process import HelperProcess
from brimful.verify.own import own_verifier
from brimful.verify.verifier import Verdict, Verifier, load_verifier

MOST_S = 30.0
"""Time-out in seconds of scoring one answer by all reward functions."""
_START_S = 300.0
_NEEDS = "the environment {} of rewards.verifiers needs the package verifiers"


def require(verifiers: Iterable[str]) -> None:
    """Raise RequestError if a file or a package of these `rewards.verifiers` is missing. What an
    environment holds is not looked at.
    """
    for name in verifiers:
        if environment := environment_of(name):
            _require_package(environment)
        elif is_own(name):
            own_verifier(Path(name))
        else:
            load_verifier(name)


def _require_package(name: str) -> None:
    if version_of("verifiers") is None or find_spec("verifiers") is None:
        raise RequestError(
            f"{_NEEDS.format(name)}, which is not installed. {how_to_install('verifiers')}"
        )


def environment_verifier(
    name: str, arguments: Mapping[str, Any], most_s: float = MOST_S
) -> tuple[Verifier, str]:
    """Return the verifier that an environment is, and what identifies its source.

    Args:
        name: Of an installed package, or the path of a file or folder (`./NAME`, `NAME.py`).
        arguments: Of its `load_environment`.
        most_s: Seconds for one answer.

    Raises:
        RequestError: `verifiers` is missing, the environment cannot be loaded, or it needs what is
            not there: turns, tools, a judge or rewards of whole groups.
    """
    _require_package(name)
    process = HelperProcess(
        "brimful.verify.environment_process", name, json.dumps(arguments), start_s=_START_S
    )
    said = process.start() or {"error": f"it was not loaded within {_START_S:g} s, or ended"}
    if said.get("error") == "version":
        raise RequestError(
            f"{_NEEDS.format(name)} of another version than {version_of('verifiers')}."
            f" {how_to_install('verifiers')}"
        )
    if "error" in said:
        raise RequestError(
            f"the environment {name} of rewards.verifiers cannot reward answers: {said['error']}"
        )

    def judged(answers: Sequence[str], rows: Sequence[Json]) -> list[Verdict]:
        return [
            _verdict(process.ask(json.dumps([answer, dict(row)], default=str), most_s), most_s)
            for answer, row in zip(answers, rows, strict=True)
        ]

    verifier = Verifier(f"As {name} says.", (), lambda reference: None, judge_all=judged)
    return verifier, str(said["digest"])


def _verdict(found: float | str | None, most_s: float) -> Verdict:
    """Return what an answer is worth: not a number, where a function failed."""
    if isinstance(found, float) and math.isfinite(found):
        return Verdict(found, str(found), "correct" if found > 0 else "wrong", worth=found)
    why = f"it ended, or was not done after {most_s:g} s" if found is None else str(found)
    return Verdict(None, "", "unparsed", why, worth=math.nan)
