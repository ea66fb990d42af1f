"""Silencing the progress bars and notices of libraries."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

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
def quiet_logger(name: str, least: int) -> Iterator[None]:
    """Silence a logger below a level; restore its level afterwards."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(least)
    try:
        yield
    finally:
        logger.setLevel(level)
