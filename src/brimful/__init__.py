"""brimful: say what to train; it works out what the hardware can hold, trains it that way, and
shows that both came true.

Importing this package imports nothing heavy; the public names load what they need when they are
used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brimful.base.errors import BrimfulError
    from brimful.chains.calls import evaluate, plan, run, train
    from brimful.chains.finished import Writer
    from brimful.chains.pipeline import Run
    from brimful.hardware.device import Device
    from brimful.integrations.hf_trainer.callback import BrimfulCallback
    from brimful.integrations.hf_trainer.preparing import prepare
    from brimful.integrations.hf_trainer.watching import watching
    from brimful.planning.plan import Plan
    from brimful.recipe import Recipe
    from brimful.recipe import load as load_recipe
    from brimful.rehearsal.foreign import plan_model

__all__ = [
    "BrimfulCallback",
    "BrimfulError",
    "Device",
    "Plan",
    "Recipe",
    "Run",
    "Writer",
    "evaluate",
    "load_recipe",
    "plan",
    "plan_model",
    "prepare",
    "run",
    "train",
    "watching",
]

_HOMES = {
    "BrimfulCallback": ("brimful.integrations.hf_trainer.callback", "BrimfulCallback"),
    "BrimfulError": ("brimful.base.errors", "BrimfulError"),
    "Device": ("brimful.hardware.device", "Device"),
    "Plan": ("brimful.planning.plan", "Plan"),
    "Recipe": ("brimful.recipe", "Recipe"),
    "Run": ("brimful.chains.pipeline", "Run"),
    "evaluate": ("brimful.chains.calls", "evaluate"),
    "load_recipe": ("brimful.recipe", "load"),
    "Writer": ("brimful.chains.finished", "Writer"),
    "run": ("brimful.chains.calls", "run"),
    "plan": ("brimful.chains.calls", "plan"),
    "plan_model": ("brimful.rehearsal.foreign", "plan_model"),
    "prepare": ("brimful.integrations.hf_trainer.preparing", "prepare"),
    "train": ("brimful.chains.calls", "train"),
    "watching": ("brimful.integrations.hf_trainer.watching", "watching"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from brimful.base.libraries import installed_version  # noqa: PLC0415 - as all names here

        return installed_version()
    if name not in _HOMES:
        raise AttributeError(f"module 'brimful' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
