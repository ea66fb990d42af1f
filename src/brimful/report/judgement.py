"""How good a prediction was: one rule for the terminal, the report, comparisons and studio.

How large the error is and whether the measurement lies inside the stated interval are two answers:
an interval can be wide enough for any error.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from brimful.base.text import plural
from brimful.base.types import Bounds
from brimful.report.quantities import format_error

GUESS_WIDTH = 2.0
"""An interval whose high end is this many times its low end, or more, is that of a rough guess."""


@dataclass(frozen=True)
class Band:
    """Errors up to `limit`, either way.

    Attributes:
        word: What such an error is called.
    """

    limit: float
    word: str


CLOSE = Band(0.10, "close")
BANDS = (CLOSE, Band(0.25, "off"), Band(math.inf, "far off"))


@dataclass(frozen=True)
class Judgement:
    """What is said of one prediction.

    Attributes:
        error: (predicted - measured) / measured; None where nothing was measured.
        is_inside: Whether the measurement lies in the stated interval; None where one is missing.
        is_guess: Whether the interval is too wide to count as a prediction.
    """

    error: float | None
    is_inside: bool | None
    is_guess: bool

    @property
    def band(self) -> Band | None:
        """By the error as it is printed, in whole percent; None where nothing was measured."""
        if self.error is None:
            return None
        percent = round(abs(self.error), 2)
        return next(band for band in BANDS if percent <= band.limit)

    @property
    def word(self) -> str:
        """`close`, `off` or `far off`; "" where nothing was measured."""
        return self.band.word if self.band else ""

    @property
    def made(self) -> str:
        """How the plan came to the value, in words."""
        return "roughly guessed" if self.is_guess else "predicted"

    @property
    def inside(self) -> str:
        """`inside` or `outside` its interval; "" where that cannot be said."""
        return {True: "inside", False: "outside", None: ""}[self.is_inside]

    @property
    def counts(self) -> bool:
        """Whether it is one of the predictions that a plan is judged by."""
        return self.is_inside is not None and self.error is not None and not self.is_guess


def judge(predicted: float, interval: Bounds | None, measured: float | None) -> Judgement:
    """Return what is said of a prediction beside its measurement, both in one unit."""
    error = (predicted - measured) / measured if measured else None
    is_inside = None
    if interval is not None and measured is not None:
        is_inside = interval[0] <= measured <= interval[1]
    return Judgement(error, is_inside, _is_guess(interval))


def _is_guess(interval: Bounds | None) -> bool:
    if interval is None:
        return False
    low, high = interval
    return low <= 0 or high / low >= GUESS_WIDTH


def judgements_in_words(judgements: Sequence[Judgement]) -> str:
    """Return how many predictions were close, their median error, and how many were inside their
    intervals; "" where none counts.
    """
    counted = [each for each in judgements if each.counts]
    if not counted:
        return ""
    error = format_error(statistics.median(abs(each.error or 0.0) for each in counted)).lstrip("+")
    if len(counted) == 1:
        return f"1 prediction: error {error}, {counted[0].inside} its interval"
    close = sum(each.band is CLOSE for each in counted)
    inside = sum(bool(each.is_inside) for each in counted)
    return (
        f"{len(counted)} predictions: {close} within {CLOSE.limit * 100:.0f} %,"
        f" median error {error}, {inside} inside their intervals"
    )


def guesses_in_words(judgements: Sequence[Judgement]) -> str:
    """Return how many measured quantities were only guessed; "" for none."""
    guesses = sum(each.is_guess and each.error is not None for each in judgements)
    return f"{plural(guesses, 'rough guess', 'rough guesses')} not counted" if guesses else ""
