"""Types of fixtures that many tests take."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from brimful.hardware.device import Device
from brimful.hardware.rates import Rates
from brimful.planning.plan import Plan
from brimful.planning.step import StepSpec
from brimful.recipe import Recipe

Refuses = Callable[..., AbstractContextManager[pytest.ExceptionInfo[BaseException]]]
"""`refuses(RequestError, names=["row 2"])`."""
MakeRun = Callable[..., Path]
"""`new_run("name", metrics=[...])` and its like: writes a run folder."""
Make = Callable[..., Any]
"""Makes one value, of what a test changes of it."""
MakeRecipe = Callable[..., Recipe]
MakeStep = Callable[..., StepSpec]
MakePlan = Callable[..., Plan]
MakeDevice = Callable[..., Device]
MakeRates = Callable[..., Rates]
Devices = dict[str, Device]
Captured = pytest.CaptureFixture[str]
