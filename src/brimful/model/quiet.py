"""Libraries without their own progress display and notices."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Loading and saving small files shows no bars; afterwards the setting is what it was."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()


@contextmanager
def quiet_bitsandbytes() -> Iterator[None]:
    """Importing it tells about an optional CPU kernel that training does not use."""
    with quiet_logger("bitsandbytes.backends.cpu.ops", logging.ERROR):
        yield


@contextmanager
def quiet_logger(name: str, least: int) -> Iterator[None]:
    """A logger tells nothing below a level; afterwards its level is what it was."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(least)
    try:
        yield
    finally:
        logger.setLevel(level)
