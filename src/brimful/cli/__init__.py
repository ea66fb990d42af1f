"""The command line: one module per group of verbs. Each parses, calls one chain and prints."""

import os
import sys
from typing import Any

from brimful.base.env import start_again_with_whole_heap, was_started_by_brimful
from brimful.base.garbage import collector_off

__all__ = ["app", "main"]

TRAINING_VERBS = {"train", "run"}
"""Those that train in this process."""


def main() -> None:
    """Run the command line."""
    if was_started_by_brimful():
        from brimful.base.libc import end_with

        end_with(os.getppid())
    words = sys.argv[1:]
    if words and words[0] in TRAINING_VERBS:
        start_again_with_whole_heap(words)
    with collector_off():
        from brimful.cli.verbs import main as run_verb

    run_verb()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'brimful.cli' has no attribute {name!r}")
    from brimful.cli.verbs import whole_app

    return whole_app()
