"""Memory of a recipe on a device for every micro-batch."""

import bisect
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

from brimful.base.errors import PlanError
from brimful.base.types import Bounds, Json
from brimful.base.units import GIB
from brimful.hardware.device import Device
from brimful.hardware.residuals import Residuals
from brimful.planning.choices import (
    PASSES_OF_MANY_LENGTHS,
    attention_choice,
    experts_choice,
    has_experts,
    kernels_choice,
    loader_choice,
    loss_chunk_choice,
    optimizer_choice,
    packing_choice,
    precision_choice,
    refuse_four_bits,
)
from brimful.planning.earlier_runs import memory_kind
from brimful.planning.host_heap import MANY_PASSES
from brimful.planning.longest_pass import LongestPass, LongestPassAt, split
from brimful.planning.memory import (
    RESERVED_SHARE,
    SHARDED_SHARE,
    Footprint,
    Replayed,
    Replays,
    ReservedPeaks,
    Traces,
    beside,
    cuda_high,
    cuda_high_at_least,
    cuda_verdict,
    footprint,
    peaks_alone,
    possible_bytes,
    roomy_bytes,
    standing_bytes,
    sure_bytes,
)
from brimful.planning.plan import Choice, Verdict
from brimful.planning.ragged import (
    PACKED_FRACTIONS,
    PADDED_FRACTIONS,
    high_at_least,
    reserved_over,
)
from brimful.planning.specs import ModelFacts, model_facts, spec_of
from brimful.planning.step import EVALUATION_FACTOR, Recompute, StepSpec
from brimful.planning.target import Target, target_of, with_communication
from brimful.planning.timing import StepTime
from brimful.planning.trace import Trace
from brimful.planning.vllm_share import ONE_DEVICE, VLLM, held_by_vllm, vllm_share
from brimful.planning.work import Work
from brimful.recipe import Recipe
from brimful.recipe.rewards import draws_by_vllm

Margin = Literal["conservative", "balanced", "tight"]
"""How much of the memory a plan may use, see `Memory.largest`."""
ResidualsOf = Callable[[str], Residuals]
"""Returns what earlier runs of a kind (`earlier_runs.memory_kind`) say about memory."""
Tracer = Callable[[StepSpec], Traces | Replays]
"""Returns the traces of a step; the real one is in `brimful.rehearsal.store`."""


@dataclass(frozen=True)
class Sharing:
    """How a device works with others.

    Attributes:
        devices: That share an optimizer step.
        ranks: Number of ranks among which the model is divided; 1: each holds all of it.
        waiting: Seconds in which a step waits for the others, of what is prepared, its memory, the
            time of the step alone and the number of its passes; None: it waits for none.
    """

    devices: int = 1
    ranks: int = 1
    waiting: "Waiting | None" = None


NOT_SHARED = Sharing()
"""A device that works alone."""


class Memory:
    """Footprints of one step on one device, each computed once.

    Args:
        traces: The traces of the step; replayed ones are shared with other devices.
        target: The device.
        fractions: Lengths of successive passes of the run over the longest; none where all are of
            one length.
        share: What a GPU's allocator reserves over its replay, 5th and 95th percentile.
        longest_pass_at: The longest passes of a micro-batch; None: rows are full, and every step
            has several passes if the traced one has.
        vllm_bytes: What vLLM holds beside the step, which the target has no longer.
    """

    def __init__(
        self,
        traces: Traces | Replays,
        target: Target,
        *,
        fractions: Sequence[float] = (),
        share: Bounds = RESERVED_SHARE[False],
        longest_pass_at: LongestPassAt | None = None,
        vllm_bytes: int = 0,
    ) -> None:
        self._replays = traces if isinstance(traces, Replays) else Replays(traces)
        self._vllm_bytes = vllm_bytes
        self._target, self._fractions, self._share = target, fractions, share
        self._longest_pass_at = longest_pass_at
        self._made: dict[int, Footprint] = {}
        self._works: Replays = self._replays

    def with_work_of(self, eager: "Memory") -> "Memory":
        """Return the same with the operators of the step without compiling: those of compiled
        blocks are not recorded.
        """
        other = copy.copy(self)
        other._works = eager._works
        return other

    def at(self, micro_batch: int) -> Footprint:
        """Return the footprint of a micro-batch."""
        if micro_batch not in self._made:
            made = footprint(
                self.replayed(micro_batch),
                self._target,
                micro_batch,
                self._peaks(micro_batch) if self._target.kind == "cuda" else None,
                varying_passes=self._varying_passes(micro_batch),
            )
            if self._vllm_bytes:
                made = beside(made, VLLM, self._vllm_bytes)
            self._made[micro_batch] = made
        return self._made[micro_batch]

    def _varying_passes(self, micro_batch: int) -> int:
        """Return how many passes of several lengths the run has; many where that is not known."""
        if not self._fractions:
            return 0
        passes = self._longest_pass(micro_batch).passes
        return MANY_PASSES if passes is None else passes

    def replayed(self, micro_batch: int) -> Replayed:
        """Return the trace of a micro-batch, replayed for the device."""
        rows, in_one_pass = self._largest_pass(micro_batch)
        return self._replays.at(rows, self._target.workspace_bytes, in_one_pass=in_one_pass)

    def evaluated(self, rows: float) -> Trace:
        """Return the trace whose evaluation batch has so many rows."""
        replayed = self._replays.at(rows / EVALUATION_FACTOR, self._target.workspace_bytes)
        return replayed.trace

    def _longest_pass(self, micro_batch: int) -> LongestPass:
        if self._longest_pass_at is None:
            return LongestPass(micro_batch, micro_batch)
        return self._longest_pass_at(micro_batch)

    def _largest_pass(self, micro_batch: int) -> tuple[float, bool]:
        """Return the rows of the pass that needs most memory, and whether it is the first of its
        step. Of a longer pass that comes first and a shorter one that finds gradients either may
        be.
        """
        longest = self._longest_pass(micro_batch)
        first, later = (longest.rows, True), (longest.later_rows, False)
        if not longest.later_rows or longest.rows == longest.later_rows:
            return later if longest.later_rows else first
        return max(first, later, key=lambda each: self._tensors_bytes(*each))

    def _tensors_bytes(self, rows: float, in_one_pass: bool) -> int:
        workspace_bytes = self._target.workspace_bytes
        return self._replays.at(rows, workspace_bytes, in_one_pass=in_one_pass).allocated_bytes

    def _peaks(self, micro_batch: int) -> ReservedPeaks:
        """Return what the allocator of a GPU reserves over the run."""
        rows, in_one_pass = self._passes(micro_batch)
        if len(set(rows)) < 2:
            return peaks_alone(self.replayed(micro_batch), self._share)
        return reserved_over(
            self._replays, rows, self._target.workspace_bytes, in_one_pass=in_one_pass
        )

    def _passes(self, micro_batch: int) -> tuple[tuple[float, ...], bool]:
        """Return the rows of a run's successive passes, fewer than two where all are alike, and
        whether its steps have one pass each.
        """
        largest, in_one_pass = self._largest_pass(micro_batch)
        some = self._longest_pass(micro_batch).some
        rows = tuple(min(each, largest) for each in some)
        return rows or tuple(largest * each for each in self._fractions), in_one_pass

    def _longest_high_at_least(self, micro_batch: int) -> float:
        """Return a lower bound of `cuda_high` from the longest pass alone; 0 for a run whose passes
        are all alike.
        """
        rows, in_one_pass = self._passes(micro_batch)
        if len(set(rows)) < 2:
            return 0.0
        target = self._target
        alone = self._replays.at(max(rows), target.workspace_bytes, in_one_pass=in_one_pass)
        return high_at_least(alone) + target.context_bytes + target.context_uncertainty_bytes

    def work_at(self, micro_batch: int) -> Work:
        """Return the work of a micro-batch's operators."""
        return self._works.work_at(micro_batch)

    def largest(self, highest: int, margin: Margin = "balanced") -> int:
        """Return the largest micro-batch up to `highest` that fits by this margin; 0 for none.
        Memory grows with the micro-batch, except that the last one, of all sequences in one pass,
        accumulates no gradients. On CUDA the search begins where the tensors alone fill the device,
        because little is lost between them.

        conservative: the upper end of the prediction fits, without the allocator freeing its cache;
        balanced: the run surely gets through and leaves `Target.room_bytes` free; where not even
        one sequence does that, one that surely gets through; tight: it may get through.
        """
        fits = partial(self.fits, margin=margin)
        if self._target.kind != "cuda":
            return highest if fits(highest) else _last(highest, fits)
        limit_bytes = self._limit_bytes(margin)

        def may_fit(size: int) -> bool:
            return self.replayed(size).allocated_bytes <= limit_bytes

        largest = _last_below(highest if may_fit(highest) else _last(highest, may_fit), fits)
        if margin == "balanced" and not largest:
            return int(self.replayed(1).fits_in(sure_bytes(self._target)))
        return largest

    def fits(self, micro_batch: int, margin: Margin = "balanced") -> bool:
        """Return whether one micro-batch fits by this margin, as `largest` means it. By "balanced"
        one that leaves less free than a plan should does not.
        """
        if self._target.kind != "cuda":
            accepted = ("fits", "uncertain") if margin == "tight" else ("fits",)
            return self.verdict(micro_batch) in accepted
        holds = self.replayed(micro_batch).fits_in(self._limit_bytes(margin))
        if margin != "conservative":
            return holds
        return holds and self.high_below(micro_batch, self._target.usable_bytes)

    def _limit_bytes(self, margin: Margin) -> int:
        """Return what the allocator of a GPU may take by this margin."""
        limit = {"balanced": roomy_bytes, "tight": possible_bytes}.get(margin, sure_bytes)
        return limit(self._target)

    @property
    def standing_bytes(self) -> int:
        """Bytes of weights, adapters and optimizer states at the peak, for every micro-batch."""
        return standing_bytes(self.replayed(1).trace)

    def high_below(self, micro_batch: int, limit_bytes: float) -> bool:
        """Return whether the upper end of the prediction is at most `limit_bytes`; needs no replay
        where the tensors alone exceed it, and no run of many passes where the longest does.
        """
        if self._target.kind == "cuda":
            least = cuda_high_at_least(self.replayed(micro_batch), self._target)
            if least > limit_bytes or self._longest_high_at_least(micro_batch) > limit_bytes:
                return False
            return cuda_high(self._peaks(micro_batch), self._target) <= limit_bytes
        return self.at(micro_batch).driver.high <= limit_bytes

    def verdict(self, micro_batch: int) -> Verdict:
        """Return the verdict of the footprint, without computing the rest of it."""
        if self._target.kind == "cuda":
            return cuda_verdict(self.replayed(micro_batch), self._target)
        return self.at(micro_batch).verdict


def _last(highest: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number up to `highest` for which `holds`, by bisection from below; 0 for
    none. What holds for a number holds for all smaller ones.
    """
    low, step = 0, 1
    while low + step <= highest and holds(low + step):
        low, step = low + step, 2 * step
    high = min(low + step, highest + 1)
    return low + bisect.bisect_left(range(low + 1, high), True, key=lambda size: not holds(size))


def _last_below(highest: int, holds: Callable[[int], bool]) -> int:
    """Return the same, searching from above: few calls where the result is near `highest`."""
    high, step = highest, 1
    while high > 0 and not holds(high):
        high, step = high - step, 2 * step
    low, high = max(0, high), min(highest + 1, max(0, high) + step // 2)
    return low + bisect.bisect_left(range(low + 1, high), True, key=lambda size: not holds(size))


@dataclass(frozen=True)
class Prepared:
    """A recipe on a device, with all choices that do not depend on memory.

    Attributes:
        known_longest_pass_at: None where the data are not known, or rows are full.
        ranks: Devices among which the model is divided; 1: each holds all of it.
        waiting: The same as in Sharing.
        makes_kernels: Nearly every pass makes kernels of shapes that none before it had.
    """

    recipe: Recipe
    device: Device
    target: Target
    model: ModelFacts
    choices: Mapping[str, Choice]
    known_longest_pass_at: LongestPassAt | None = None
    ranks: int = 1
    waiting: "Waiting | None" = None
    makes_kernels: bool = False

    @property
    def precision(self) -> str:
        """The precision that was chosen."""
        return str(self.choices["precision"].value)

    def changed(self, changes: Json) -> "Prepared":
        """Return the same for a changed recipe, whose rows count as full."""
        recipe = self.recipe.model_copy(update=dict(changes))
        choices = dict(self.choices)
        if experts := experts_choice(recipe, self.model.config, in_parts=self.ranks > 1):
            choices["experts"] = experts
        return replace(self, recipe=recipe, choices=choices, known_longest_pass_at=None)

    def memory(self, tracer: Tracer, *, recompute: Recompute, **changes: Any) -> Memory:
        """Return the footprints of the step as it runs here."""
        traces = tracer(self.spec(recompute=recompute, **changes))
        target, vllm_bytes = self._beside_vllm(traces)
        return Memory(
            traces,
            target,
            fractions=self._fractions,
            share=(
                SHARDED_SHARE if self.ranks > 1 else RESERVED_SHARE[self.recipe.quantize != "none"]
            ),
            longest_pass_at=self.known_longest_pass_at or self._full_at,
            vllm_bytes=vllm_bytes,
        )

    def _beside_vllm(self, traces: Traces | Replays) -> tuple[Target, int]:
        """Return what vLLM leaves of the target, and the bytes that it holds."""
        target, recipe = self.target, self.recipe
        if not draws_by_vllm(recipe):
            return target, 0
        replays = traces if isinstance(traces, Replays) else Replays(traces)
        trace = replays.at(1, target.workspace_bytes).trace
        parameters = trace.parameters - (recipe.adapter is not None) * trace.trainable
        config, precision = self.model.config, self.precision
        share = vllm_share(recipe, config, precision, target.kind, self.device.memory_bytes)
        held, doubt = held_by_vllm(share, config, parameters, precision, target.kind)
        left = replace(
            target,
            usable_bytes=max(0, target.usable_bytes - held),
            context_uncertainty_bytes=target.context_uncertainty_bytes + doubt,
        )
        return left, held

    @property
    def _fractions(self) -> Sequence[float]:
        """Lengths of passes over the longest, where the data are not read yet."""
        if not self.recipe.kind.lengths_vary(self.recipe.data.layout):
            return ()
        is_packed = self.choices["packing"].value == "packed"
        return PACKED_FRACTIONS if is_packed else PADDED_FRACTIONS

    def _full_at(self, micro_batch: int) -> LongestPass:
        """Return what full rows make of an optimizer step."""
        accumulates = micro_batch < self.recipe.effective_batch
        return LongestPass(micro_batch, micro_batch if accumulates else 0)

    def passes_of_step(
        self, micro_batch: int, fill: float, scored: float
    ) -> tuple[tuple[int, ...], float, float]:
        """Return the sizes of a step's passes, which share of their positions is computed, and of
        which share of those the loss is. Where the data are known, they are those of the run's own
        passes, padding included; else `fill` and `scored` hold.
        """
        sizes = split(self.recipe.effective_batch, micro_batch)
        if self.known_longest_pass_at is None:
            return sizes, fill, scored
        laid_out, scored_rows = self.known_longest_pass_at(micro_batch), fill * scored * sum(sizes)
        sizes = (micro_batch,) * round(laid_out.step_passes)
        rows = laid_out.step_rows
        return sizes, rows / sum(sizes), min(1.0, scored_rows / rows)

    def spec(self, *, recompute: Recompute, **changes: Any) -> StepSpec:
        """Return the step as it runs here."""
        spec = spec_of(self.recipe, self.model, self.device, self.choices, recompute=recompute)
        return replace(spec, ranks=self.ranks, **changes)


def prepare(
    recipe: Recipe,
    device: Device,
    *,
    process_bytes: int = 0,
    model: ModelFacts | None = None,
    longest_pass_of: Callable[[str], LongestPassAt] | None = None,
    sharing: Sharing = NOT_SHARED,
    residuals_of: ResidualsOf | None = None,
    has_many_lengths: bool = True,
    precision: Choice | None = None,
) -> Prepared:
    """Decide precision, attention and loss for a device.

    Args:
        longest_pass_of: Longest pass, by the packing that is chosen here; None: rows are full.
        sharing: Whether the device works with others.
        residuals_of: What earlier runs on the device say about memory; None: nothing.
        has_many_lengths: Whether examples have more than a few lengths among them.
        precision: The precision, where it was decided before.
    """
    refuse_four_bits(recipe, device)
    if sharing.devices > 1 and draws_by_vllm(recipe):
        raise PlanError(ONE_DEVICE)
    facts = model or model_facts(recipe)
    model_type = str(facts.config["model_type"])
    packing = packing_choice(recipe, model_type, device.kind)
    is_packed = packing.value == "packed"
    precision = precision or precision_choice(
        recipe, device, facts.width, packed=is_packed, model_type=model_type
    )
    attention = attention_choice(
        recipe,
        device,
        str(precision.value),
        softcapped=facts.softcapped,
        grouped=facts.grouped,
        packed=is_packed,
        kernel=facts.has_kernel_attention,
        attends_both_sides=recipe.kind.gives_labels and facts.attends_both_sides,
        fused=facts.has_fused_attention,
    )
    choices = {
        "precision": precision,
        "attention": attention,
        "loss_chunk": loss_chunk_choice(recipe, device, facts.vocabulary),
        "optimizer": optimizer_choice(recipe, device),
        "loader_workers": loader_choice(recipe),
        "packing": packing,
    }
    for choice in (
        kernels_choice(model_type, device),
        experts_choice(recipe, facts.config, in_parts=sharing.ranks > 1),
    ):
        if choice is not None:
            choices[choice.name] = choice
    # Laying out hundreds of steps takes a while, and each micro-batch is asked about often.
    longest_pass_at = (
        None if longest_pass_of is None else cache(longest_pass_of(str(packing.value)))
    )
    leave_bytes = round(recipe.plan.leave_gib * GIB)
    in_bf16 = (device.kind, precision.value) == ("cpu", "bf16")
    makes_kernels = in_bf16 and packing.value in PASSES_OF_MANY_LENGTHS and has_many_lengths
    target = target_of(
        device,
        process_bytes,
        leave_bytes,
        keeps_kernels=makes_kernels or (in_bf16 and has_experts(facts.config)),
    )
    if sharing.devices > 1:
        target = with_communication(target)
    elif residuals_of is not None:
        target = replace(target, residuals=residuals_of(memory_kind(recipe, str(precision.value))))
    return Prepared(
        recipe,
        device,
        target,
        facts,
        choices,
        longest_pass_at,
        sharing.ranks,
        sharing.waiting,
        makes_kernels,
    )


Waiting = Callable[[Prepared, Memory, StepTime, int], float]


def table_sizes(chosen: int, largest: int, highest: int) -> list[int]:
    """Return the micro-batches to show: powers of two, the chosen one, the largest that fits and
    the first that does not.
    """
    powers = [1 << power for power in range(highest.bit_length()) if 1 << power <= highest]
    shown = sorted({*powers, chosen, largest, min(largest + 1, highest)} - {0})
    beyond = [size for size in shown if size > max(largest, chosen)]
    return [size for size in shown if size not in beyond[2:]]
