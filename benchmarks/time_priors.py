"""What is believed of the parameters of `time_model` before the table is seen (`time_priors.toml`):
literature, data sheets, and assumptions that say so.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from time_stack import FAMILIES


@dataclass(frozen=True)
class Prior:
    """What is believed of a parameter before the table is seen.

    Attributes:
        guess: Its value.
        width: Standard deviation of its logarithm.
        source: Why.
    """

    guess: float
    width: float
    source: str


_TOLD = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PRIORS: Mapping[str, Prior] = {
    **{name: Prior(**told) for name, told in _TOLD.items()},
    **{
        f"stack {name}": Prior(1.0, 0.10, "other programs than ours; assumption")
        for name in FAMILIES
        if name not in ("eager", "compiled")
    },
}
