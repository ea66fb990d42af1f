"""Derive a plan from a recipe and a device: choices with reasons, the fastest way that fits, its
memory and its time.

Everything that the user fixed in the recipe's `plan` section is kept. The effective batch of the
recipe is never changed.
"""

from dataclasses import dataclass, replace

from brimful.base.errors import PlanError
from brimful.base.units import format_bytes
from brimful.hardware.calibration import Correction, basis_of
from brimful.hardware.device import Device
from brimful.hardware.rates import Rates
from brimful.planning.memory import Footprint
from brimful.planning.plan import Plan, Prediction
from brimful.planning.search import Candidate, SearchResult, search, split
from brimful.planning.specs import ModelFacts
from brimful.planning.step import EVALUATION_FACTOR
from brimful.planning.survey import Memory, Prepared, Tracer, prepare
from brimful.planning.timing import StepTime
from brimful.recipe import Recipe


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
    """

    vocabulary: int | None = None
    train_sequences: int | None = None
    process_bytes: int = 0
    model: ModelFacts | None = None
    rates: Rates | None = None
    correction: Correction | None = None


@dataclass(frozen=True)
class Derived:
    """A plan with the memory it rests on.

    Attributes:
        plan: The plan; on a device where nothing fits, with one sequence at a time.
        footprint: Of the plan's micro-batch.
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
    """Raise PlanError if the plan's micro-batch surely does not fit; an uncertain one is
    allowed.
    """
    footprint, recipe = derived.footprint, derived.prepared.recipe
    if footprint.verdict == "does not fit":
        sequences = (
            f"{footprint.micro_batch} sequence{'s' * (footprint.micro_batch != 1)} of"
            f" {recipe.sequence_length} tokens"
        )
        raise PlanError(
            f"{recipe.name} needs about {format_bytes(footprint.driver.value)} for {sequences}, but"
            f" {derived.prepared.device.name} has {format_bytes(footprint.usable_bytes)} to use."
            " `brimful plan` shows where it goes and what would make it fit; a shorter"
            " sequence_length, a smaller model or a smaller fixed plan.micro_batch would."
        )


def derive_with_memory(
    recipe: Recipe, device: Device, tracer: Tracer, facts: Facts = Facts()
) -> Derived:
    """Return the plan and the memory that it rests on, even if it does not fit."""
    prepared = prepare(
        recipe,
        device,
        vocabulary=facts.vocabulary,
        process_bytes=facts.process_bytes,
        model=facts.model,
    )
    total_steps = total_steps_of(recipe, facts.train_sequences)
    result = search(
        prepared, tracer, facts.rates, total_steps, factor=(facts.correction or Correction()).factor
    )
    footprint = result.memory.at(result.taken.micro_batch)
    plan = _plan(prepared, facts, result, footprint, total_steps)
    return Derived(plan, footprint, result.largest, prepared, result.memory)


def _plan(
    prepared: Prepared,
    facts: Facts,
    result: SearchResult,
    footprint: Footprint,
    total_steps: int | None,
) -> Plan:
    recipe, device, choices, taken = (
        prepared.recipe,
        prepared.device,
        prepared.choices,
        result.taken,
    )
    predicted = _peaks(footprint, device, compiled=taken.compiled) | _times(prepared, facts, taken)
    terms = dict(footprint.terms)
    if device.kind != "cpu":
        for outside in ("CUDA context and libraries", "process"):
            terms.pop(outside, None)
    time_terms: dict[str, float] = {}
    evaluation_share = threads = None
    if taken.time is not None:
        seconds = predicted["step_time_s"].value
        time_terms = {
            name: each * seconds / taken.time.seconds for name, each in taken.time.terms.items()
        }
        evaluation_share = _evaluation_share(recipe, taken, taken.time)
    if device.kind == "cpu":
        threads = device.threads if recipe.plan.threads == "auto" else recipe.plan.threads
    return Plan(
        recipe=recipe.name,
        device=device.to_json(),
        choices=(
            choices["precision"],
            result.choices["micro_batch"],
            result.choices["compile"],
            choices["loss_chunk"],
            choices["attention"],
            result.choices["recompute"],
            choices["optimizer"],
            choices["loader_workers"],
            choices["packing"],
        ),
        micro_batches=split(recipe.effective_batch, taken.micro_batch),
        precision=str(choices["precision"].value),
        attention=str(choices["attention"].value),
        recompute=taken.recompute,
        compile=taken.compiled,
        optimizer=str(choices["optimizer"].value),
        packing=str(choices["packing"].value),
        loss_chunk=int(choices["loss_chunk"].value),
        loader_workers=int(choices["loader_workers"].value),
        threads=threads,
        parameters=prepared.model.parameters or footprint.parameters,
        sequence_length=recipe.sequence_length,
        total_steps=total_steps,
        predicted=predicted,
        memory_terms=terms,
        time_terms=time_terms,
        evaluation_share=evaluation_share,
        correction=(facts.correction or Correction()).factor,
        rates_basis="" if facts.rates is None else basis_of(facts.rates, device),
    )


def _evaluation_share(recipe: Recipe, taken: Candidate, time: StepTime) -> float | None:
    """Return the time of scoring a sequence over the time of training on it."""
    sequence_s = time.evaluation_s / (EVALUATION_FACTOR * taken.micro_batch)
    return sequence_s / (time.seconds / recipe.effective_batch) or None


def _times(prepared: Prepared, facts: Facts, taken: Candidate) -> dict[str, Prediction]:
    """Return step time, throughput and MFU, with the interval of the rates or of earlier runs on
    the device.
    """
    if taken.time is None or facts.rates is None:
        return {}
    recipe, device, correction = prepared.recipe, prepared.device, facts.correction or Correction()
    low, high = facts.rates.share
    seconds = taken.time.seconds
    basis = f"every operator's arithmetic and bytes; {facts.rates.source}"
    if correction.runs:
        low, high = correction.low / correction.factor, correction.high / correction.factor
        basis += (
            f"; corrected by {correction.runs} earlier run{'s' * (correction.runs > 1)} on this"
            " device"
        )
    peak = device.dense_flop_per_s.get(str(prepared.choices["precision"].value))
    # Nothing is faster than the device's matrix units.
    least_s = taken.time.model_flop / peak if peak else 0.0
    step = Prediction(
        max(seconds, least_s), max(low * seconds, least_s), max(high * seconds, least_s), basis
    )
    tokens = recipe.effective_batch * recipe.sequence_length
    predicted = {
        "step_time_s": step,
        "tokens_per_s": Prediction(
            tokens / step.value, tokens / step.high, tokens / step.low, "from the step time"
        ),
    }
    if peak:
        flop = taken.time.model_flop
        value, low, high = (flop / (each * peak) for each in (step.value, step.high, step.low))
        basis = (
            "forward and backward FLOPs, causal attention counted by half, nothing computed twice,"
            f" of {peak / 1e12:,.4g} TFLOP/s dense"
        )
        predicted["mfu"] = Prediction(value, low, high, basis)
    return predicted


def _peaks(footprint: Footprint, device: Device, *, compiled: bool) -> dict[str, Prediction]:
    """Return the peaks that a run will measure: torch's allocator on CUDA, the process on a CPU."""
    peaks = {"peak_memory_bytes": footprint.driver if device.kind == "cpu" else footprint.reserved}
    if device.kind != "cpu":
        peaks |= {
            "allocated_memory_bytes": footprint.allocated,
            "device_memory_bytes": footprint.driver,
        }
    note = "; of the step without compiling, which usually takes less" if compiled else ""
    return {name: replace(peak, basis=peak.basis + note) for name, peak in peaks.items()}


def total_steps_of(recipe: Recipe, train_sequences: int | None) -> int | None:
    """Return the number of optimizer steps of a run; None where it needs the number of training
    sequences and that is unknown.
    """
    if recipe.training.steps is not None:
        return recipe.training.steps
    if recipe.training.tokens is not None:
        return max(
            1, round(recipe.training.tokens / (recipe.effective_batch * recipe.sequence_length))
        )
    if train_sequences is None or recipe.training.epochs is None:
        return None
    return max(1, round(recipe.training.epochs * train_sequences / recipe.effective_batch))
