"""Plan = derive(Recipe, Device): choices with reasons, the micro-batch from traced memory, time from a share of the matrix rate.

Everything the user fixed in the recipe's `plan` section is respected. The recipe's effective batch is never changed.
"""

from dataclasses import dataclass, replace

from brimful.base.errors import PlanError
from brimful.base.units import format_bytes
from brimful.hardware.device import Device
from brimful.model.description import training_flop_per_token
from brimful.planning.choices import FIXED, compile_choice
from brimful.planning.memory import Footprint
from brimful.planning.plan import Choice, Plan, Prediction
from brimful.planning.specs import ModelFacts
from brimful.planning.survey import Memory, Prepared, Tracer, prepare
from brimful.recipe import ModelRecipe, Recipe

MICRO_BATCH_TOKENS = {"cpu": 2048, "mps": 16_384, "cuda": 65_536}
"""Larger micro-batches bring no speed (assumption for GPUs; on CPUs caches favour small ones)."""
EFFICIENCY = {"cpu": (0.25, 0.55, 0.85), "mps": (0.1, 0.3, 0.6), "cuda": (0.08, 0.35, 0.6)}
"""Low, expected, high share of the matrix rate that a whole step reaches. Small models lie low, see PERFORMANCE facts in docs/log.md."""


@dataclass(frozen=True)
class Facts:
    """What is known beside recipe and device, each better than the guess made without it.

    Attributes:
        vocabulary: Real size of the tokenizer.
        train_sequences: Sequences in one epoch.
        process_bytes: Memory this process holds before the model exists (CPU only).
        model: The model's facts, where they were looked up before.
    """

    vocabulary: int | None = None
    train_sequences: int | None = None
    process_bytes: int = 0
    model: ModelFacts | None = None


@dataclass(frozen=True)
class Derived:
    """A plan with the memory it rests on.

    Attributes:
        plan: The plan; on a device where nothing fits, with one sequence at a time.
        footprint: Of the plan's micro-batch.
        largest: The largest micro-batch that surely fits, up to the effective batch; 0 where none does.
        prepared: What was decided before memory was looked at.
        memory: Footprints of every micro-batch.
    """

    plan: Plan
    footprint: Footprint
    largest: int
    prepared: Prepared
    memory: Memory


def derive(recipe: Recipe, device: Device, tracer: Tracer, facts: Facts = Facts()) -> Plan:
    """How `recipe` runs on `device`.

    Raises:
        PlanError: it does not fit, not even one sequence at a time.
    """
    derived = derive_with_memory(recipe, device, tracer, facts)
    refuse_what_cannot_fit(derived)
    return derived.plan


def refuse_what_cannot_fit(derived: Derived) -> None:
    """Raises PlanError with both numbers and a way out where the plan's micro-batch does not fit; doubt is no refusal."""
    footprint, recipe = derived.footprint, derived.prepared.recipe
    if footprint.verdict == "does not fit":
        sequences = f"{footprint.micro_batch} sequence{'s' * (footprint.micro_batch != 1)} of {recipe.sequence_length} tokens"
        raise PlanError(
            f"{recipe.name} needs about {format_bytes(footprint.driver.value)} for {sequences}, but {derived.prepared.device.name} has "
            f"{format_bytes(footprint.usable_bytes)} to use. `brimful plan` shows where it goes and what would make it fit; "
            "a shorter sequence_length, a smaller model or a smaller fixed plan.micro_batch would."
        )


def derive_with_memory(recipe: Recipe, device: Device, tracer: Tracer, facts: Facts = Facts()) -> Derived:
    """The plan and the memory it rests on, also where it does not fit."""
    prepared = prepare(recipe, device, vocabulary=facts.vocabulary, process_bytes=facts.process_bytes, model=facts.model)
    recompute, memory, largest = _recomputation(prepared, tracer)
    micro = _micro_batch(prepared, memory, largest)
    footprint = memory.at(int(micro.value))
    plan = _plan(prepared, facts, [micro, recompute], footprint)
    return Derived(plan, footprint, largest, prepared, memory)


def _plan(prepared: Prepared, facts: Facts, memory_choices: list[Choice], footprint: Footprint) -> Plan:
    recipe, device, choices = prepared.recipe, prepared.device, prepared.choices
    micro, recompute = memory_choices
    total_steps = total_steps_of(recipe, facts.train_sequences)
    step_time = _step_time(recipe, device, prepared.model.vocabulary, str(choices["precision"].value))
    compiled = compile_choice(recipe, device, step_time, total_steps)
    predicted = _peaks(footprint, device, compiled=bool(compiled.value)) | ({"step_time_s": step_time} if step_time else {})
    if step_time and total_steps:
        whole = (step_time.value * total_steps, step_time.low * total_steps, step_time.high * total_steps)
        predicted["training_time_s"] = Prediction(*whole, basis=f"{total_steps:,} steps; without compiling, evaluation and checkpoints")
    outside = () if device.kind == "cpu" else ("CUDA context and libraries", "process")
    return Plan(
        recipe=recipe.name, device=device.to_json(),
        choices=(
            choices["precision"], micro, compiled, choices["loss_chunk"], choices["attention"], recompute,
            Choice("optimizer", "fused", "one pass over weights, gradients and states", "foreach"),
        ),
        micro_batches=split(recipe.effective_batch, int(micro.value)), precision=str(choices["precision"].value), attention=str(choices["attention"].value),
        recompute=bool(recompute.value), compile=bool(compiled.value), fused_optimizer=True, loss_chunk=int(choices["loss_chunk"].value),
        threads=None if device.kind != "cpu" else (device.threads if recipe.plan.threads == "auto" else recipe.plan.threads),
        parameters=prepared.model.parameters or footprint.parameters, sequence_length=recipe.sequence_length, total_steps=total_steps, predicted=predicted,
        memory_terms={name: size for name, size in footprint.terms.items() if name not in outside},
    )  # fmt: skip


def _peaks(footprint: Footprint, device: Device, *, compiled: bool) -> dict[str, Prediction]:
    """What will be measured: torch's allocator on CUDA, the process on a CPU."""
    peaks = {"peak_memory_bytes": footprint.driver if device.kind == "cpu" else footprint.reserved}
    if device.kind != "cpu":
        peaks |= {"allocated_memory_bytes": footprint.allocated, "device_memory_bytes": footprint.driver}
    note = "; of the step without compiling, which usually takes less" if compiled else ""
    return {name: replace(peak, basis=peak.basis + note) for name, peak in peaks.items()}


def _recomputation(prepared: Prepared, tracer: Tracer) -> tuple[Choice, Memory, int]:
    """Recompute only where the step does not fit otherwise; the memory that goes with it, and the largest micro-batch that fits."""
    wanted = prepared.recipe.plan.recompute
    memories = {on: prepared.memory(tracer, recompute=on) for on in ((False, True) if wanted == "auto" else (wanted,))}
    if wanted != "auto":
        return Choice("recompute", wanted, FIXED), memories[wanted], _largest(prepared, memories[wanted])
    largest = _largest(prepared, memories[False])
    if largest or memories[False].verdict(1) == "uncertain":
        reason = "activations fit; recomputing them would cost about a third more time"
        return Choice("recompute", False, reason, True), memories[False], largest
    if _standing_bytes(memories[False].at(1)) > prepared.target.usable_bytes:
        return Choice("recompute", False, "weights and optimizer states alone do not fit, whatever becomes of activations", True), memories[False], 0
    largest = _largest(prepared, memories[True])
    reason = "without it not even one sequence fits" + ("" if largest else ", with it neither")
    return Choice("recompute", True, reason, False), memories[True], largest


def _standing_bytes(footprint: Footprint) -> int:
    return sum(footprint.terms.get(name, 0) for name in ("weights", "adapters", "optimizer states"))


def _largest(prepared: Prepared, memory: Memory) -> int:
    """Up to what brings speed only; larger ones are shown in tables but not looked for here."""
    return memory.largest(_fast_enough(prepared))


def _fast_enough(prepared: Prepared) -> int:
    recipe = prepared.recipe
    return min(recipe.effective_batch, max(1, MICRO_BATCH_TOKENS[prepared.device.kind] // recipe.sequence_length))


def total_steps_of(recipe: Recipe, train_sequences: int | None) -> int | None:
    """Optimizer updates of the whole run; None where that needs the number of training sequences and it is unknown."""
    if recipe.training.steps is not None:
        return recipe.training.steps
    if recipe.training.tokens is not None:
        return max(1, round(recipe.training.tokens / (recipe.effective_batch * recipe.sequence_length)))
    if train_sequences is None or recipe.training.epochs is None:
        return None
    return max(1, round(recipe.training.epochs * train_sequences / recipe.effective_batch))


def split(effective_batch: int, micro_batch: int) -> tuple[int, ...]:
    """Micro-batches that add up exactly to the effective batch; only the last one may be smaller."""
    full, rest = divmod(effective_batch, micro_batch)
    return (micro_batch,) * full + ((rest,) if rest else ())


def evened(effective_batch: int, largest: int) -> int:
    """The micro-batch of at most `largest` that needs as few passes and leaves them as equal as can be."""
    passes = -(-effective_batch // largest)
    return -(-effective_batch // passes)


def _micro_batch(prepared: Prepared, memory: Memory, largest: int) -> Choice:
    recipe = prepared.recipe
    if recipe.plan.micro_batch != "auto":
        return Choice("micro_batch", min(recipe.plan.micro_batch, recipe.effective_batch), FIXED)
    size = evened(recipe.effective_batch, max(1, largest))
    if largest == 0:
        footprint = memory.at(1)
        numbers = f"{format_bytes(footprint.driver.value)} of {format_bytes(footprint.usable_bytes)}"
        reason = f"one sequence, and even that {'may not fit' if footprint.verdict == 'uncertain' else 'does not fit'}: {numbers}"
    elif largest < _fast_enough(prepared):
        reason = f"{largest} sequences fit {format_bytes(prepared.target.usable_bytes)}, one more may not"
    elif size == recipe.effective_batch:
        reason = "the whole effective batch at once"
    else:
        reason = f"{size * recipe.sequence_length:,} tokens keep the device busy"
    return Choice("micro_batch", size, reason)


def _step_time(recipe: Recipe, device: Device, vocabulary: int, precision: str) -> Prediction | None:
    if not isinstance(recipe.model, ModelRecipe):
        return None
    rate_name = "tf32" if precision == "fp32" and device.abilities.tf32 else precision
    rate = device.dense_flop_per_s.get(rate_name)
    if rate is None:
        return None
    tokens = recipe.effective_batch * recipe.sequence_length
    flop = tokens * training_flop_per_token(recipe.model, vocabulary, recipe.sequence_length)
    low, expected, high = EFFICIENCY[device.kind]
    basis = f"{flop / 1e9:,.0f} GFLOP at {expected:.0%} of {rate / 1e9:,.0f} GFLOP/s"
    return Prediction(flop / (rate * expected), flop / (rate * high), flop / (rate * low), basis=basis)
