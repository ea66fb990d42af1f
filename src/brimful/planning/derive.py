"""Plan = derive(Recipe, Device): a simple, honest first planner.

Memory and time come from closed forms with wide intervals, and say so. Everything the user fixed in the recipe's `plan`
section is respected. The recipe's effective batch is never changed.
"""

import bisect
from dataclasses import dataclass

from brimful.base.errors import PlanError
from brimful.base.units import MIB, format_bytes, format_duration
from brimful.hardware.device import Device
from brimful.model.description import count_parameters, training_flop_per_token
from brimful.planning.plan import Choice, Plan, Prediction
from brimful.recipe import Recipe

BF16_PAYS_FROM = 1.3
"""On a CPU without bf16 instructions: measured bf16 over fp32 matrix rate from which casting pays (assumption)."""
MICRO_BATCH_TOKENS = {"cpu": 2048, "mps": 16_384, "cuda": 65_536}
"""Larger micro-batches bring no speed (assumption for GPUs; on CPUs caches favour small ones)."""
LOSS_CHUNK_BYTES = {"cpu": 8 * MIB, "mps": 64 * MIB, "cuda": 256 * MIB}
"""fp32 logits of one chunk of the loss."""
EFFICIENCY = {"cpu": (0.25, 0.55, 0.85), "mps": (0.1, 0.3, 0.6), "cuda": (0.08, 0.35, 0.6)}
"""Low, expected, high share of the matrix rate that a whole step reaches. Small models lie low, see PERFORMANCE facts in docs/log.md."""
MEMORY_LOW, MEMORY_HIGH = 0.7, 1.4
USABLE_SHARE = 0.9
BLOCK_ATTENTION_TOKENS = {"bf16": range(2, 1025), "fp32": range(65, 1025)}
"""On a CPU: sequence lengths at which attention in blocks is faster than the fused kernel, by precision (docs/log.md)."""
COMPILE_SECONDS = 12.0
"""One graph serves all blocks, so depth does not matter (measured 8 s of CPU time, 7 to 12 s of wall time)."""
COMPILE_GAIN = {"cpu": 1.08, "mps": 1.0, "cuda": 1.3}
"""Speed of a compiled step over an eager one: CPU measured (benchmarks/pretrain_cpu.py); CUDA from published figures (+16 to +85 %)."""
ACCELERATOR_LIBRARIES_BYTES = {"cpu": 0, "mps": 0, "cuda": 600 * MIB}


@dataclass(frozen=True)
class Facts:
    """What is known beside recipe and device, each better than the guess made without it.

    Attributes:
        vocabulary: Real size of the tokenizer.
        train_sequences: Sequences in one epoch.
        process_bytes: Memory this process holds before the model exists (CPU only).
    """

    vocabulary: int | None = None
    train_sequences: int | None = None
    process_bytes: int = 0


def derive(recipe: Recipe, device: Device, facts: Facts = Facts()) -> Plan:
    """How `recipe` runs on `device`.

    Raises:
        PlanError: not even one sequence fits into the device's memory.
    """
    vocabulary = facts.vocabulary or recipe.tokenizer.vocabulary or 256
    precision = _precision(recipe, device)
    chunk = _loss_chunk(recipe, device, vocabulary)
    micro = _micro_batch(recipe, device, facts, vocabulary, str(precision.value), int(chunk.value))
    terms = _memory_terms(recipe, device, facts, vocabulary, str(precision.value), int(chunk.value), int(micro.value))
    total_steps = total_steps_of(recipe, facts.train_sequences)
    step_time = _step_time(recipe, device, vocabulary, str(precision.value))
    compiled = _compile(recipe, device, step_time, total_steps)
    predicted = {"peak_memory": _peak_memory(terms)} | ({"step_time": step_time} if step_time else {})
    if step_time and total_steps:
        whole = (step_time.value * total_steps, step_time.low * total_steps, step_time.high * total_steps)
        predicted["training_time"] = Prediction(*whole, basis=f"{total_steps:,} steps; without compiling, evaluation and checkpoints")
    units = {"peak_memory": "_bytes", "step_time": "_s", "training_time": "_s"}
    micro_batches = split(recipe.effective_batch, int(micro.value))
    recompute = recipe.plan.recompute if recipe.plan.recompute != "auto" else False
    attention = _attention(recipe, device, str(precision.value))
    threads = None if device.kind != "cpu" else (device.threads if recipe.plan.threads == "auto" else recipe.plan.threads)
    choices = (
        precision, micro, compiled, chunk,
        attention,
        Choice("recompute", recompute, _said(recipe.plan.recompute) or "activations fit; recomputing them would cost about a third more time", True),
        Choice("optimizer", "fused", "one pass over weights, gradients and states", "foreach"),
    )  # fmt: skip
    return Plan(
        recipe=recipe.name, device=device.to_json(), choices=choices, micro_batches=micro_batches, precision=str(precision.value), attention=str(attention.value),
        recompute=bool(recompute), compile=bool(compiled.value), fused_optimizer=True, loss_chunk=int(chunk.value), threads=threads,
        parameters=count_parameters(recipe.model, vocabulary, recipe.context).total, sequence_length=recipe.sequence_length, total_steps=total_steps,
        predicted={name + units[name]: value for name, value in predicted.items()}, memory_terms=terms,
    )  # fmt: skip


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


def _said(value: object) -> str | None:
    return None if value == "auto" else "fixed by the user"


def _precision(recipe: Recipe, device: Device) -> Choice:
    if recipe.plan.precision != "auto":
        return Choice("precision", recipe.plan.precision, "fixed by the user")
    if device.kind == "cpu":
        return _cpu_precision(device)
    if device.kind == "mps":
        return Choice("precision", "fp32", "16-bit training on Apple GPUs is not measured yet", "bf16")
    if device.abilities.bf16:
        return Choice("precision", "bf16", "native on this device; needs no loss scaling", "fp32")
    if device.abilities.fp16:
        return Choice("precision", "fp16", "no native bf16; matrix units for fp16, with loss scaling and a gradient-norm tripwire", "fp32")
    return Choice("precision", "fp32", "no 16-bit matrix units", "fp16")


def _cpu_precision(device: Device) -> Choice:
    rates = device.dense_flop_per_s
    if "bf16" not in rates or "fp32" not in rates:
        return Choice("precision", "fp32", "matrix rates of this CPU were not measured", "bf16")
    ratio = rates["bf16"] / rates["fp32"]
    measured = f"bf16 matrix products measured {ratio:.1f}x as fast as fp32 here"
    if device.abilities.bf16:
        return Choice("precision", "bf16", f"this CPU has bf16 instructions; {measured}", "fp32")
    if ratio >= BF16_PAYS_FROM:
        return Choice("precision", "bf16", measured, "fp32")
    return Choice("precision", "fp32", measured, "bf16")


def _attention(recipe: Recipe, device: Device, precision: str) -> Choice:
    if recipe.plan.attention != "auto":
        return Choice("attention", recipe.plan.attention, "fixed by the user")
    if device.kind == "cpu" and recipe.sequence_length in BLOCK_ATTENTION_TOKENS.get(precision, ()):
        return Choice("attention", "brimful_blocks", "at this length batched products over blocks beat torch's fused CPU kernel", "sdpa")
    return Choice("attention", "sdpa", "torch's fused scaled-dot-product attention; no score matrix is stored", "eager")


def _loss_chunk(recipe: Recipe, device: Device, vocabulary: int) -> Choice:
    if recipe.plan.loss_chunk != "auto":
        return Choice("loss_chunk", recipe.plan.loss_chunk, "fixed by the user")
    fits = LOSS_CHUNK_BYTES[device.kind] // (4 * vocabulary)
    tokens = max(64, min(1 << (max(fits, 1).bit_length() - 1), 16_384))
    return Choice(
        "loss_chunk", tokens, f"tokens per piece of the loss: {format_bytes(4 * vocabulary * tokens)} of logits at a time, never all of them"
    )


def _micro_batch(recipe: Recipe, device: Device, facts: Facts, vocabulary: int, precision: str, chunk: int) -> Choice:
    def needed(size: int) -> int:
        return sum(_memory_terms(recipe, device, facts, vocabulary, precision, chunk, size).values())

    available = int(USABLE_SHARE * (device.free_memory_bytes or device.memory_bytes)) + facts.process_bytes
    if recipe.plan.micro_batch != "auto":
        size = min(recipe.plan.micro_batch, recipe.effective_batch)
        return Choice("micro_batch", size, "fixed by the user")
    if MEMORY_LOW * needed(1) > available:
        raise PlanError(
            f"{recipe.name} needs about {format_bytes(needed(1))} for one sequence of {recipe.sequence_length} tokens, but {device.name} has "
            f"{format_bytes(available)} to use. Shorten sequence_length or make the model smaller (model.layers, model.width)."
        )
    fast_enough = min(recipe.effective_batch, max(1, MICRO_BATCH_TOKENS[device.kind] // recipe.sequence_length))
    fits = bisect.bisect_right(range(1, fast_enough + 1), available, key=needed)
    size = evened(recipe.effective_batch, max(1, fits))
    if fits == 0:
        reason = f"one sequence: its estimate, {format_bytes(needed(1))}, is above the {format_bytes(available)} there are, but may well be too high"
    elif fits < fast_enough:
        reason = f"the estimate of {fits} sequences fits {format_bytes(available)}, that of one more does not"
    elif size == recipe.effective_batch:
        reason = "the whole effective batch at once"
    else:
        reason = f"{size * recipe.sequence_length:,} tokens keep the device busy"
    return Choice("micro_batch", size, reason)


def _memory_terms(recipe: Recipe, device: Device, facts: Facts, vocabulary: int, precision: str, chunk: int, micro_batch: int) -> dict[str, int]:
    """Bytes at the peak. fp32 weights, gradients and AdamW states; activations as stored for the backward pass."""
    parameters = count_parameters(recipe.model, vocabulary, recipe.context).total
    half = precision != "fp32"
    tokens = micro_batch * recipe.sequence_length
    per_token_and_layer = (16 * recipe.model.width + 4 * recipe.model.resolved_mlp_width) * (2 if half else 4)
    hidden_bytes = tokens * recipe.model.width * (2 if half else 4)
    return {
        "process": facts.process_bytes if device.kind == "cpu" else ACCELERATOR_LIBRARIES_BYTES[device.kind],
        "weights": 4 * parameters + (2 * parameters if half else 0),
        "gradients": 4 * parameters,
        "optimizer states": 8 * parameters,
        "activations": tokens * recipe.model.layers * per_token_and_layer + 2 * hidden_bytes,
        "loss and logits": 3 * 4 * min(chunk, tokens) * vocabulary + 4 * vocabulary * recipe.model.width,
    }


def _peak_memory(terms: dict[str, int]) -> Prediction:
    total = sum(terms.values())
    return Prediction(total, MEMORY_LOW * total, MEMORY_HIGH * total, basis="closed form, not traced")


def _step_time(recipe: Recipe, device: Device, vocabulary: int, precision: str) -> Prediction | None:
    rate_name = "tf32" if precision == "fp32" and device.abilities.tf32 else precision
    rate = device.dense_flop_per_s.get(rate_name)
    if rate is None:
        return None
    tokens = recipe.effective_batch * recipe.sequence_length
    flop = tokens * training_flop_per_token(recipe.model, vocabulary, recipe.sequence_length)
    low, expected, high = EFFICIENCY[device.kind]
    basis = f"{flop / 1e9:,.0f} GFLOP at {expected:.0%} of {rate / 1e9:,.0f} GFLOP/s"
    return Prediction(flop / (rate * expected), flop / (rate * high), flop / (rate * low), basis=basis)


def _compile(recipe: Recipe, device: Device, step_time: Prediction | None, total_steps: int | None) -> Choice:
    if recipe.plan.compile != "auto":
        return Choice("compile", recipe.plan.compile, "fixed by the user")
    if not device.abilities.compile:
        return Choice("compile", False, "torch.compile has no compiler to use here")
    if step_time is None or total_steps is None:
        return Choice("compile", False, "the length of the run is not known well enough to tell whether it pays", True)
    cost_s = COMPILE_SECONDS
    saved_s = step_time.value * total_steps * (1 - 1 / COMPILE_GAIN[device.kind])
    told = f"compiling costs about {format_duration(cost_s)} and would save about {format_duration(saved_s)}"
    return Choice("compile", saved_s > 1.5 * cost_s, told, not saved_s > 1.5 * cost_s)
