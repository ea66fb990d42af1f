"""What a command of brimful's left."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """Exit code, standard output, standard error."""

    code: int
    out: str
    err: str


Brimful = Callable[..., Said]
"""The fixture `brimful` of the tests of the command line."""
