"""Measured times of forward and backward passes on this machine, and the step time that they
predict. No torch.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from brimful.base.text import plural
from brimful.base.types import Bounds, JsonDict
from brimful.hardware.calibration import Correction
from brimful.hardware.kept_rates import BUSY_FROM
from brimful.hardware.rates import Rates
from brimful.planning.choices import PASSES_OF_MANY_LENGTHS
from brimful.planning.search import SearchResult, rates_of_way
from brimful.planning.step import StepSpec
from brimful.planning.survey import Prepared
from brimful.planning.timing import BY_EXAMPLES, UNSCALED, Scale, StepParts, parts_of, step_time

MEASURE_S = (0.5, 4.0)
"""Least and most time for measuring before a plan is printed; up to twice as much is taken."""
MEASURE_SHARE = 0.015
"""The same as a share of the run's predicted training time, within those bounds."""
MOST_MEASURE_SHARE = 0.1
"""Share of the training time that measuring takes at most, so that a very short run is measured for
less than the least time.
"""
LEAST_SPREAD = (0.8, 1.3)
"""Measured over predicted time, 5th and 95th percentile, of steps whose passes were timed on an
idle machine (docs/log, 2026-11-23: the first predicted time).
"""
SHORTENED = 1.1
"""How much wider the interval is where rows were shorter than the step's (assumption)."""
IN_PROPORTION = 4.0
"""How much lower the interval begins where rows of one length were timed, which says nothing of
what does not grow with it. Rows of 64 made full tuning of a 135M model look 5 times too slow at
512.
"""
UNEVEN = 5
"""Positions by which timed rows of packed examples are shorter than round ones: passes of examples
have no round number of positions, and on a Xeon with AMX a pass of 123 positions took 1.3 to 1.7
times as long as one of 128, its first one 3 to 8 times as much longer (one thread, bf16).
"""
ENOUGH_FOR_TWO_S = 1.5
"""Time for measuring from which such an entry is worth timing again (assumption)."""
ENOUGH_PASSES, FEW_PASSES = 5, 1.3
"""With fewer timed passes than the first number, the interval of the step time is wider by at least
the second. Passes within a second differ less than the steps of a run: on a virtual machine with
two cores steps of equal work took 0.7 to 1.2 s, and short runs 0.7 to 1.9 times as long as
predicted (n = 14), whatever passes said.
"""
COMPILED_SHARE = 0.7
"""A compiled step may take this share of the predicted time (assumption)."""
MOST_SLOWDOWN = 4.0


@dataclass(frozen=True)
class TimedPasses:
    """Seconds of a real step's parts, as `rehearsal.timed_steps` measures them.

    Attributes:
        micro_batch: Sequences of each pass.
        first_s, further_s: Forward and backward pass of the first micro-batch and of a further one,
            for all blocks of the model.
        update_s: The optimizer's update.
        spread: Slowest over fastest try of a pass, but for the first ones of a new length.
        lost_share: Share of the wanted processor time that other programs took meanwhile.
        tries: Number of passes.
        blocks: Blocks of the model that was run, and of the whole one.
        made: Seconds since the epoch.
        positions: Positions of each row that was timed, and of the step's own; what they take there
            is worked out. Entries from before there were short rows have equal ones.
        lengths: How many lengths of rows were timed: with one, longer rows are taken to need time
            in proportion to their positions.
        fixed_s: Time of a pass that does not grow with its positions: reading weights, and the
            program that issues operators. None where passes of one size were timed.
        new_length_s: How much longer a pass of a new length takes, whose kernels are not made yet.
        fusible: Share of a pass that element-wise operators of blocks take, of which compiling
            makes few kernels. None where that was not looked at.
    """

    micro_batch: int
    first_s: float
    further_s: float
    update_s: float
    spread: float
    lost_share: float
    tries: int
    blocks: tuple[int, int]
    made: float
    positions: tuple[int, int] = (1, 1)
    lengths: int = 2
    fixed_s: float | None = None
    new_length_s: float = 0.0
    fusible: float | None = None

    @property
    def is_in_proportion(self) -> bool:
        """Return whether nothing says what part of the time grows with the length of rows."""
        short, full = self.positions
        return short < full and self.lengths == 1

    @property
    def was_disturbed(self) -> bool:
        """Return whether other programs took so much that it should be measured again."""
        return self.lost_share >= BUSY_FROM

    @property
    def share(self) -> Bounds:
        """Return the interval of measured over predicted step time, 5th to 95th percentile. It is
        wider the more the timed passes differed among themselves, and the more processor time other
        programs took: the run itself may share the machine or have it alone.
        """
        low, high = LEAST_SPREAD
        slowdown = min(1 / max(1 - self.lost_share, 0.1), MOST_SLOWDOWN)
        varied = math.sqrt(min(self.spread, MOST_SLOWDOWN))
        if self.tries < ENOUGH_PASSES:
            varied = max(varied, FEW_PASSES)
        run, whole = self.positions
        wider = slowdown * varied * (SHORTENED if run < whole - UNEVEN else 1.0)
        if self.is_in_proportion:
            low /= IN_PROPORTION
        return low / wider, high * wider

    def seconds(
        self,
        parts_at: Callable[[int], StepParts],
        micro_batches: Sequence[int],
        *,
        fill: float = 1.0,
        has_many_lengths: bool = False,
    ) -> float:
        """Return the seconds of an optimizer step.

        Where passes of two sizes were timed, a pass takes what it takes whatever its size, and the
        rest in proportion to its positions. Else the measured time is scaled by the ratio that
        `parts_at` predicts between both sizes.

        Args:
            parts_at: Predicted seconds of the passes of a micro-batch.
            micro_batches: Sequences of each pass.
            fill: Share of the sequences' positions that is computed.
            has_many_lengths: Nearly every pass has a length that none before it had.
        """
        first, *rest = micro_batches
        seconds = self.update_s + self._pass_s("first_s", first, fill, parts_at)
        for size in rest:
            seconds += self._pass_s("further_s", size, fill, parts_at)
        return seconds + has_many_lengths * len(micro_batches) * self.new_length_s

    def _pass_s(
        self,
        name: Literal["first_s", "further_s"],
        size: int,
        fill: float,
        parts_at: Callable[[int], StepParts],
    ) -> float:
        timed_s = self.first_s if name == "first_s" else self.further_s
        if self.fixed_s is not None:
            fixed_s = min(self.fixed_s, timed_s)
            return fixed_s + (timed_s - fixed_s) * fill * size / self.micro_batch
        base_s, size_s = (getattr(parts_at(each), name) for each in (self.micro_batch, size))
        if fill != 1:
            empty = (1 - fill) * size
            size_s = (1 + empty) * size_s - empty * getattr(parts_at(size + 1), name)
        return float(timed_s * size_s / base_s)

    def describe(self) -> str:
        """Return what was timed, when and how soundly, for a prediction's basis."""
        run, whole = self.blocks
        what = "all blocks" if run == whole else f"{run} of {whole} blocks"
        day = time.strftime("%Y-%m-%d", time.localtime(self.made))
        size = plural(self.micro_batch, "sequence")
        short, full = self.positions
        if short < full:
            size = f"{short:,} of {full:,} positions"
        passes = f"{self.tries} real pass{'es' * (self.tries != 1)}"
        text = f"{passes} of {size} through {what}, timed on this machine {day}"
        if self.was_disturbed:
            text += (
                f" while other programs took {self.lost_share:.0%} of the processor time: a wide"
                " interval, and timed again at the next start"
            )
        return text

    def to_json(self) -> JsonDict:
        """Plain values for JSON; `from_json` gives an equal TimedPasses."""
        return {
            **asdict(self),
            "blocks": list(self.blocks),
            "positions": list(self.positions),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the TimedPasses that `to_json` described.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        run, whole = value["blocks"]
        short, full = value.get("positions", cls.positions)
        pairs = {"blocks": (int(run), int(whole)), "positions": (int(short), int(full))}
        # Entries from before lengths were counted may have had one.
        made = cls(**{"lengths": 1, **value, **pairs})
        times = (made.first_s, made.further_s, made.update_s, made.spread)
        if not all(math.isfinite(each) and each > 0 for each in times):
            raise ValueError(f"times of passes are {times}")
        return made


@dataclass(frozen=True)
class TimedStep:
    """Timed passes, and how earlier runs compared with predictions from such passes."""

    passes: TimedPasses
    correction: Correction


StepTimer = Callable[[StepSpec, int, float, float], TimedStep | None]
"""Returns the timed passes of a step with at most this micro-batch, measured within about this many
seconds with a loss of this share of the positions, or kept from before; None where there are none.
The real one is in `chains.rates_here`.
"""


def basis_of_passes(passes: TimedPasses, threads: int | None) -> str:
    """Return the basis of times predicted from timed passes, as `calibration.basis_of` does of
    rates. Passes that other programs disturbed are another basis: how a run compares with them says
    nothing of sound ones.
    """
    machine = "this busy machine" if passes.was_disturbed else "this machine at rest"
    counted = "" if threads is None else f", {plural(threads, 'thread')}"
    return f"passes timed on {machine}{counted}"


@dataclass(frozen=True)
class Level:
    """What timed passes make of the times that are predicted from operators.

    Attributes:
        factor_at: Multiply those of a micro-batch by it.
        passes: What was timed.
        correction: How earlier runs compared with times from such passes; part of the factor.
        fixed_share: Share of a step's time that does not shrink with its positions: the update, and
            what even one pass takes.
    """

    factor_at: Callable[[int], float]
    passes: TimedPasses
    correction: Correction
    fixed_share: float

    def share(self, *, compiled: bool) -> Bounds:
        """Return measured over predicted time, 5th and 95th percentile. Passes are timed without
        compiling, whose gain is then predicted.
        """
        low, high = self.passes.share
        return (low * COMPILED_SHARE, high) if compiled else (low, high)


def level_of(
    prepared: Prepared,
    timer: StepTimer,
    rates: Rates,
    result: SearchResult,
    total_steps: int | None,
    scale: Scale = UNSCALED,
) -> Level | None:
    """Time the passes of the way that a search took, and return what follows for all times; None
    where they cannot be timed, or where the run is too short to be worth it.
    """
    taken = result.taken
    if taken.time is None:
        return None
    seconds, most_s = MEASURE_S
    if total_steps is not None:
        run_s = total_steps * taken.time.seconds
        seconds = min(max(seconds, MEASURE_SHARE * run_s), most_s, MOST_MEASURE_SHARE * run_s)
    micro_batches, share, of_loss = prepared.passes_of_step(
        taken.micro_batch, scale.fill, scale.scored
    )
    spec = replace(prepared.spec(recompute=taken.recompute), accumulates=len(micro_batches) > 1)
    timed = timer(spec, taken.micro_batch, seconds, of_loss)
    if timed is None:
        return None
    precision = prepared.precision
    rates = rates_of_way(rates, taken.recompute)
    passes, work_at = timed.passes, result.memory.work_at
    has_many_lengths = prepared.choices["packing"].value in PASSES_OF_MANY_LENGTHS

    def parts_at(micro_batch: int) -> StepParts:
        return parts_of(work_at(micro_batch), rates, precision=precision)

    def measured_s(sizes: Sequence[int], fill: float) -> float:
        return passes.seconds(parts_at, sizes, fill=fill, has_many_lengths=has_many_lengths)

    def factor_at(micro_batch: int) -> float:
        sizes, share, of_loss = prepared.passes_of_step(micro_batch, scale.fill, scale.scored)
        eager = step_time(work_at, sizes, rates, precision=precision, fill=share, scored=of_loss)
        seconds = measured_s(sizes, share) + eager.terms.get(BY_EXAMPLES, 0.0)
        return timed.correction.factor * seconds / eager.seconds

    fixed_share = max(0.0, measured_s(micro_batches[:1], 0.0) / measured_s(micro_batches, share))
    return Level(factor_at, passes, timed.correction, fixed_share)
