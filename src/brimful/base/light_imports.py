"""Importing transformers without work that is done twice, and without what nothing here uses."""

import functools
import importlib
import logging
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def import_transformers() -> None:
    """Import what transformers' models stand on. It takes a quarter less CPU time like this than
    by itself; afterwards all of it is as if it had been imported by itself.
    """
    if "transformers" in sys.modules:
        return
    # What it reads of each of its 450 folders is kept for the second time.
    with _unlimited_caches():
        importlib.import_module("transformers")
    # For losses of models that find objects in pictures.
    with imported_when_called("scipy.optimize", "linear_sum_assignment"):
        importlib.import_module("transformers.modeling_utils")


def keep_torch_out() -> None:
    """Let transformers' tokenizers be imported in a quarter of the CPU time, without torch, by a
    process that uses nothing else of it until it ends. Nothing happens where either is imported
    already.
    """
    if {"torch", "transformers"} & sys.modules.keys():
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    logging.disable(logging.WARNING)  # that models are not available
    try:
        with _unlimited_caches():
            importlib.import_module("transformers")
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def imported_when_called(module: str, *functions: str) -> Iterator[None]:
    """Let `from MODULE import FUNCTION` in the block give a function that imports the module when
    it is called.
    """
    if module in sys.modules:
        yield
        return
    later = types.ModuleType(module)
    for name in functions:
        setattr(later, name, _called_later(module, name))
    sys.modules[module] = later
    try:
        yield
    finally:
        del sys.modules[module]


def _called_later(module: str, name: str) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **options)

    return call


@contextmanager
def _unlimited_caches() -> Iterator[None]:
    """Let `@lru_cache` without a size keep everything, not only the last 128 results."""
    limited = functools.lru_cache

    def unlimited(maxsize: Any = 128, typed: bool = False) -> Any:
        return limited(None)(maxsize) if callable(maxsize) else limited(maxsize, typed)

    functools.lru_cache = unlimited
    try:
        yield
    finally:
        functools.lru_cache = limited
