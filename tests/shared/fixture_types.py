"""Types of fixtures that many tests take."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

Refuses = Callable[..., AbstractContextManager[pytest.ExceptionInfo[BaseException]]]
"""`refuses(RequestError, names=["row 2"])`."""
MakeRun = Callable[..., Path]
"""`new_run("name", metrics=[...])` and its like: writes a run folder."""
