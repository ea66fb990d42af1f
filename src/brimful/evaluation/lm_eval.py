"""Standard benchmarks through EleutherAI's lm-evaluation-harness, on a model as it stands in
memory. An extra: `lm-eval` of brimful.
"""

import importlib
import math
import time
from collections.abc import Sequence
from statistics import NormalDist
from types import ModuleType
from typing import Any

from brimful.base.discover import did_you_mean
from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.base.text import reason_of
from brimful.base.types import Json, JsonDict
from brimful.evaluation.task import LM_EVAL
from brimful.evaluation.task_prompts import Subject

_BATCH_SIZE = 8
"""Rows per forward pass."""


def evaluate_with_lm_eval(
    subject: Subject,
    names: Sequence[str],
    *,
    max_examples: int | None = None,
    seed: int = 0,
) -> list[JsonDict]:
    """Run the harness's tasks and give their results the shape of our own.

    Args:
        subject: The model. A tuned one with a chat template is asked through it, any other with the
            harness's plain prompts.
        names: Tasks or groups of the harness, without the prefix.
        max_examples: The first so many of each task (the harness's `limit`; it cannot spread them).
        seed: Seed of everything that the harness draws.

    Returns:
        One value for evaluations/TASK.json per task, groups as their parts. No records per example.

    Raises:
        RequestError: the harness is not installed, has no such task, or fails, such as without
            network.
    """
    harness, manager = require_lm_eval(names)
    model = importlib.import_module("lm_eval.models.huggingface").HFLM(
        pretrained=subject.model,
        tokenizer=subject.tokenizer,
        max_length=subject.context,
        batch_size=_BATCH_SIZE,
    )
    is_chat = subject.ways[0] == "chat" and subject.template.style == "chat"
    started_s = time.perf_counter()
    try:
        found = harness.simple_evaluate(
            model=model,
            tasks=list(names),
            task_manager=manager,
            limit=max_examples,
            log_samples=False,
            apply_chat_template=is_chat,
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
        )
    # The harness raises all kinds of errors of its tasks, data sets and network.
    except Exception as error:
        reason = reason_of(error)
        raise RequestError(
            f"lm-eval could not run {', '.join(names)}: {reason}. Its data come from the Hugging"
            " Face hub."
        ) from error
    seconds = time.perf_counter() - started_s
    prompt = "lm-eval's plain prompt"
    if is_chat:
        prompt = "template"
    return [
        _result(task, found, prompt, seconds)
        for task in found["results"]
        if task in found["n-samples"]
    ]


def require_lm_eval(names: Sequence[str]) -> tuple[ModuleType, Any]:
    """Return the harness and its index of tasks.

    Only tasks that come with the harness are run: a task file can name a Python file beside it
    (`!function`), which the harness runs, and a recipe must not run code.

    Raises:
        RequestError: the harness is not installed, or has no task of one of the names.
    """
    try:
        harness = importlib.import_module("lm_eval")
    except ImportError as error:
        raise RequestError(
            f"lm-eval: tasks need the package lm-eval, which is not here ({error})."
            f" {how_to_install('lm-eval')}"
        ) from error
    manager = importlib.import_module("lm_eval.tasks").TaskManager()
    for name in names:
        if name not in manager.all_tasks:
            raise RequestError(
                f"lm-eval has no task {name!r}{did_you_mean(name, manager.all_tasks)} `lm-eval ls"
                " tasks` lists what it has. Files of tasks can run code and are not read here; run"
                " them by the harness itself, on the model in the run's folder."
            )
    return harness, manager


def _result(task: str, found: Json, prompt: str, seconds: float) -> JsonDict:
    values: Json = found["results"][task]
    n, all_examples = (int(found["n-samples"][task][key]) for key in ("effective", "original"))
    shots = found.get("n-shot", {}).get(task, 0)
    if shots:
        prompt = f"{prompt}, few-shot {shots}"
    return {
        "task": f"{LM_EVAL}{task}",
        "version": found["versions"].get(task),
        "prompt": prompt,
        "n": n,
        "metrics": {
            _name(key): _metric(key, values, n)
            for key, value in values.items()
            if _is_metric(key, value)
        },
        "errors": {},
        "seconds": seconds,
        "notes": [
            "scored by lm-eval; intervals from its standard errors",
            *[f"the first {n} of {all_examples} examples"] * (n < all_examples),
        ],
    }


def _is_metric(key: str, value: object) -> bool:
    return (
        "," in key
        and "_stderr," not in key
        and isinstance(value, int | float)
        and math.isfinite(value)
    )


def _name(key: str) -> str:
    """The harness writes `metric,filter`; its filter `none` is left out."""
    return key.removesuffix(",none")


def _metric(key: str, values: Json, n: int) -> JsonDict:
    metric, _, kind = key.partition(",")
    value, error = values[key], values.get(f"{metric}_stderr,{kind}")
    interval = None
    if isinstance(error, int | float) and math.isfinite(error):
        half = NormalDist().inv_cdf(0.975) * error
        interval = [value - half, value + half]
    return {
        "value": value,
        "interval": interval,
        "interval_method": "standard error",
        "n": n,
        "unit": metric,
    }
