"""The search: what the loop can do with a recipe on a device, pruned by memory, ranked by predicted
time, with the reason for what is taken.

Every micro-batch gives the same optimizer step, so the search is free to take the fastest. A
difference that prediction cannot tell apart buys no riskier plan: among equals nothing is computed
twice, and memory stays clear of the brim. There, a GPU gets the larger micro-batch, since what no
model of it sees (launches, half-filled tiles) speaks for size; a CPU gets the smaller one, since
its caches speak against it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from brimful.base.errors import PlanError
from brimful.base.units import format_bytes, format_duration
from brimful.hardware.rates import Rates
from brimful.planning.choices import COMPILE_GAIN, COMPILE_SECONDS, FIXED
from brimful.planning.plan import Choice
from brimful.planning.survey import Memory, Prepared, Tracer
from brimful.planning.timing import StepTime, UnknownRate, step_time
from brimful.planning.work import IrregularWork

MICRO_BATCH_TOKENS = {"cpu": 2048, "mps": 16_384, "cuda": 65_536}
"""Larger micro-batches are not looked at: they bring no speed (CPU: caches, measured in
docs/log.md; GPUs: every product fills the device).
"""
SAME_TIME = 0.02
"""Plans whose predicted times differ by less are equally fast: two predictions of one device share
their errors, but not to the last percent.
"""
MOST_SIZES_TRIED = 16
COMPILE_WORTH_S = 1.5 * COMPILE_SECONDS
"""What compiling has to save over the run, as neither its cost nor its gain is known well
(assumption).
"""
CLEAR_OF_THE_BRIM = 0.7
"""Share of the usable memory up to which nothing speaks against taking more of it (assumption)."""


@dataclass(frozen=True)
class Candidate:
    """One way to run a step.

    Attributes:
        micro_batch: Sequences per pass.
        recompute: Activations are computed twice.
        compiled: Chains of element-wise operators are one kernel.
        time: Predicted; None where a rate is unknown or the operators could not be told.
    """

    micro_batch: int
    recompute: bool
    compiled: bool
    time: StepTime | None


@dataclass(frozen=True)
class Found:
    """What the search takes, and why.

    Attributes:
        taken: The plan's way.
        choices: micro_batch, recompute and compile, with reasons and runners-up.
        memory: That goes with `taken`.
        largest: The largest micro-batch that surely fits, with the taken recomputation.
    """

    taken: Candidate
    choices: Mapping[str, Choice]
    memory: Memory
    largest: int


def split(effective_batch: int, micro_batch: int) -> tuple[int, ...]:
    """Micro-batches that add up exactly to the effective batch; only the last one may be
    smaller.
    """
    full, rest = divmod(effective_batch, micro_batch)
    return (micro_batch,) * full + ((rest,) if rest else ())


def search(
    prepared: Prepared,
    tracer: Tracer,
    rates: Rates | None,
    total_steps: int | None,
    *,
    factor: float = 1.0,
) -> Found:
    """The fastest way that surely fits; where none does, one sequence at a time.

    Args:
        prepared: What was decided before memory and time were looked at.
        tracer: Gives traces.
        rates: Of the device; without them the largest micro-batch is taken.
        total_steps: Updates of the run, over which compiling has to pay.
        factor: Of all times, as earlier runs on the device measured.
    """
    recipe, wanted = prepared.recipe, prepared.recipe.plan.recompute
    plain = _Way(prepared, tracer, rates, factor, recompute=wanted is True)
    if wanted != "auto":
        return _settle(prepared, plain, total_steps, Choice("recompute", wanted, FIXED))
    fixed = recipe.plan.micro_batch
    least = 1 if fixed == "auto" else min(fixed, recipe.effective_batch)
    if plain.largest >= (highest_useful(prepared) if fixed == "auto" else least):
        reason = "all activations fit; computing them again would only cost time"
        return _settle(prepared, plain, total_steps, Choice("recompute", False, reason, True))
    if not plain.largest and plain.memory.standing_bytes > prepared.target.usable_bytes:
        reason = "weights and optimizer states alone do not fit, whatever becomes of activations"
        return _settle(prepared, plain, total_steps, Choice("recompute", False, reason, True))
    again = _Way(prepared, tracer, rates, factor, recompute=True)
    if plain.largest < least:
        told = "one sequence" if least == 1 else f"a micro-batch of {least} sequences"
        if plain.memory.verdict(least) == "uncertain" and again.largest < least:
            return _settle(
                prepared,
                plain,
                total_steps,
                Choice("recompute", False, f"{told} may just fit", True),
            )
        reason = f"without it not even {told} surely fits" + (
            "" if again.largest >= least else ", with it neither"
        )
        return _settle(prepared, again, total_steps, Choice("recompute", True, reason, False))
    return _faster(prepared, plain, again, total_steps)


def highest_useful(prepared: Prepared) -> int:
    """The largest micro-batch that is looked at, except for one that the user fixed above it."""
    recipe, fixed = prepared.recipe, prepared.recipe.plan.micro_batch
    useful = max(1, MICRO_BATCH_TOKENS[prepared.device.kind] // recipe.sequence_length)
    return min(recipe.effective_batch, useful if fixed == "auto" else max(useful, fixed))


class _Way:
    """Candidates with or without recomputation, fastest first."""

    def __init__(
        self,
        prepared: Prepared,
        tracer: Tracer,
        rates: Rates | None,
        factor: float,
        *,
        recompute: bool,
    ) -> None:
        self.recompute, self._prepared, self._rates, self._factor = (
            recompute,
            prepared,
            rates,
            factor,
        )
        self.memory = prepared.memory(tracer, recompute=recompute)
        self.largest = self.memory.largest(
            highest_useful(prepared), margin=prepared.recipe.plan.margin
        )
        self._made: dict[tuple[int, bool], Candidate] = {}

    def candidate(self, micro_batch: int, *, compiled: bool) -> Candidate:
        """With its predicted time, each worked out once."""
        key = (micro_batch, compiled)
        if key not in self._made:
            self._made[key] = Candidate(
                micro_batch, self.recompute, compiled, self._time(micro_batch, compiled=compiled)
            )
        return self._made[key]

    def _time(self, micro_batch: int, *, compiled: bool) -> StepTime | None:
        if self._rates is None:
            return None
        sizes = split(self._prepared.recipe.effective_batch, micro_batch)
        precision = str(self._prepared.choices["precision"].value)
        try:
            time = _scaled(
                step_time(
                    self.memory.work_at, sizes, self._rates, precision=precision, compiled=compiled
                ),
                self._factor,
            )
        except (UnknownRate, IrregularWork):
            return None
        if not compiled:
            return time
        least_s = (
            _seconds(self.candidate(micro_batch, compiled=False))
            / COMPILE_GAIN[self._prepared.device.kind]
        )
        return replace(
            _scaled(time, max(1.0, least_s / time.seconds)), evaluation_s=time.evaluation_s
        )  # evaluation runs eagerly

    def candidates(self) -> list[Candidate]:
        """Eager ones that fit, each with another number of passes; the fixed one alone where the
        user fixed it.
        """
        recipe = self._prepared.recipe
        if recipe.plan.micro_batch != "auto":
            return [
                self.candidate(min(recipe.plan.micro_batch, recipe.effective_batch), compiled=False)
            ]
        return [
            self.candidate(size, compiled=False)
            for size in _sizes(recipe.effective_batch, max(1, self.largest))
        ]

    @cached_property
    def best(self) -> tuple[Candidate, list[Candidate]]:
        """Of those that are as fast as the fastest: passes that are equal, if any are; on a GPU the
        largest that is clear of the brim, else the smallest; and all of them.
        """
        every = self.candidates()
        if any(candidate.time is None for candidate in every):
            return every[0], every
        fastest_s = min(_seconds(candidate) for candidate in every)
        fast = [each for each in every if _seconds(each) <= (1 + SAME_TIME) * fastest_s]
        effective_batch = self._prepared.recipe.effective_batch
        equal = [each for each in fast if effective_batch % each.micro_batch == 0] or fast
        largest_first = sorted(equal, key=_size, reverse=True)
        clear = next((each for each in largest_first if self._is_clear(each.micro_batch)), None)
        return clear or largest_first[-1], every

    def _is_clear(self, micro_batch: int) -> bool:
        """Far from the brim, on a device that gains by size."""
        target = self._prepared.target
        return target.kind != "cpu" and self.memory.high_below(
            micro_batch, CLEAR_OF_THE_BRIM * target.usable_bytes
        )


def _sizes(effective_batch: int, largest: int) -> list[int]:
    """Largest first: as few passes as fit, as equal as can be, then more and more; and with each
    the next smaller size that leaves none over.
    """
    passes, sizes = -(-effective_batch // largest), set[int]()
    while len(sizes) < MOST_SIZES_TRIED and passes <= effective_batch:
        size = -(-effective_batch // passes)
        sizes |= {size, next(equal for equal in range(size, 0, -1) if effective_batch % equal == 0)}
        passes = max(passes + 1, round(passes * 1.3))
    return sorted(sizes, reverse=True)


def _scaled(time: StepTime, factor: float) -> StepTime:
    """All times multiplied; operations stay."""
    terms = {name: factor * seconds for name, seconds in time.terms.items()}
    return replace(
        time, seconds=factor * time.seconds, terms=terms, evaluation_s=factor * time.evaluation_s
    )


def _size(candidate: Candidate) -> int:
    return candidate.micro_batch


def _seconds(candidate: Candidate) -> float:
    return float("inf") if candidate.time is None else candidate.time.seconds


def _faster(prepared: Prepared, plain: _Way, again: _Way, total_steps: int | None) -> Found:
    """Recomputation buys larger micro-batches and costs a forward pass: whichever is faster."""
    (one, _), (other, _) = plain.best, again.best
    if one.time is None or other.time is None or _seconds(other) >= (1 - SAME_TIME) * _seconds(one):
        told = (
            ""
            if one.time is None
            else f"; with it {other.micro_batch} at a time would take {_compared(other, one)}"
        )
        reason = f"activations of {plain.largest} sequence{'s' * (plain.largest != 1)} fit{told}"
        return _settle(prepared, plain, total_steps, Choice("recompute", False, reason, True))
    reason = (
        f"{other.micro_batch} sequences at a time in place of {one.micro_batch}:"
        f" {format_duration(_seconds(other))} a step, {_compared(one, other)} without"
    )
    return _settle(prepared, again, total_steps, Choice("recompute", True, reason, False))


def _compared(candidate: Candidate, to: Candidate) -> str:
    """`1.3 s, 12 % more`."""
    share = _seconds(candidate) / _seconds(to) - 1
    return (
        f"{format_duration(_seconds(candidate))}, {abs(share):.0%}"
        f" {'more' if share >= 0 else 'less'}"
    )


def _settle(prepared: Prepared, way: _Way, total_steps: int | None, recompute: Choice) -> Found:
    eager, every = way.best
    compiling = _compile(prepared, way, eager, total_steps)
    micro = _micro_batch(prepared, way, eager, every, compiled=bool(compiling.value))
    taken = way.candidate(eager.micro_batch, compiled=True) if compiling.value else eager
    choices = {"micro_batch": micro, "recompute": recompute, "compile": compiling}
    return Found(taken, choices, way.memory, way.largest)


def _micro_batch(
    prepared: Prepared, way: _Way, taken: Candidate, every: list[Candidate], *, compiled: bool
) -> Choice:
    recipe, size = prepared.recipe, taken.micro_batch
    if recipe.plan.micro_batch != "auto":
        return Choice("micro_batch", size, FIXED)
    if way.largest == 0:
        footprint = way.memory.at(1)
        fits = {
            "fits": "fits only narrowly",
            "uncertain": "may not fit",
            "does not fit": "does not fit",
        }[footprint.verdict]
        numbers = (
            f"{format_bytes(footprint.driver.value)} of {format_bytes(footprint.usable_bytes)}"
        )
        return Choice("micro_batch", size, f"one sequence, and even that {fits}: {numbers}")
    limit = ""
    if way.largest < highest_useful(prepared):
        limit = (
            f"{way.largest} sequence{'s' * (way.largest != 1)} fit"
            f" {format_bytes(prepared.target.usable_bytes)}"
        )
    others = sorted(
        (each for each in every if each.micro_batch != size and each.time is not None), key=_seconds
    )
    if taken.time is None or not others:
        told = limit and f"{limit}, one more may not"
        return Choice(
            "micro_batch",
            size,
            told
            or (
                "the whole effective batch at once"
                if size == recipe.effective_batch
                else "tokens enough to keep the device busy"
            ),
        )
    runner_up = others[0]
    told = (
        f"{format_duration(_seconds(taken))} a step{' before compiling' if compiled else ''};"
        f" {runner_up.micro_batch} would take {_compared(runner_up, taken)}"
    )
    if runner_up.micro_batch > size:
        told += " and more memory"
    return Choice("micro_batch", size, f"{told}{limit and f'; {limit}'}", runner_up.micro_batch)


def _compile(prepared: Prepared, way: _Way, eager: Candidate, total_steps: int | None) -> Choice:
    """Whether compiling saves more than it costs over the run."""
    recipe, device = prepared.recipe, prepared.device
    if recipe.plan.compile is True and recipe.kind.rows == "texts":
        raise PlanError(
            "plan.compile=true: a classifier's passes have many shapes, and compiled blocks serve"
            " one. Leave it out."
        )
    if recipe.plan.compile != "auto":
        return Choice("compile", recipe.plan.compile, FIXED)
    if not device.abilities.compile:
        return Choice("compile", False, "torch.compile has no compiler to use here")
    if prepared.choices["packing"].value in {"padded", "document"}:
        return Choice(
            "compile",
            False,
            "texts side by side, each in a row, give passes of many shapes, and compiled blocks"
            " serve one",
        )
    if eager.time is None:
        return Choice(
            "compile",
            False,
            "no time is predicted here, so whether compiling pays is not known",
            True,
        )
    saved_s = max(0.0, _seconds(eager) - _seconds(way.candidate(eager.micro_batch, compiled=True)))
    if total_steps is None:
        when = (
            f"would pay after {math.ceil(COMPILE_WORTH_S / saved_s):,} steps"
            if saved_s
            else "would save nothing"
        )
        return Choice(
            "compile", False, f"the length of the run is not known yet; compiling {when}", True
        )
    pays = saved_s * total_steps > COMPILE_WORTH_S
    told = (
        f"compiling costs about {format_duration(COMPILE_SECONDS)} and would save about"
        f" {format_duration(saved_s * total_steps)}"
    )
    return Choice("compile", pays, told, not pays)
