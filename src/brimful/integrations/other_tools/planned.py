"""A job of another tool on a device: its step traced, its memory and time predicted."""

import math
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace

import numpy as np

from brimful.base.console import Say, silent
from brimful.base.env import cache_folder
from brimful.base.errors import PlanError
from brimful.base.garbage import collector_off
from brimful.base.types import JsonDict
from brimful.base.units import format_bytes
from brimful.hardware.device import Device
from brimful.hardware.rates import Rates
from brimful.integrations.other_tools.job import Sampling, TrainingJob
from brimful.integrations.other_tools.step import LINEAR_LAYERS, ForeignStep
from brimful.integrations.other_tools.tools.trl import PEFT_LINEAR, USUAL_TARGETS
from brimful.model import catalog
from brimful.planning.choices import ADAPTED_EXPERTS
from brimful.planning.job import ORDER
from brimful.planning.kv_cache import LOGITS_BYTES, kv_shape
from brimful.planning.memory import (
    RESERVED_SHARE,
    Footprint,
    Replayed,
    Replays,
    footprint,
    terms_at,
)
from brimful.planning.plan import Prediction, Verdict, verdict_on
from brimful.planning.ragged import PADDED_FRACTIONS
from brimful.planning.specs import ModelFacts, facts_of_values
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.planning.survey import Memory
from brimful.planning.target import Target, target_of, with_communication
from brimful.planning.timing import WAITS, UnknownRate, share_of, step_time
from brimful.planning.trace import KINDS
from brimful.planning.work import IrregularWork
from brimful.rehearsal.store import StoredTraces, canonical_step

MASTER_BYTES = 8
"""Bytes that DeepSpeed adds for each 16-bit weight to the step without it: an fp32 copy, and two
states in fp32 instead of 16 bits; and accelerate's FSDP: weight, gradient and states in fp32.
"""
DECLARED_SHARE = (0.924, 1.083)
"""Factors by which the low and the high end of a GPU's predicted peaks are widened, for what a file
does not say. Chosen so that 90 % of 65 published jobs of five sources lie inside; with each source
left out of the choice 88 % do (benchmarks/declared_jobs.py).
"""
PERHAPS_SHARE = 0.5
"""Share that is expected of memory terms that may be there in part, whole, or not at all
(`PartlyHeld.perhaps`). Chosen on eleven published peaks of torchtune: the median error is 8 % with
it, and 17 % if the terms are expected whole (benchmarks/declared_jobs.py).
"""
MOST_TRIED = 64
"""Micro-batches up to this are tried for the largest that fits."""
SHORT_ROW = 64
"""Tokens of a short row; the longest that fits is found to as many."""
FLASH2, EXPANDED = "brimful_fa2", "brimful_expanded"
STANDING = ("weights", "adapters", "optimizer states", "process")
"""Terms of a step's memory that stay between steps."""
ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash2": FLASH2, "expanded": EXPANDED}


@dataclass(frozen=True)
class LookedUpModel:
    """The model of a job.

    Attributes:
        facts: Its shape.
        published: dtype of its published weights; None where the catalog does not know it.
    """

    facts: ModelFacts
    published: str | None


@dataclass(frozen=True)
class SampledJob:
    """Drawing answers between steps.

    Attributes:
        about: How many at once, by what.
        memory: Memory on the device meanwhile.
        verdict: Whether it fits.
    """

    about: str
    memory: Prediction
    verdict: Verdict


@dataclass(frozen=True)
class PlannedJob:
    """A job on a device.

    Attributes:
        device: The device.
        footprint: Memory of the micro-batch as the file has it, with full rows; its low end is of
            short ones where rows are padded.
        largest: The largest micro-batch that surely fits; None where it was not searched for, and
            at most MOST_TRIED.
        step_s: Seconds of an optimizer step; None where no time is predicted.
        tokens: Tokens of an optimizer step, rows counted as full.
        longest_row: Tokens of the longest padded rows that surely fit, where full ones may not; 0
            where none do.
        sampled: What draws answers between steps; None: nothing does.
        exceeded: Positions that the model was made for, where rows may be longer.
    """

    device: Device
    footprint: Footprint
    largest: int | None
    step_s: Prediction | None
    tokens: int
    longest_row: int | None = None
    sampled: SampledJob | None = None
    exceeded: int | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether all of it fits. A file's limit of tokens is no length: rows may be shorter."""
        step = "uncertain" if self.longest_row else self.footprint.verdict
        return step if self.sampled is None else max(step, self.sampled.verdict, key=ORDER.index)

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        step = self.step_s
        return {
            "device": self.device.name,
            "verdict": self.verdict,
            "memory": self.footprint.to_json(),
            "largest_micro_batch": self.largest,
            "longest_row_tokens": self.longest_row,
            "positions_exceeded": self.exceeded,
            **({} if self.sampled is None else {"sampling": asdict(self.sampled)}),
            "step_time_s": None if step is None else [step.value, step.low, step.high],
            "tokens_per_step": self.tokens,
        }


@dataclass(frozen=True)
class UnplannedJob:
    """A device on which nothing can be said of a job, and why."""

    device: Device
    reason: str

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        return {"device": self.device.name, "verdict": "cannot be estimated", "reason": self.reason}


def look_up(name: str, *, trust_custom_code: bool = False) -> LookedUpModel:
    """Return the model of a job, from the catalog, a config.json or the hub.

    Raises:
        PlanError: it is unknown, or no causal language model.
    """
    row = catalog.find(name)
    if row is not None:
        facts = facts_of_values(dict(row.config), row.parameters)
        return LookedUpModel(facts, row.published_dtype)
    config = catalog.config_of_model(name, trust_custom_code=trust_custom_code)
    values = config.to_dict()
    published = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(
        str(values.get("dtype") or values.get("torch_dtype")).removeprefix("torch.")
    )
    return LookedUpModel(facts_of_values(values, None), published)


def step_of(job: TrainingJob, model: LookedUpModel, device: Device) -> ForeignStep:
    """Return the step of a job as it can be traced.

    Raises:
        PlanError: the published type of the weights is not known, rows are longer than the table of
            positions that the model has, or the device cannot run it.
    """
    weights = job.weights if job.weights != "published" else model.published
    if weights is None:
        raise PlanError(
            f"the type of {job.model}'s published weights is not known, and the file leaves it to"
            " that; name a type."
        )
    context = _exceeded(job, model)
    if context is not None and not _rotates(str(model.facts.config["model_type"])):
        raise PlanError(
            f"rows of {job.sequence_length} tokens are above the {context} positions that"
            f" {job.model} reads."
        )
    attention = job.attention
    if attention == "flash2" and not device.abilities.flash_attention:
        raise PlanError(f"the flash-attn package does not run on {device.name}; sdpa does.")
    if attention == "sdpa" and not catalog.has_fused_attention(model.facts.config["model_type"]):
        attention = "eager"  # as transformers does
    return ForeignStep(
        config_json=canonical(model.facts.config),
        weights=weights,  # type: ignore[arg-type]
        autocast=job.autocast,
        adapter=_lora_of(job, model),
        quantize=job.quantize,
        upcast=job.upcast == "all",
        fp32_norms=job.upcast == "norms",
        fp32_ends=job.upcast == "ends",
        chain=job.loss,
        recompute=job.recompute != "none",
        offload=job.offloads,
        cuda=device.kind == "cuda",
        flash=device.abilities.flash_attention and attention != "eager",
        attention=ATTENTION[attention],
        optimizer=job.optimizer,
        quirks=replace(job.kernels, reentrant=job.recompute == "reentrant" and not job.offloads),
        accumulates=job.accumulation > 1,
        clips=job.clips,
        **_rows_of(job),
    )


def _exceeded(job: TrainingJob, model: LookedUpModel) -> int | None:
    """Return the positions that a model was made for, where rows may be longer."""
    context = model.facts.context
    return context if context is not None and job.sequence_length > context else None


def _rotates(model_type: str) -> bool:
    """Return whether a model turns positions into angles, which any row has."""
    from transformers import CONFIG_MAPPING  # noqa: PLC0415 - takes a second

    kinds = CONFIG_MAPPING[model_type].__mro__ if model_type in CONFIG_MAPPING else ()
    return any("rope_parameters" in getattr(kind, "__annotations__", {}) for kind in kinds)


def _rows_of(job: TrainingJob) -> JsonDict:
    """Length of a traced row, and whether it has a mask. Joined examples are kept apart by a mask
    over the whole row, unless a flash kernel does it by their lengths.
    """
    if job.rows == "joined" and job.attention != "flash2":
        return {"sequence_length": job.sequence_length * job.micro_batch, "padded": True}
    has_mask = job.rows == "padded" and job.micro_batch > 1 and job.attention != "expanded"
    return {"sequence_length": job.sequence_length, "padded": has_mask}


def _lora_of(job: TrainingJob, model: LookedUpModel) -> Lora | None:
    if job.adapter is None:
        return None
    # Tools that look for linear layers themselves find no experts, which are tensors.
    if job.adapter.targets == "all-linear" and model.facts.config["model_type"] in ADAPTED_EXPERTS:
        return replace(job.adapter, targets=LINEAR_LAYERS)
    return with_peft_targets(job.adapter, model)


def with_peft_targets(adapter: Lora, model: LookedUpModel) -> Lora:
    """Return an adapter on the layers that peft chooses by the model's type, if it is asked to.

    Raises:
        PlanError: it chooses none.
    """
    from peft.utils.constants import (  # noqa: PLC0415 - brings torch
        TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL,
    )

    if adapter.targets == PEFT_LINEAR:
        return replace(adapter, targets="all-linear")
    kind = str(model.facts.config["model_type"])
    if adapter.targets != USUAL_TARGETS:
        return adapter
    if kind not in USUAL:
        raise PlanError(f"peft chooses no layers for model type {kind!r}: lora_target_modules.")
    return replace(adapter, targets=",".join(sorted(USUAL[kind])))


class JobTraces:
    """A Tracer of jobs: reads and stores traces and replays in the user's cache folder. No families
    of several lengths and ranks are made, as a job has one of each.
    """

    def __init__(self, progress: Say = silent) -> None:
        self._progress, self._folder = progress, cache_folder() / "traces"
        self._made: dict[StepSpec, tuple[StoredTraces, Replays]] = {}

    def __call__(self, spec: StepSpec) -> Replays:
        key = canonical_step(spec)
        if key not in self._made:
            self._progress("tracing the tool's step on tensors without values")
            with collector_off():
                # Teaches the tracer these steps.
                import brimful.integrations.other_tools.stand_ins  # noqa: F401, PLC0415

            stored = StoredTraces(key, self._folder)
            self._made[key] = (stored, Replays(stored, stored.read_known()))
        return self._made[key][1]

    def save(self) -> None:
        """Store the results of replays."""
        for stored, replays in self._made.values():
            stored.write_known(replays.known)


@contextmanager
def job_traces(progress: Say = silent) -> Iterator[JobTraces]:
    """Context of JobTraces that are saved at its end, also after an exception."""
    traces = JobTraces(progress)
    try:
        yield traces
    finally:
        traces.save()


def plan_job(
    job: TrainingJob,
    model: LookedUpModel,
    device: Device,
    traces: JobTraces,
    rates: Rates | None = None,
    *,
    process_bytes: int = 0,
    searches: bool = True,
    devices: int = 1,
) -> PlannedJob:
    """Predict memory and time of a job on a device.

    Args:
        job: Job as it was read.
        model: Looked up.
        device: Device to plan for.
        traces: Traces of steps.
        rates: Rates of the device; None for no time.
        process_bytes: Memory that this process holds already, on a CPU.
        searches: Whether the largest micro-batch that fits is looked for.
        devices: How many share the job, of which this is one.

    Raises:
        PlanError: the step cannot be traced, or not on this device.
    """
    whole, sampling = device, job.sampling
    if sampling is not None and not sampling.sleeps:
        left = round(device.memory_bytes * (1 - sampling.vllm_share))
        device = replace(device, memory_bytes=left)
    spec = step_of(job, model, device)
    is_one_row = job.rows == "joined" and job.attention != "flash2"
    rows = 1 if is_one_row else job.micro_batch
    target = _target(device, process_bytes, devices)
    memory = _memory(job, spec, target, traces)
    largest = None
    if searches and not is_one_row and job.held is None:
        of_several = replace(spec, padded=job.rows == "padded" and job.attention != "expanded")
        several = _memory(job, of_several, target, traces)
        largest = several.largest(max(MOST_TRIED, rows), "balanced")
    tokens = devices * job.micro_batch * job.accumulation * job.sequence_length
    is_hidden = job.held is not None and job.held.hides_time
    step_s = _step_time(job, spec, memory, rows, None if is_hidden else rates)
    replays = traces(spec)
    replayed = replays.at(rows, target.workspace_bytes)
    full, longest_row = _declared(in_part(job, memory.at(rows), replayed)), None
    if _may_be_short(job):

        def padded_to(length: int) -> Footprint:
            part = rows * length / job.sequence_length
            of_part = replays.at(part, target.workspace_bytes)
            return _declared(in_part(job, footprint(of_part, target, rows), of_part))

        short = padded_to(SHORT_ROW)
        full = _with_peaks(
            full,
            lambda name, old: replace(old, low=min(old.low, getattr(short, name).low)),
        )
        if full.verdict != "fits":
            lengths = range(SHORT_ROW, job.sequence_length, SHORT_ROW)
            too_long = bisect(
                lengths, False, key=lambda length: padded_to(length).verdict != "fits"
            )
            longest_row = SHORT_ROW * too_long
    sampled = None if sampling is None else _sampled(sampling, job, model, whole, full)
    exceeded = _exceeded(job, model)
    return PlannedJob(whole, full, largest, step_s, tokens, longest_row, sampled, exceeded)


def _may_be_short(job: TrainingJob) -> bool:
    """Whether rows may be shorter than the limit; of answers to one question some are as long."""
    is_rewarded = job.sampling is not None or job.loss.scored > 0
    return not is_rewarded and job.rows == "padded" and job.sequence_length > SHORT_ROW


def _sampled(
    sampling: Sampling, job: TrainingJob, model: LookedUpModel, device: Device, step: Footprint
) -> SampledJob:
    """Return what drawing answers takes, beside what the step leaves in memory."""
    element_bytes = 4 if job.weights == "fp32" else 2
    shape = kv_shape(SimpleNamespace(**model.facts.config))
    weights_bytes = step.terms.get("weights", 0)
    row_bytes = sampling.tokens * shape.bytes_per_token(element_bytes)
    standing = sum(step.terms.get(name, 0) for name in STANDING)
    if share := sampling.vllm_share:
        reserved = round(share * device.memory_bytes)
        own_bytes = 2 * step.parameters if job.quantize == "none" else weights_bytes
        room = (reserved - own_bytes) // row_bytes
        beside = standing - (weights_bytes if sampling.shares_weights else 0)
        about = (
            f"vLLM reserves {format_bytes(reserved)} ({share:g} of the device), room for the keys"
            f" and values of {max(0, room):,} answers of {sampling.tokens:,} tokens, and"
            f" {'gives it back' if sampling.sleeps else 'keeps it'} while the model trains"
        )
        least = beside + min(reserved, own_bytes + row_bytes)
        memory = Prediction(beside + reserved, least, beside + reserved, about)
        fits: Verdict = verdict_on(memory, target_of(device, 0, 0).usable_bytes)
        return SampledJob(about, memory, "does not fit" if room < 1 else fits)
    logits_bytes = shape.vocabulary * LOGITS_BYTES
    peak = standing + sampling.rows * (row_bytes + logits_bytes)
    short = standing + sampling.rows * (row_bytes // 4 + logits_bytes)
    about = (
        f"{sampling.rows:,} answers at once: {format_bytes(sampling.rows * row_bytes)} of keys and"
        f" values at {sampling.tokens:,} tokens each"
    )
    memory = Prediction(peak, short, round(peak + row_bytes * sampling.rows / shape.layers), about)
    return SampledJob(about, memory, verdict_on(memory, step.usable_bytes))


def in_part(job: TrainingJob, whole: Footprint, replayed: Replayed) -> Footprint:
    """Return the footprint of a device that holds a part of some terms. The low end has none of
    them, or the part that is known, and no buffer; the high one all, or that part. Its peak may be
    at another moment than the whole step's.

    Args:
        job: What is trained.
        whole: The footprint of a device that holds all.
        replayed: The step of that device.
    """
    held = job.held
    if held is None:
        return whole
    has_masters = held.has_masters and job.adapter is None and job.weights != "fp32"
    trace = replayed.trace
    masters = MASTER_BYTES * whole.trainable if has_masters else 0
    buffer_bytes = held.buffers(whole.terms.get("weights", 0))
    if held.copies_gradients:
        dtype = job.weights if job.adapter is None else job.adapter.dtype
        buffer_bytes += whole.trainable * (4 if dtype == "fp32" else 2)

    def terms(part: float, buffer_bytes: int, perhaps: float = 1.0) -> dict[str, int]:
        shares = {**dict.fromkeys(held.parts, part), **dict.fromkeys(held.on_host, 0.0)}
        shares |= dict.fromkeys(held.perhaps, perhaps)
        shares_K = np.array([shares.get(kind, 1.0) for kind in KINDS])
        sizes_S = np.rint(trace.sizes_S * shares_K[trace.kinds_S]).astype(trace.sizes_S.dtype)
        scaled = replace(trace, sizes_S=sizes_S)
        found = terms_at(scaled, int(scaled.live_E().argmax()))
        found["optimizer states"] += round(masters * shares.get("optimizer states", 1.0))
        found["communication buffers"] += buffer_bytes
        return {kind: size for kind, size in found.items() if size}

    expected = terms(held.expected, buffer_bytes, PERHAPS_SHARE)
    before = int(trace.live_E().max())
    least, most = (held.expected, held.expected) if held.is_known else (0.0, 1.0)
    none, every = (
        sum(terms(*each).values()) for each in ((least, 0, 0.0), (most, buffer_bytes, 1.0))
    )

    found = _with_peaks(
        whole,
        lambda name, old: replace(
            old,
            value=old.value + sum(expected.values()) - before,
            low=old.low * min(1.0, none / before),
            high=old.high + every - before,
        ),
    )
    outside = {name: size for name, size in whole.terms.items() if name not in KINDS}
    verdict = verdict_on(found.driver, whole.usable_bytes)
    return replace(found, terms={**expected, **outside}, verdict=verdict)


def _with_peaks(found: Footprint, change: Callable[[str, Prediction], Prediction]) -> Footprint:
    """Return a footprint whose three peaks are changed by a function of their name and value."""
    names = ("allocated", "reserved", "driver")
    peaks: JsonDict = {name: change(name, getattr(found, name)) for name in names}
    return replace(found, **peaks)


def _declared(found: Footprint) -> Footprint:
    """Return the footprint of a job on a GPU with its intervals widened by DECLARED_SHARE. The
    verdict becomes uncertain where tensors and the CUDA context alone would give another one.
    """
    context = found.terms.get("CUDA context and libraries")
    if context is None:
        return found
    low, high = DECLARED_SHARE
    wide = _with_peaks(
        found, lambda name, old: replace(old, low=low * old.low, high=high * old.high)
    )
    tensors = replace(
        wide.allocated, low=wide.allocated.low + context, high=wide.allocated.high + context
    )
    agrees = verdict_on(tensors, wide.usable_bytes) == wide.verdict
    return wide if agrees else replace(wide, verdict="uncertain")


def _target(device: Device, process_bytes: int, devices: int) -> Target:
    target = target_of(device, process_bytes, 0)
    return target if devices == 1 else with_communication(target)


def _memory(job: TrainingJob, spec: ForeignStep, target: Target, traces: JobTraces) -> Memory:
    return Memory(
        traces(spec),
        target,
        fractions=PADDED_FRACTIONS if job.rows == "padded" else (),
        share=RESERVED_SHARE[job.quantize != "none"],
    )


def _step_time(
    job: TrainingJob, spec: ForeignStep, memory: Memory, rows: int, rates: Rates | None
) -> Prediction | None:
    if rates is None:
        return None
    try:
        time = step_time(memory.work_at, [rows] * job.accumulation, rates, precision=spec.products)
    except (UnknownRate, IrregularWork):
        return None
    low, high = share_of(rates, time)
    seconds = time.seconds
    if not math.isfinite(seconds):
        return None
    basis = rates.source + f"; {WAITS}" * time.waits_for_program
    return Prediction(seconds, low * seconds, max(high * seconds, time.slowest_host_s), basis)
