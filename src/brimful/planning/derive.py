"""Derive a plan from a recipe and a device: choices with reasons, the fastest way that fits, its
memory and its time.

Everything that the user fixed in the recipe's `plan` section is kept. The effective batch of the
recipe is never changed.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from brimful.base.errors import PlanError
from brimful.base.text import plural
from brimful.base.units import format_bytes
from brimful.hardware.calibration import NOT_CORRECTED, Correction, basis_of
from brimful.hardware.device import Device
from brimful.hardware.rates import Rates
from brimful.planning.choices import (
    EXAMPLE_S,
    FIXED,
    NEW_PRODUCT_S,
    PACKED_ATTENTION,
    fp32_where_quicker,
)
from brimful.planning.compiled import bounded_by_eager
from brimful.planning.earlier_runs import earlier_runs_choice, memory_kind
from brimful.planning.longest_pass import LongestPassAt, split
from brimful.planning.memory import Footprint
from brimful.planning.plan import Choice, Plan, Prediction, Predictions
from brimful.planning.rounds import time_shares
from brimful.planning.search import Candidate, SearchResult, search
from brimful.planning.specs import ModelFacts, model_facts
from brimful.planning.step import EVALUATION_FACTOR, StepSpec
from brimful.planning.survey import (
    NOT_SHARED,
    Memory,
    Prepared,
    ResidualsOf,
    Sharing,
    Tracer,
    prepare,
)
from brimful.planning.timed import Level, StepTimer, TimedStep, basis_of_passes, level_of
from brimful.planning.timing import WAITS, Scale, StepTime, share_of
from brimful.recipe import Recipe
from brimful.recipe.rewards import learned_share

REACHED = "a rate that this step itself reaches; single products were slowed down by other programs"
"""Added to the source of a CPU's rates, where that is so."""

BEST_MFU = 0.9
"""No step is expected to use more of a GPU's dense peak. The most that was published is 81 %,
of GPT-2 124M on an RTX 5090 (assumption).
"""


@dataclass(frozen=True)
class Facts:
    """Optional facts about a run, each better than the guess made without it.

    Attributes:
        vocabulary: Real size of the tokenizer.
        train_sequences: Sequences in one epoch.
        process_bytes: Memory this process holds before the model exists (CPU only).
        model: The model's facts, where they were looked up before.
        rates: How fast the device is; without them no time is predicted.
        correction: How earlier runs on the device compared with their predicted step times.
        timer: Times real passes of the step on this machine; None where that is not to be done.
        tokens_per_step: Mean number of tokens of a step; None where its rows are full.
        fill: Share of the rows' positions that a step computes on average, padding included.
        scored: Share of those positions that the loss is computed of.
        expected_fill: Share of a full row that examples are expected to fill, where the data were
            not read yet. Predicted times stay those of full rows; only choices use it.
        has_many_lengths: Whether examples have more than a few lengths among them.
        new_product_s: Seconds that a CPU takes to make the kernel of a bf16 product of a new shape.
        examples: Sequences of a step, each of which attends within itself.
        longest_pass_of: The longest pass of the run, by packing and micro-batch; without it rows
            count as full.
        residuals_of: How the memory of earlier runs on the device compared with its prediction.
    """

    vocabulary: int | None = None
    train_sequences: int | None = None
    process_bytes: int = 0
    model: ModelFacts | None = None
    rates: Rates | None = None
    correction: Correction = NOT_CORRECTED
    timer: StepTimer | None = None
    tokens_per_step: int | None = None
    fill: float = 1.0
    scored: float = 1.0
    expected_fill: float = 1.0
    has_many_lengths: bool = True
    new_product_s: float = NEW_PRODUCT_S
    examples: int = 1
    longest_pass_of: Callable[[str], LongestPassAt] | None = None
    residuals_of: ResidualsOf | None = None

    def without_earlier_runs(self) -> "Facts":
        """Return the same without what earlier runs on the device say."""
        timer = self.timer
        plain: StepTimer | None = None
        if timer is not None:

            def plain(
                spec: StepSpec, micro_batch: int, seconds: float, scored: float
            ) -> TimedStep | None:
                timed = timer(spec, micro_batch, seconds, scored)
                return None if timed is None else replace(timed, correction=NOT_CORRECTED)

        return replace(self, correction=NOT_CORRECTED, timer=plain, residuals_of=None)


@dataclass(frozen=True)
class Derived:
    """A plan with the memory it rests on.

    Attributes:
        plan: The plan; on a device where nothing fits, with one sequence at a time.
        footprint: The footprint of the plan's micro-batch.
        largest: The largest micro-batch that surely fits, up to the effective batch; 0 where none
            does.
        prepared: What was decided before memory was looked at.
        memory: Footprints of every micro-batch.
    """

    plan: Plan
    footprint: Footprint
    largest: int
    prepared: Prepared
    memory: Memory


def derive(recipe: Recipe, device: Device, tracer: Tracer, facts: Facts = Facts()) -> Plan:
    """Return the plan of a recipe on a device.

    Raises:
        PlanError: it does not fit, not even one sequence at a time.
    """
    derived = derive_with_memory(recipe, device, tracer, facts)
    refuse_what_cannot_fit(derived)
    return derived.plan


def refuse_what_cannot_fit(derived: Derived) -> None:
    """Raise PlanError if the plan's micro-batch surely does not fit. An uncertain one is allowed,
    but not in main memory where more is expected than there is, unless the recipe's margin is
    tight: a system ends a process that takes too much, which no checkpoint survives before the
    first step.
    """
    footprint, recipe = derived.footprint, derived.prepared.recipe
    needed_bytes, usable_bytes = footprint.driver.value, footprint.usable_bytes
    is_risky = derived.prepared.device.kind == "cpu" and needed_bytes > usable_bytes
    if footprint.verdict == "does not fit" or (is_risky and recipe.plan.margin != "tight"):
        sequences = (
            f"{plural(footprint.micro_batch, 'sequence')} of {recipe.sequence_length} tokens"
        )
        tries = " plan.margin=tight tries it all the same." * (footprint.verdict == "uncertain")
        raise PlanError(
            f"{recipe.name} needs about {format_bytes(needed_bytes)} for {sequences}, but"
            f" {derived.prepared.device.name} has {format_bytes(usable_bytes)} to use."
            " `brimful plan` shows where it goes and what would make it fit; a shorter"
            " sequence_length, a smaller model or a smaller fixed plan.micro_batch would."
            f"{tries}"
        )


def planned_threads(recipe: Recipe, device: Device) -> int | None:
    """Return the number of threads that compute on a CPU; None on other devices."""
    if device.kind != "cpu":
        return None
    return device.threads if recipe.plan.threads == "auto" else recipe.plan.threads


def derive_with_memory(
    recipe: Recipe,
    device: Device,
    tracer: Tracer,
    facts: Facts = Facts(),
    sharing: Sharing = NOT_SHARED,
    first: Callable[[Derived], None] | None = None,
    precision: Choice | None = None,
) -> Derived:
    """Return the plan and the memory that it rests on, even if it does not fit.

    Args:
        recipe, device: What is planned; of a device that works with others, its share.
        tracer: Returns traces.
        facts: The facts of the run.
        sharing: Whether the device works with others.
        first: Is told what is known before recomputation is looked at, where that fits.
        precision: The precision, where it was decided before.
    """
    if not recipe.plan.earlier_runs:
        facts = facts.without_earlier_runs()
    given = facts
    prepared = prepare(
        recipe,
        device,
        process_bytes=facts.process_bytes,
        model=facts.model or model_facts(recipe, facts.vocabulary),
        longest_pass_of=facts.longest_pass_of,
        sharing=sharing,
        residuals_of=facts.residuals_of,
        has_many_lengths=facts.has_many_lengths,
        precision=precision,
    )
    total_steps = total_steps_of(recipe, facts.train_sequences)
    if facts.rates is not None and device.kind == "cpu":
        rates = _of_small_steps(facts.rates, prepared, facts, total_steps)
        facts = replace(facts, rates=rates)

    def tell(found: SearchResult) -> None:
        if first is not None:
            first(_derived(prepared, facts, found, total_steps, None))

    scale = Scale(lambda micro_batch: facts.correction.factor, None, facts.fill, facts.scored)
    told = None if first is None else tell
    result = search(prepared, tracer, facts.rates, total_steps, scale, first=told)
    if prepared.makes_kernels:
        quicker = fp32_where_quicker(
            prepared.choices["precision"], device, result.taken.time, facts.expected_fill
        )
        if quicker is not None:
            return derive_with_memory(recipe, device, tracer, given, sharing, first, quicker)
    level = None
    if facts.timer is not None and facts.rates is not None and result.largest:
        level = level_of(prepared, facts.timer, facts.rates, result, total_steps, scale)
    if level is not None:
        scale = replace(scale, factor_at=level.factor_at, fusible=level.passes.fusible)
        result = search(prepared, tracer, facts.rates, total_steps, scale)
    return _derived(prepared, facts, result, total_steps, level)


def _of_small_steps(rates: Rates, prepared: Prepared, facts: Facts, steps: int | None) -> Rates:
    """Return the rates with what those of operators do not say of a run on a CPU: attention goes
    example by example, and kernels are made in every pass or in the first step only.
    """
    precision = prepared.precision
    is_packed = prepared.choices["attention"].value == PACKED_ATTENTION
    each_s = EXAMPLE_S.get(precision, 0.0) * is_packed
    kernel_s = facts.new_product_s * (precision == "bf16")
    return replace(
        rates,
        examples_s=each_s * (facts.examples - 1),
        new_product_s=kernel_s if prepared.makes_kernels else kernel_s / (steps or math.inf),
    )


def _derived(
    prepared: Prepared,
    facts: Facts,
    result: SearchResult,
    total_steps: int | None,
    level: Level | None,
) -> Derived:
    footprint = result.memory.at(result.taken.micro_batch)
    prepared = _with_reached_rate(prepared, result.taken)
    plan = _plan(prepared, facts, result, footprint, total_steps, level)
    return Derived(plan, footprint, result.largest, prepared, result.memory)


def _plan(
    prepared: Prepared,
    facts: Facts,
    result: SearchResult,
    footprint: Footprint,
    total_steps: int | None,
    level: Level | None,
) -> Plan:
    recipe, device, choices, taken = (
        prepared.recipe,
        prepared.device,
        prepared.choices,
        result.taken,
    )
    predicted = _peaks(footprint, device, result.untraced)
    runs = footprint.verdict != "does not fit"
    if runs:
        predicted |= _times(prepared, facts, taken, level)
    terms = dict(footprint.terms)
    if device.kind != "cpu":
        for outside in ("CUDA context and libraries", "process"):
            terms.pop(outside, None)
    time_terms: dict[str, float] = {}
    evaluation_share = None
    if taken.time is not None and runs:
        seconds = predicted["step_time_s"].value
        time_terms = {
            name: each * seconds / taken.time.seconds for name, each in taken.time.terms.items()
        }
        evaluation_share = _evaluation_share(recipe, taken, taken.time)
    correction, basis = facts.correction, ""
    if level is not None:
        correction, basis = level.correction, basis_of_passes(level.passes, device.threads)
    elif facts.rates is not None:
        basis = basis_of(facts.rates, device)
    earlier = earlier_runs_choice(
        prepared.target.residuals,
        footprint.correction_bytes,
        correction if runs else NOT_CORRECTED,
    )
    return Plan(
        recipe=recipe.name,
        device=device.to_json(),
        choices=tuple(_decided(prepared, result, earlier)),
        micro_batches=split(recipe.effective_batch, taken.micro_batch),
        precision=prepared.precision,
        attention=str(choices["attention"].value),
        recompute=taken.recompute,
        compile=taken.compiled,
        offload=recipe.plan.offload == "activations",
        optimizer=str(choices["optimizer"].value),
        packing=str(choices["packing"].value),
        packs_experts=prepared.spec(recompute=False).packs_experts,
        loss_chunk=int(choices["loss_chunk"].value),
        loader_workers=int(choices["loader_workers"].value),
        threads=planned_threads(recipe, device),
        parameters=prepared.model.parameters or footprint.parameters,
        sequence_length=recipe.sequence_length,
        rows_per_sample=recipe.kind.rows_per_sample,
        total_steps=total_steps,
        predicted=predicted,
        memory_terms=terms,
        time_terms=time_terms,
        evaluation_share=evaluation_share,
        fixed_share=_fixed_share(level),
        correction=correction.factor,
        rates_basis=basis,
        # What an untraced compiled step takes says nothing about the eager one that is predicted.
        memory_kind="" if result.untraced else memory_kind(recipe, prepared.precision),
        memory_correction_bytes=footprint.correction_bytes,
    )


def _decided(prepared: Prepared, result: SearchResult, earlier: Choice | None) -> Iterator[Choice]:
    """Yield the plan's choices in the order in which they are shown."""
    choices = prepared.choices
    yield choices["precision"]
    yield result.choices["micro_batch"]
    yield result.choices["compile"]
    yield choices["loss_chunk"]
    yield choices["attention"]
    yield from (choices[name] for name in ("kernels", "experts") if name in choices)
    yield result.choices["recompute"]
    yield choices["optimizer"]
    yield choices["loader_workers"]
    yield choices["packing"]
    if prepared.model.also_reads:
        why = f"planned as its text part: {prepared.model.also_reads} is not trained here"
        yield Choice("model", str(prepared.model.config["model_type"]), why)
    if prepared.recipe.plan.offload != "none":
        yield Choice("offload", prepared.recipe.plan.offload, FIXED)
    if earlier is not None:
        yield earlier


def _evaluation_share(recipe: Recipe, taken: Candidate, time: StepTime) -> float | None:
    """Return the time of scoring a sequence over the time of training on it."""
    sequence_s = time.evaluation_s / (EVALUATION_FACTOR * taken.micro_batch)
    return sequence_s / (time.seconds / recipe.effective_batch) or None


def _times(prepared: Prepared, facts: Facts, taken: Candidate, level: Level | None) -> Predictions:
    """Return step time, throughput and MFU, with the interval of timed passes, of the rates or of
    earlier runs on the device.
    """
    if taken.time is None or facts.rates is None:
        return {}
    recipe, device = prepared.recipe, prepared.device
    if level is None:
        correction, (low, high) = facts.correction, share_of(facts.rates, taken.time)
        basis = f"every operator's arithmetic and bytes; {facts.rates.source}"
    else:
        correction, (low, high) = level.correction, level.share(compiled=taken.compiled)
        basis = level.passes.describe()
    if correction.runs:
        low, high = correction.low / correction.factor, correction.high / correction.factor
        basis += f"; corrected by {plural(correction.runs, 'earlier run')} on this device"
    seconds, flop = taken.time.seconds, taken.time.model_flop
    peak = device.dense_flop_per_s.get(prepared.precision)
    # Nothing is faster than the device's matrix units. A CPU's peak was measured, and is reached.
    least_s = flop / peak if peak else 0.0
    seconds = max(seconds, least_s / (1.0 if device.kind == "cpu" else BEST_MFU))
    high_s = max(high * seconds, _slowest_host_s(taken.time, level, correction))
    basis += f"; {WAITS}" * taken.time.waits_for_program
    step = Prediction(seconds, max(low * seconds, least_s), high_s, basis)
    if recipe.kind.draws_answers:
        learned = learned_share(recipe)
        few, some, every = time_shares(recipe, device.kind, _fixed_share(level), learned)
        basis += f"; {learned[1]:.0%} of the answers assumed to take a pass"
        step = Prediction(some * step.value, few * step.low, every * step.high, basis)
    tokens = facts.tokens_per_step or recipe.tokens_per_step
    predicted = {
        "step_time_s": step,
        "tokens_per_s": Prediction(
            tokens / step.value, tokens / step.high, tokens / step.low, "from the step time"
        ),
    }
    if peak:
        value, low, high = (least_s / each for each in (step.value, step.high, step.low))
        basis = (
            "forward and backward FLOPs, causal attention counted by half, nothing computed twice,"
            f" of {peak / 1e12:,.4g} TFLOP/s dense"
        )
        if REACHED in device.source:
            basis += f"; {REACHED}"
        predicted["mfu"] = Prediction(value, low, high, basis)
    return predicted


def _fixed_share(level: Level | None) -> float:
    return 0.0 if level is None else level.fixed_share


def _slowest_host_s(time: StepTime, level: Level | None, correction: Correction) -> float:
    """Return the time of a step on the slowest host that it may have; 0 where it was seen here."""
    return 0.0 if level is not None or correction.runs else time.slowest_host_s


def _with_reached_rate(prepared: Prepared, taken: Candidate) -> Prepared:
    """Return the same with a CPU whose products are as fast as the step itself.

    The peak of a CPU is the fastest product seen on it. A step that is faster, by rates that were
    measured too, shows that other programs slowed the single products down.
    """
    device, precision = prepared.device, prepared.precision
    peak = device.dense_flop_per_s.get(precision)
    if not peak or taken.time is None or device.kind != "cpu":
        return prepared
    reached = taken.time.model_flop / taken.time.seconds
    if reached <= peak:
        return prepared
    faster = device.with_rates({**device.dense_flop_per_s, precision: reached}, REACHED)
    return replace(prepared, device=faster)


def _peaks(footprint: Footprint, device: Device, untraced: str) -> Predictions:
    """Return the peaks that a run will measure: torch's allocator on CUDA, the process on a CPU.
    `untraced`: why they are those of the step without compiling, see SearchResult.
    """
    peaks = {"peak_memory_bytes": footprint.driver if device.kind == "cpu" else footprint.reserved}
    if device.kind != "cpu":
        peaks |= {
            "allocated_memory_bytes": footprint.allocated,
            "device_memory_bytes": footprint.driver,
        }
    if not untraced:
        return peaks
    return {name: bounded_by_eager(peak, untraced) for name, peak in peaks.items()}


def total_steps_of(recipe: Recipe, train_sequences: int | None) -> int | None:
    """Return the number of optimizer steps of a run; None where it needs the number of training
    sequences and that is unknown.
    """
    if recipe.training.steps is not None:
        return recipe.training.steps
    if recipe.training.tokens is not None:
        return max(1, round(recipe.training.tokens / recipe.tokens_per_step))
    if train_sequences is None or recipe.training.epochs is None:
        return None
    return max(1, round(recipe.training.epochs * train_sequences / recipe.effective_batch))
