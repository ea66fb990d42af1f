"""Import Gradio without its messages, and in half the time by making no type stubs."""

import importlib
import inspect
from typing import Any

from brimful.base.env import silence_gradio


def load_gradio() -> None:
    """Import Gradio as brimful uses it: silenced, and without making the type stubs of its 80
    components anew, for which it parses their sources each time it is imported.
    """
    silence_gradio()
    file_of = inspect.getfile

    def file_of_others(object: Any) -> str:
        if isinstance(object, type) and object.__module__.startswith("gradio."):
            raise OSError("Gradio makes no stubs of a class that has no file")
        return file_of(object)

    inspect.getfile = file_of_others
    try:
        importlib.import_module("gradio")
    finally:
        inspect.getfile = file_of
