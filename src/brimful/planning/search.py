"""The search for the fastest plan: ways to run a recipe on a device, limited by memory and ranked
by predicted time.

Every micro-batch gives the same optimizer step, so the search may take the fastest. Among ways that
are equally fast within the error of prediction it takes the safest: without recomputation, and with
memory to spare. Of those a GPU gets the largest micro-batch, because effects that are not modelled
(launches, half-filled tiles) favour size; a CPU gets the smallest, because of its caches.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from brimful.base.text import plural
from brimful.base.units import format_bytes, format_duration
from brimful.hardware.rates import Rates
from brimful.planning.choices import COMPILE_GAIN, FIXED
from brimful.planning.compiled import compiled_memory
from brimful.planning.compiling import compile_choice
from brimful.planning.offload import with_offloading
from brimful.planning.plan import Choice
from brimful.planning.step import Recompute
from brimful.planning.survey import Memory, Prepared, Tracer
from brimful.planning.timing import UNSCALED, Scale, StepTime, UnknownRate, part_terms, step_time
from brimful.planning.work import IrregularWork
from brimful.recipe import Recipe

MICRO_BATCH_TOKENS = {"cpu": 2048, "mps": 16_384, "cuda": 65_536}
"""Most tokens of a micro-batch. Larger ones are no faster (CPU: caches; GPUs: every product
fills the device).
"""
SAME_TIME = 0.02
"""Plans whose predicted times differ by less are equally fast. Predictions for one device share
most of their errors.
"""
UNEVEN_GAIN = 0.05
"""Passes of unequal size are taken only if equal ones are predicted to take more than this longer.
The last pass is a second shape, which costs time and memory that the prediction does not see: with
0.02, gpt-124m was divided into 102 passes of 5 and one of 2 on two GPUs of the catalog, for 2 to
3 % (assumption).
"""
MOST_SIZES_TRIED = 16
OFFLOADED = "plan.offload: blocks keep their inputs, on the host, and compute the rest again"
SELECTIVE = (
    f"{FIXED}: blocks keep what matrix products and attention kernels return, and compute the rest"
    " again"
)
WATCHED_S = 11e-6
"""What selective recomputation adds to the time in which the program issues an operator, on average
over all of a step: operators of a forward pass and of what is computed again are watched, about
half of them (docs/log/2026-11.md, 26 November).
"""
WITHIN_ERROR = "is within the error of prediction"
COMPUTED_AGAIN = 0.5
"""Least share of the time of the blocks' forward passes that recomputation adds (assumption; traces
with it have 0.85 to 1.0: docs/log, 2026-11-29).
"""
COMFORTABLE_SHARE = 0.7
"""Share of the usable memory that a plan may take without risk (assumption)."""


@dataclass(frozen=True)
class Candidate:
    """One way to run a step.

    Attributes:
        micro_batch: Sequences per pass.
        recompute: Which activations are checkpointed: of all operators, or of the cheap ones alone.
        compiled: Chains of element-wise operators are one kernel.
        time: Predicted; None where a rate or the operators are unknown.
        waiting_s: Seconds in which it waits for other devices, not in `time`.
    """

    micro_batch: int
    recompute: Recompute
    compiled: bool
    time: StepTime | None
    waiting_s: float = 0.0


@dataclass(frozen=True)
class SearchResult:
    """The result of the search.

    Attributes:
        taken: The way that the plan takes.
        choices: micro_batch, recompute and compile, with reasons and runners-up.
        memory: Memory with the recomputation of `taken`.
        largest: The largest micro-batch that surely fits then.
        untraced: Why the memory is that of the step without compiling although `taken` compiles;
            empty where it is its own.
    """

    taken: Candidate
    choices: Mapping[str, Choice]
    memory: Memory
    largest: int
    untraced: str = ""


def search(
    prepared: Prepared,
    tracer: Tracer,
    rates: Rates | None,
    total_steps: int | None,
    scale: Scale = UNSCALED,
    *,
    first: Callable[[SearchResult], None] | None = None,
) -> SearchResult:
    """Return the fastest way that surely fits, or one sequence at a time where none does.

    Args:
        prepared: The choices that do not depend on memory and time.
        tracer: Returns traces.
        rates: The rates of the device; without them the largest micro-batch is taken.
        total_steps: Updates of the run, over which compiling has to pay.
        scale: What earlier runs on the device or passes that were timed there say.
        first: Is told the way without recomputation where it fits, before recomputation is looked
            at, which may have to be recorded.
    """
    recipe = prepared.recipe
    wanted, why = _asked_for(recipe)
    if wanted != "auto":
        return _Way(prepared, tracer, rates, scale, total_steps, recompute=wanted).settled(why)
    plain = _Way(prepared, tracer, rates, scale, total_steps, recompute=False)
    fixed = recipe.plan.micro_batch
    least = 1 if fixed == "auto" else min(fixed, recipe.effective_batch)
    if plain.largest >= (highest_useful(prepared) if fixed == "auto" else least):
        reason = "all activations fit; computing them again would only cost time"
        return plain.settled(reason, True)
    if not plain.largest and plain.memory.standing_bytes > prepared.target.usable_bytes:
        reason = "weights and optimizer states alone do not fit, whatever becomes of activations"
        return plain.settled(reason, True)
    if first is not None and plain.largest >= least:
        first(plain.settled("it fits", True))

    @functools.cache
    def again() -> _Way:
        return _Way(prepared, tracer, rates, scale, total_steps, recompute=True)

    if plain.largest >= least:
        return _faster(plain, again)
    size = "one sequence" if least == 1 else f"a micro-batch of {least} sequences"
    if plain.memory.verdict(least) == "uncertain" and again().largest < least:
        return plain.settled(f"{size} may just fit", True)
    reason = f"without it not even {size} surely fits"
    if again().largest < least:
        reason += ", with it neither"
    return again().settled(reason, False)


def _asked_for(recipe: Recipe) -> tuple[Recompute | Literal["auto"], str]:
    """Return what the recipe asks for in recomputation, and by which key."""
    if recipe.plan.offload != "none":
        return True, OFFLOADED
    if recipe.plan.recompute == "selective":
        return "selective", SELECTIVE
    return recipe.plan.recompute, FIXED


def highest_useful(prepared: Prepared) -> int:
    """Return the largest micro-batch to consider; one that the user fixed may be larger."""
    recipe, fixed = prepared.recipe, prepared.recipe.plan.micro_batch
    useful = max(1, MICRO_BATCH_TOKENS[prepared.device.kind] // recipe.sequence_length)
    return min(recipe.effective_batch, useful if fixed == "auto" else max(useful, fixed))


def rates_of_way(rates: Rates, recompute: Recompute) -> Rates:
    """Return the rates of a device for steps that recompute in a way."""
    if recompute != "selective":
        return rates
    return replace(rates, host_s=rates.host_s + WATCHED_S)


class _Way:
    """Candidates with or without recomputation, fastest first."""

    def __init__(
        self,
        prepared: Prepared,
        tracer: Tracer,
        rates: Rates | None,
        scale: Scale,
        total_steps: int | None,
        *,
        recompute: Recompute,
    ) -> None:
        self.recompute, self._prepared, self._tracer = recompute, prepared, tracer
        self._rates, self._scale, self._total_steps = rates, scale, total_steps
        self.memory = prepared.memory(tracer, recompute=recompute)
        self.largest = self.memory.largest(
            highest_useful(prepared), margin=prepared.recipe.plan.margin
        )
        self._made: dict[tuple[int, bool], Candidate] = {}

    def settled(self, reason: str, alternative: bool | None = None) -> SearchResult:
        """Return its best candidate as the result; `reason` says why it recomputes, or does not."""
        way, (eager, _), untraced = self, self.best, ""
        compiling = self._compile(eager)
        if compiling.value:
            way, untraced = self._compiled()
        taken, every = way.best
        micro = way._micro_batch(taken, every, compiled=bool(compiling.value))
        if compiling.value:
            taken = way.candidate(taken.micro_batch, compiled=True)
        recompute = Choice("recompute", self.recompute, reason, alternative)
        choices = {"micro_batch": micro, "recompute": recompute, "compile": compiling}
        return SearchResult(taken, choices, way.memory, way.largest, untraced)

    def _compile(self, eager: Candidate) -> Choice:
        prepared = self._prepared

        def compiled_s() -> float:
            return _seconds(self.candidate(eager.micro_batch, compiled=True))

        eager_s = None if eager.time is None else _seconds(eager)
        return compile_choice(
            prepared.recipe,
            prepared.device,
            prepared.choices,
            eager_s,
            compiled_s,
            self._total_steps,
        )

    def _compiled(self) -> tuple["_Way", str]:
        """Return the same, with as much memory as it takes compiled; and why it is still that of
        the step without compiling, or an empty text.
        """
        prepared = self._prepared
        found = compiled_memory(prepared, self._tracer, self.memory, recompute=self.recompute)
        if isinstance(found, str):
            return self, found
        other = copy.copy(self)
        other.memory = found
        other.largest = found.largest(highest_useful(prepared), prepared.recipe.plan.margin)
        other.__dict__.pop("best", None)
        return other, ""

    def _micro_batch(self, taken: Candidate, every: list[Candidate], *, compiled: bool) -> Choice:
        prepared, size = self._prepared, taken.micro_batch
        recipe = prepared.recipe
        if recipe.plan.micro_batch != "auto":
            return Choice("micro_batch", size, FIXED)
        if self.largest == 0:
            footprint = self.memory.at(1)
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
        if self.largest < highest_useful(prepared):
            usable = format_bytes(prepared.target.usable_bytes)
            limit = f"{plural(self.largest, 'sequence')} fit {usable}"
            if self.memory.verdict(self.largest + 1) == "fits":
                limit += f" and leave {format_bytes(prepared.target.room_bytes)} free"
        others = sorted(
            (each for each in every if each.micro_batch != size and each.time is not None),
            key=_seconds,
        )
        if taken.time is None or not others:
            reason = "tokens enough to keep the device busy"
            if limit:
                reason = f"{limit}, one more may not"
            elif size == recipe.effective_batch:
                reason = "the whole effective batch at once"
            return Choice("micro_batch", size, reason)
        runner_up = others[0]
        reason = f"{format_duration(_seconds(taken))} a step"
        if compiled:
            reason += " before compiling"
        reason += f"; {_beside(runner_up, taken, recipe.effective_batch)}"
        if limit:
            reason += f"; {limit}"
        return Choice("micro_batch", size, reason, runner_up.micro_batch)

    def candidate(self, micro_batch: int, *, compiled: bool) -> Candidate:
        """Return a candidate with its predicted time, computed once."""
        key = (micro_batch, compiled)
        if key not in self._made:
            time = self._time(micro_batch, compiled=compiled)
            self._made[key] = Candidate(
                micro_batch, self.recompute, compiled, time, self._waiting_s(micro_batch, time)
            )
        return self._made[key]

    def _waiting_s(self, micro_batch: int, time: StepTime | None) -> float:
        prepared = self._prepared
        if time is None or prepared.waiting is None:
            return 0.0
        passes = len(self._passes(micro_batch)[0])
        return prepared.waiting(prepared, self.memory, time, passes)

    def _passes(self, micro_batch: int) -> tuple[tuple[int, ...], float, float]:
        scale = self._scale
        return self._prepared.passes_of_step(micro_batch, scale.fill, scale.scored)

    def _time(self, micro_batch: int, *, compiled: bool) -> StepTime | None:
        if self._rates is None:
            return None
        recipe, rates = self._prepared.recipe, rates_of_way(self._rates, self.recompute)
        sizes, fill, scored = self._passes(micro_batch)
        try:
            time = step_time(
                self.memory.work_at,
                sizes,
                rates,
                precision=self._prepared.precision,
                compiled=compiled,
                fill=fill,
                scored=scored,
            ).scaled(self._scale.factor_at(micro_batch))
        except (UnknownRate, IrregularWork):
            return None
        if recipe.plan.offload != "none":
            time = with_offloading(time, self._prepared.spec(recompute=True), sum(sizes))
        if not compiled:
            return time
        eager = self.candidate(micro_batch, compiled=False).time
        most = COMPILE_GAIN[self._prepared.device.kind]
        compiled_time = time.scaled(self._scale.compiled_s(time, eager, most) / time.seconds)
        return replace(compiled_time, evaluation_s=time.evaluation_s)  # evaluation runs eagerly

    def candidates(self) -> list[Candidate]:
        """Return eager candidates that fit, with different numbers of passes; only the fixed one
        where the user fixed the micro-batch.
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

    def least_recomputed_s(self) -> float:
        """Return a lower bound of the seconds of a step with recomputation, whatever micro-batch
        fits then: those of the same micro-batch without it, and the share `COMPUTED_AGAIN` of its
        blocks' forward passes. 0 where no time is known.
        """
        sizes = _sizes(self._prepared.recipe.effective_batch, highest_useful(self._prepared))
        return min(self._least_recomputed_s(size) for size in sizes)

    def _least_recomputed_s(self, size: int) -> float:
        time = self.candidate(size, compiled=False).time
        if time is None or self._rates is None:
            return 0.0
        passes, fill, _ = self._passes(size)
        forward = self.memory.work_at(size).part("micro-batch").forward_of_blocks()
        precision = self._prepared.precision
        terms = part_terms(forward, self._rates, precision=precision, compiled=False)
        each_s = fill * self._scale.factor_at(size) * sum(terms.values())
        return time.seconds + COMPUTED_AGAIN * each_s * sum(passes) / size

    @cached_property
    def best(self) -> tuple[Candidate, list[Candidate]]:
        """The best candidate, and all of them. Passes of equal size, unless unequal ones are faster
        by more than `UNEVEN_GAIN`; of those as fast as the fastest on a GPU the largest with memory
        to spare, else the smallest.
        """
        every = self.candidates()
        if any(candidate.time is None for candidate in every):
            return every[0], every
        effective_batch = self._prepared.recipe.effective_batch
        equal = [each for each in every if effective_batch % each.micro_batch == 0]
        worth = _as_fast_as_the_fastest(equal, min(map(_seconds, every)), UNEVEN_GAIN) or every
        fast = _as_fast_as_the_fastest(worth, min(map(_seconds, worth)), SAME_TIME)
        largest_first = sorted(fast, key=_size, reverse=True)
        clear = next((each for each in largest_first if self._is_clear(each.micro_batch)), None)
        return clear or largest_first[-1], every

    def _is_clear(self, micro_batch: int) -> bool:
        """Return whether this leaves memory to spare, on a device that gains by size."""
        target = self._prepared.target
        return target.kind != "cpu" and self.memory.high_below(
            micro_batch, COMFORTABLE_SHARE * target.usable_bytes
        )


def _sizes(effective_batch: int, largest: int) -> list[int]:
    """Return micro-batches to try, the largest first: with as few passes as fit, then more and
    more, each also rounded down to a divisor of the effective batch; and one sequence at a time.
    """
    passes, sizes = -(-effective_batch // largest), {1}
    while len(sizes) < MOST_SIZES_TRIED and passes <= effective_batch:
        size = -(-effective_batch // passes)
        sizes |= {size, next(equal for equal in range(size, 0, -1) if effective_batch % equal == 0)}
        passes = max(passes + 1, round(passes * 1.3))
    return sorted(sizes, reverse=True)


def _as_fast_as_the_fastest(
    candidates: list[Candidate], fastest_s: float, tolerance: float
) -> list[Candidate]:
    """Return the candidates that take at most a share `tolerance` longer than `fastest_s`."""
    return [each for each in candidates if _seconds(each) <= (1 + tolerance) * fastest_s]


def _size(candidate: Candidate) -> int:
    return candidate.micro_batch


def _seconds(candidate: Candidate) -> float:
    if candidate.time is None:
        return float("inf")
    return candidate.time.seconds + candidate.waiting_s


def _faster(plain: _Way, again: Callable[[], _Way]) -> SearchResult:
    """Return the faster way: recomputation allows larger micro-batches and costs a forward pass.
    `again` makes the way with it, which may have to be recorded, and is not asked in vain.
    """
    one, _ = plain.best
    reason = f"activations of {plural(plain.largest, 'sequence')} fit"
    fast_s = (1 - SAME_TIME) * _seconds(one)
    if one.time is not None and (least_s := plain.least_recomputed_s()) >= fast_s:
        reason += f"; with it a step would take at least {_compared(least_s, one)}"
    elif one.time is not None:
        way = again()
        other, _ = way.best
        if _seconds(other) < fast_s:
            gained = (
                f"{other.micro_batch} sequences at a time in place of {one.micro_batch}:"
                f" {format_duration(_seconds(other))} a step, {_compared(_seconds(one), other)}"
                " without"
            )
            return way.settled(gained, False)
        reason += (
            f"; with it {other.micro_batch} at a time would take {_compared(_seconds(other), one)}"
        )
        if _seconds(other) < _seconds(one):
            reason += f", which {WITHIN_ERROR}"
    return plain.settled(reason, True)


def _compared(seconds: float, to: Candidate) -> str:
    """`1.3 s, 12% more`, or `1.3 s, about as long`."""
    share = seconds / _seconds(to) - 1
    difference = f"{abs(share):.0%} {'more' if share > 0 else 'less'}"
    if abs(share) < 0.005:
        difference = "about as long"
    return f"{format_duration(seconds)}, {difference}"


def _beside(runner_up: Candidate, taken: Candidate, effective_batch: int) -> str:
    """Say what the runner-up would take, and why it is not taken if that is less."""
    size = runner_up.micro_batch
    rest = effective_batch % size
    would = f"{size} at a time{f' and {rest} at last' * bool(rest)} would take"
    compared = _compared(_seconds(runner_up), taken)
    if _seconds(runner_up) >= _seconds(taken):
        return f"{would} {compared}{' and more memory' * (size > taken.micro_batch)}"
    if rest and not effective_batch % taken.micro_batch:
        return f"{would} {compared}, too little for passes of unequal size"
    memory = " and takes more memory" * (size > taken.micro_batch)
    return f"{would} {compared}, which {WITHIN_ERROR}{memory}"
