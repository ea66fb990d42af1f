"""Silencing the progress bars and notices of libraries, and what they compile when imported."""

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Show no progress bars of transformers; restore the setting afterwards."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()


@contextmanager
def quiet_bitsandbytes() -> Iterator[None]:
    """Silence the notice of bitsandbytes' import about an optional CPU kernel that is not used."""
    with quiet_logger("bitsandbytes.backends.cpu.ops", logging.ERROR):
        yield


@contextmanager
def compiled_when_called() -> Iterator[None]:
    """Compile functions at their first call. bitsandbytes compiles some when it is imported, which
    brings torch's compiler, a second of CPU time, and peft imports it whether it is needed or not.
    """
    import torch  # noqa: PLC0415 - the rest of this module is used without it

    compiling = torch.compile

    def later(function: Callable[..., Any] | None = None, **settings: Any) -> Callable[..., Any]:
        if function is None:
            return functools.partial(later, **settings)
        compiled = functools.cache(functools.partial(compiling, function, **settings))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return compiled()(*args, **kwargs)

        return call

    torch.compile = later  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compiling


@contextmanager
def quiet_logger(name: str, least: int) -> Iterator[None]:
    """Silence a logger below a level; restore its level afterwards."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(least)
    try:
        yield
    finally:
        logger.setLevel(level)
