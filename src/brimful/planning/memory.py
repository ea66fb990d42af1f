"""Peak memory of a trace on a device, term by term, with an interval and a verdict.

Suffixes: E events, S storages.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brimful.base.types import Bounds, Counts, JsonDict, Numbers
from brimful.planning.allocator import Usage, least_peak, replay
from brimful.planning.earlier_runs import corrected
from brimful.planning.host_heap import host_reserved
from brimful.planning.plan import Prediction, Verdict, verdict_on
from brimful.planning.target import METAL_SLACK, WORKSPACES, Target
from brimful.planning.trace import KINDS, Names, Trace
from brimful.planning.trace import in_one_pass as trace_in_one_pass
from brimful.planning.work import GLOBAL, Work

ALLOCATED_SHARE = (0.985, 1.01)
"""Measured over predicted peak of allocated bytes, 5th and 95th percentile
(benchmarks/memory_truth.py).
"""
RESERVED_SHARE: Mapping[bool, Bounds] = {False: (0.92, 1.15), True: (0.96, 1.26)}
"""The same for reserved bytes of passes of one size, without and with a base in 4 bits, which
leaves odd blocks while it is loaded and unpacked: 0.88 to 1.15 over 43 rows and 0.99 to 1.26 over
57 on an A100 by nvidia-smi, 0.98 to 1.00 over 89 on an L40S by torch (benchmarks/memory_truth.py).
"""
SHARDED_SHARE = (0.92, 1.35)
"""The same for a model in parts: torch's FSDP2 gathers on streams of its own, for each of which the
allocator keeps memory apart. torchtitan published 1.18 and 1.22 of what is allocated for
Llama-3.1-8B on 8 and 128 GPUs; a trace replays one stream (assumption from these two rows).
"""
VARYING_SHARE = (0.92, 1.70)
"""The same where passes have many lengths and cannot be replayed one after another: 1.07 to 1.72
over 20 settings on an A100, all of one data set.
"""
_OF_A_PASS = ("activations", "loss and logits", "temporaries")
_Number = TypeVar("_Number", np.int32, np.int64)
LARGEST_TENSORS = 10
NEAR = 1.05
"""Below this many times the tensors, a replay within the limit is asked first: without it, more
would be reserved in most cases.
"""


class Traces(Protocol):
    """Traces of one step for every micro-batch."""

    def at(self, rows: float) -> Trace:
        """Return the trace of a micro-batch; a fraction stands for rows that are not full."""

    def work_at(self, micro_batch: int) -> Work:
        """Return the work of its operators."""


@dataclass(frozen=True)
class Tensor:
    """A storage that is alive at the peak."""

    num_bytes: int
    kind: str
    place: str


@dataclass(frozen=True)
class Footprint:
    """Peak memory of a step (or of several phases) on one device.

    Attributes:
        micro_batch: Sequences per forward and backward pass.
        terms: Bytes by term at the moment when most is allocated; they add up to `driver_bytes`.
        allocated, reserved, driver: Peaks in bytes: of torch's tensors, of its allocator, and as
            the driver shows. The allocator caches more than it needs, and frees that when memory is
            short: where the verdict is "fits", they end at the memory of the device.
        usable_bytes: Memory of the device that the process can use.
        verdict: Whether the run fits.
        peak_phase: The phase of the step that needs most.
        parameters, trainable: Counts of the trace.
        largest: The largest storages alive at the peak.
        room_bytes: Memory that a plan leaves free, where it can.
        is_roomy: Whether the step does leave that, once the allocator frees what it only caches.
        correction_bytes: What earlier runs on the device added to the peak.
    """

    micro_batch: int
    terms: Counts
    allocated: Prediction
    reserved: Prediction
    driver: Prediction
    usable_bytes: int
    verdict: Verdict
    peak_phase: str
    parameters: int
    trainable: int
    largest: tuple[Tensor, ...]
    room_bytes: int = 0
    is_roomy: bool = True
    correction_bytes: float = 0.0

    @property
    def headroom_bytes(self) -> int:
        """Memory left at the expected peak; negative when it does not fit."""
        return self.usable_bytes - round(self.driver.value)

    @property
    def is_tight(self) -> bool:
        """Return whether it fits, but leaves less free than a plan should."""
        return self.verdict == "fits" and not self.is_roomy

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        return {
            "micro_batch": self.micro_batch,
            "verdict": self.verdict,
            "usable_bytes": self.usable_bytes,
            "headroom_bytes": self.headroom_bytes,
            "peak_phase": self.peak_phase,
            "parameters": self.parameters,
            "trainable_parameters": self.trainable,
            "terms_bytes": dict(self.terms),
            **{
                f"{name}_bytes": _interval(getattr(self, name))
                for name in ("allocated", "reserved", "driver")
            },
            "largest": [dataclasses.asdict(tensor) for tensor in self.largest],
        }


def scored_bytes(trace: Trace, *, with_states: bool = False) -> int:
    """Return the most bytes of tensors while the evaluation batch is scored between updates, when
    gradients are let go of: with optimizer states or, as before the first step, without.
    """
    first = trace.marks["evaluation"]
    terms = terms_at(trace, first)
    released = terms["gradients"] + (0 if with_states else terms["optimizer states"])
    return int(trace.live_E()[first:].max()) - released


def before_training(trace: Trace, step: Footprint) -> Prediction:
    """Return the peak of evaluation batches before the first step: what they hold of the step's
    tensors, of what the allocator reserves for those.
    """
    share = scored_bytes(trace) / float(trace.live_E().max())
    reserved = step.reserved.times(share, f"{share:.0%} of the step's tensors")
    return _plus(reserved, step.driver.value - step.reserved.value)


WORKS_IN_MEMORY = 16
TRACES_IN_MEMORY = 10
"""Traces of single micro-batches of a step: those of a run of many lengths, and two more."""
Known = dict[str, list[int | None]]
"""Results of replays by key; plain values, to be stored from one process to the next."""


class Replayed:
    """A trace on one kind of device: with the workspaces of its matrix library, and replayed
    through the allocator. Devices that differ in size only share it.

    Args:
        make: Makes the trace; not called for known results.
        workspace_bytes: Size of each workspace.
        key: Name of the trace in `known`.
        known: Results of earlier replays; new ones are added.
    """

    def __init__(
        self,
        make: Callable[[], Trace],
        workspace_bytes: int,
        key: str = "",
        known: Known | None = None,
    ) -> None:
        self._make, self._workspace_bytes = make, workspace_bytes
        self._key = f"{key}/{workspace_bytes}"
        self._known: Known = {} if known is None else known

    @cached_property
    def trace(self) -> Trace:
        """The trace with the workspaces in it."""
        return with_workspaces(self._make(), self._workspace_bytes)

    @cached_property
    def usage(self) -> Usage:
        """The replay on a device without limit."""
        return self._replay(None)

    @cached_property
    def allocated_bytes(self) -> int:
        """The peak if each block is as small as it can be: a lower bound that needs no replay."""
        return least_peak(self.trace.events_E, self.trace.sizes_S)

    def fits_in(self, limit_bytes: int) -> bool:
        """Return whether the allocator gets through with this much memory, freeing its cache."""
        if self.allocated_bytes > limit_bytes:
            return False
        if (
            limit_bytes < NEAR * self.allocated_bytes
            and "usage" not in self.__dict__
            and f"{self._key}/None" not in self._known
        ):
            within = self._replay(limit_bytes)
            if not within.gave_back:
                # The limit was never reached, so the replay without it is the same.
                self._known[f"{self._key}/None"] = list(dataclasses.astuple(within))
            return within.out_of_memory_event is None
        if self.usage.peak_reserved_bytes <= limit_bytes:
            return True
        if self.usage.peak_allocated_bytes > limit_bytes:
            return False
        return self._replay(limit_bytes).out_of_memory_event is None

    def _replay(self, limit_bytes: int | None) -> Usage:
        key = f"{self._key}/{limit_bytes}"
        if key not in self._known:
            usage = replay(self.trace.events_E, self.trace.sizes_S, limit_bytes)
            if limit_bytes is None:
                usage = _in_two_pools(self.trace, usage)
            self._known[key] = list(dataclasses.astuple(usage))
        return Usage(*self._known[key])  # type: ignore[arg-type]


def _in_two_pools(trace: Trace, together: Usage) -> Usage:
    """Return a replay without limit with what is reserved where communication buffers lie in a pool
    of their own, as CUDA's allocator keeps one for each stream. Nothing moves between pools until
    memory is short, so each grows to its own peak.
    """
    apart_S = trace.kinds_S == KINDS.index("communication buffers")
    if not apart_S.any():
        return together
    apart_E = apart_S[np.abs(trace.events_E) - 1]
    pools = [replay(trace.events_E[chosen_E], trace.sizes_S) for chosen_E in (apart_E, ~apart_E)]
    return dataclasses.replace(
        together, peak_reserved_bytes=sum(pool.peak_reserved_bytes for pool in pools)
    )


class Replays:
    """Replayed traces of one step by workspace and micro-batch, shared by devices with the same
    kernels.

    Attributes:
        known: Results of replays in this process and in earlier ones.
    """

    def __init__(self, traces: Traces, known: Known | None = None) -> None:
        self._traces = traces
        self._made: dict[tuple[float, int, bool], Replayed] = {}
        self._works: dict[int, Work] = {}
        self.known: Known = {} if known is None else known

    def at(self, rows: float, workspace_bytes: int, *, in_one_pass: bool = False) -> Replayed:
        """Return the replayed trace of a micro-batch, of a step that has no other `in_one_pass`."""
        key = (rows, workspace_bytes, in_one_pass)
        if key not in self._made:
            name = f"{rows:g}{' in one pass' * in_one_pass}"
            make = functools.partial(self._trace, rows, in_one_pass=in_one_pass)
            self.release(TRACES_IN_MEMORY)
            self._made[key] = Replayed(make, workspace_bytes, name, self.known)
        return self._made[key]

    def _trace(self, rows: float, *, in_one_pass: bool) -> Trace:
        trace = self._traces.at(rows)
        return trace_in_one_pass(trace) if in_one_pass else trace

    def work_at(self, micro_batch: int) -> Work:
        """Return the work of a micro-batch's operators."""
        if micro_batch not in self._works:
            while len(self._works) >= WORKS_IN_MEMORY:
                self._works.pop(next(iter(self._works)))
            self._works[micro_batch] = self._traces.work_at(micro_batch)
        return self._works[micro_batch]

    def release(self, but: int = 0) -> None:
        """Free the traces of single micro-batches but the newest ones, a few MB each; they are made
        again on demand.
        """
        for replayed in list(self._made.values())[: len(self._made) - but]:
            replayed.__dict__.pop("trace", None)


def with_workspaces(trace: Trace, workspace_bytes: int) -> Trace:
    """Return the trace with the matrix library's workspaces, which are allocated at the first
    product and stay.
    """
    if not workspace_bytes:
        return trace
    first = next((event for event in trace.marks.values() if event > 0), len(trace.events_E))
    end = len(trace.sizes_S)
    births = end + 1 + np.arange(WORKSPACES)
    place = len(trace.places)
    return dataclasses.replace(
        trace,
        events_E=_with(trace.events_E, first, births),
        event_layers_E=_with(trace.event_layers_E, first, [GLOBAL] * WORKSPACES),
        sizes_S=_with(trace.sizes_S, end, [workspace_bytes] * WORKSPACES),
        kinds_S=_with(trace.kinds_S, end, [KINDS.index("library workspaces")] * WORKSPACES),
        places_S=_with(trace.places_S, end, [place] * WORKSPACES),
        layers_S=_with(trace.layers_S, end, [GLOBAL] * WORKSPACES),
        places=Names(
            place + 1,
            lambda number: "cuBLAS workspace" if number == place else trace.places[number],
        ),
        marks={name: event + WORKSPACES * (event >= first) for name, event in trace.marks.items()},
    )


def _with(values: NDArray[_Number], place: int, further: ArrayLike) -> NDArray[_Number]:
    """Return an array with further values at a place, of the type that it has."""
    added = np.asarray(further, values.dtype)
    return np.concatenate([values[:place], added, values[place:]])


@dataclass(frozen=True)
class ReservedPeaks:
    """Peaks in bytes that the allocator reserves over a run, and how sure they are.

    Attributes:
        least: Peak with the longest pass alone.
        expected: Peak with the lengths of the run; not below `least`.
        share: Measured over predicted, 5th percentile of `least` and 95th of `expected`.
    """

    least: int
    expected: int
    share: Bounds

    @property
    def high(self) -> float:
        """The upper end, if the allocator frees nothing that it caches."""
        return self.share[1] * self.expected


def peaks_alone(replayed: Replayed, share: Bounds = RESERVED_SHARE[False]) -> ReservedPeaks:
    """Return the peaks of a run whose passes are all like the traced ones."""
    reserved_bytes = replayed.usage.peak_reserved_bytes
    return ReservedPeaks(reserved_bytes, reserved_bytes, share)


def footprint(
    replayed: Replayed,
    target: Target,
    micro_batch: int,
    peaks: ReservedPeaks | None = None,
    *,
    varying_passes: int = 0,
) -> Footprint:
    """Return the peak memory of a replayed trace on a device.

    Args:
        replayed: The trace.
        target: The device.
        micro_batch: Sequences per pass.
        peaks: What the allocator of a GPU reserves; None: `peaks_alone`.
        varying_passes: How many passes of several lengths the run has, which cost a CPU's heap
            more; 0 where all are of one length.
    """
    if target.kind == "cuda":
        return _cuda_footprint(replayed, target, micro_batch, peaks or peaks_alone(replayed))
    trace = replayed.trace
    live_E = trace.live_E()
    peak_event = int(live_E.argmax())
    allocated = float(live_E[peak_event])
    at_peak = terms_at(trace, peak_event)
    if target.kind == "cpu":
        held_bytes = sum(at_peak[kind] for kind in _OF_A_PASS)
        reserved = host_reserved(allocated, held_bytes, varying_passes)
    else:
        slack = METAL_SLACK * allocated
        basis = "live tensors, the allocator's slack assumed"
        reserved = Prediction(allocated + slack, allocated, allocated + 2 * slack, basis)
    outside = target.context_bytes, target.context_uncertainty_bytes
    uncorrected = _plus(reserved, *outside)
    least_bytes = allocated + max(0, target.context_bytes - target.context_uncertainty_bytes)
    driver = corrected(uncorrected, allocated, least_bytes, target.residuals)
    limit, correction_bytes = target.usable_bytes, driver.value - uncorrected.value
    slack = max(0, round(reserved.value + correction_bytes) - round(allocated))
    terms = {
        **at_peak,
        "allocator slack": slack,
        "process": round(driver.value) - round(allocated) - slack,
    }
    return Footprint(
        micro_batch,
        _without_zeros(terms),
        Prediction(allocated, allocated, allocated, "traced"),
        reserved,
        driver,
        limit,
        verdict_on(
            dataclasses.replace(driver, low=driver.high) if target.shares_memory else driver, limit
        ),
        phase_at(trace, peak_event),
        trace.parameters,
        trace.trainable,
        largest_at(trace, peak_event),
        target.room_bytes,
        limit - driver.value >= target.room_bytes,
        correction_bytes,
    )


def beside(found: Footprint, name: str, num_bytes: int) -> Footprint:
    """Return the footprint on a device of which something else in the same process holds so many
    bytes, which were taken off what the footprint may use.
    """
    return dataclasses.replace(
        found,
        terms={**found.terms, name: num_bytes},
        allocated=_plus(found.allocated, num_bytes),
        reserved=_plus(found.reserved, num_bytes),
        driver=_plus(found.driver, num_bytes),
        usable_bytes=found.usable_bytes + num_bytes,
    )


def _cuda_footprint(
    replayed: Replayed, target: Target, micro_batch: int, peaks: ReservedPeaks
) -> Footprint:
    trace, usage = replayed.trace, replayed.usage
    low, high = (share * usage.peak_allocated_bytes for share in ALLOCATED_SHARE)
    allocated = Prediction(usage.peak_allocated_bytes, low, high, "traced")
    verdict = cuda_verdict(replayed, target)
    most_bytes = max(usage.peak_allocated_bytes, target.torch_bytes)
    reserved_bytes = min(peaks.expected, most_bytes)
    basis = "trace replayed through the caching allocator"
    if peaks.expected != peaks.least:
        basis += ", passes of the run's lengths one after another"
    reserved = Prediction(
        reserved_bytes,
        min(reserved_bytes, max(peaks.share[0] * min(peaks.least, most_bytes), allocated.low)),
        min(peaks.high, most_bytes) if verdict == "fits" else peaks.high,
        basis,
    )
    uncorrected, tensors_bytes = reserved.value, usage.peak_allocated_bytes
    reserved = corrected(reserved, tensors_bytes, tensors_bytes, target.residuals)
    if verdict == "fits":
        value, high = min(reserved.value, most_bytes), min(reserved.high, most_bytes)
        reserved = dataclasses.replace(reserved, value=value, high=high)
    driver = _plus(reserved, target.context_bytes, target.context_uncertainty_bytes)
    if verdict == "fits":
        driver = dataclasses.replace(driver, high=min(driver.high, target.usable_bytes))
    at_peak = terms_at(trace, usage.peak_allocated_event)
    slack = round(reserved.value) - sum(at_peak.values())
    terms = {
        **at_peak,
        "allocator slack": slack,
        "CUDA context and libraries": target.context_bytes,
    }
    return Footprint(
        micro_batch,
        _without_zeros(terms),
        allocated,
        reserved,
        driver,
        target.usable_bytes,
        verdict,
        phase_at(trace, usage.peak_allocated_event),
        trace.parameters,
        trace.trainable,
        largest_at(trace, usage.peak_allocated_event),
        target.room_bytes,
        replayed.fits_in(roomy_bytes(target)),
        reserved.value - uncorrected,
    )


def cuda_verdict(replayed: Replayed, target: Target) -> Verdict:
    """Return the verdict on CUDA, where a step fails if the allocator cannot serve it even after
    freeing its cache. The interval is that of live tensors and the context.
    """
    if replayed.fits_in(sure_bytes(target)):
        return "fits"
    return "uncertain" if replayed.fits_in(possible_bytes(target)) else "does not fit"


def sure_bytes(target: Target) -> int:
    """Return the least memory that the allocator can have."""
    return int((target.torch_bytes - target.context_uncertainty_bytes) / ALLOCATED_SHARE[1])


def roomy_bytes(target: Target) -> int:
    """Return the most that the allocator may reserve for a plan that leaves room on the device:
    `Target.room_bytes`, and no more than it surely can have.
    """
    return min(sure_bytes(target), target.torch_bytes - target.room_bytes)


def possible_bytes(target: Target) -> int:
    """Return the most memory that the allocator may have."""
    if target.shares_memory:  # what does not surely fit could freeze the machine
        return sure_bytes(target)
    return int((target.torch_bytes + target.context_uncertainty_bytes) / ALLOCATED_SHARE[0])


def cuda_high_at_least(replayed: Replayed, target: Target) -> float:
    """Return a lower bound of `cuda_high`, without a replay."""
    return replayed.allocated_bytes + target.context_bytes + target.context_uncertainty_bytes


def cuda_high(peaks: ReservedPeaks, target: Target) -> float:
    """Return the most that the driver may show if the allocator frees nothing that it caches."""
    found = target.residuals.at(peaks.least, peaks.expected)
    measured = 0.0 if found is None else peaks.expected + found.high
    return max(peaks.high, measured) + target.context_bytes + target.context_uncertainty_bytes


def phase_at(trace: Trace, event: int) -> str:
    """Return the name of the phase of an event, without its count."""
    name = ""
    for mark, first in trace.marks.items():
        if first <= event:
            name = mark
    return name.rstrip("0123456789 ")


def largest_at(trace: Trace, event: int) -> tuple[Tensor, ...]:
    """Return the largest storages that are alive after an event."""
    alive_S = trace.alive_at(event)
    top = alive_S[np.argsort(-trace.sizes_S[alive_S], kind="stable")[:LARGEST_TENSORS]]
    return tuple(
        Tensor(
            int(trace.sizes_S[number]),
            KINDS[trace.kinds_S[number]],
            trace.places[trace.places_S[number]],
        )
        for number in top
    )


def terms_at(trace: Trace, event: int) -> dict[str, int]:
    """Return the bytes alive after an event by kind."""
    alive_S = trace.alive_at(event)
    sizes_S, kinds_S = trace.sizes_S[alive_S], trace.kinds_S[alive_S]
    return {kind: int(sizes_S[kinds_S == index].sum()) for index, kind in enumerate(KINDS)}


def standing_bytes(
    trace: Trace, kinds: Iterable[str] = ("weights", "adapters", "optimizer states")
) -> int:
    """Return the bytes of weights, adapters and optimizer states, or other kinds, at the peak."""
    terms = terms_at(trace, int(trace.live_E().argmax()))
    return sum(terms[name] for name in kinds)


def _without_zeros(terms: Counts) -> Counts:
    return {name: num_bytes for name, num_bytes in terms.items() if num_bytes}


def _plus(prediction: Prediction, num_bytes: float, uncertainty_bytes: int = 0) -> Prediction:
    """With a context that takes `num_bytes`, give or take the uncertainty, but not less than
    nothing.
    """
    return Prediction(
        prediction.value + num_bytes,
        prediction.low + max(0, num_bytes - uncertainty_bytes),
        prediction.high + num_bytes + uncertainty_bytes,
        prediction.basis,
    )


def _interval(prediction: Prediction) -> Numbers:
    return {"value": prediction.value, "low": prediction.low, "high": prediction.high}
