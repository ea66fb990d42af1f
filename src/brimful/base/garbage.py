"""Python's garbage collector."""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Context without the garbage collector. It takes a fifth of the time of importing torch and
    transformers.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Context without the garbage collector for imports. Where `module` is imported there for the
    first time, what is loaded then is left out of every later search for garbage.
    """
    is_first = module not in sys.modules
    with collector_off():
        yield
        if is_first and module in sys.modules:
            gc.freeze()  # once the collector is on, it would first search all of it
            if any(each.__module__ == "nanobind" for each in type.__subclasses__(type)):
                # Extensions made with nanobind (triton from 3.9 on) list what is left at the end.
                atexit.register(gc.unfreeze)
