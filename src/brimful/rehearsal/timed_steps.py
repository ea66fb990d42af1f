"""Real optimizer steps of a model with few of its blocks, timed on this CPU before anything is
trained.

A block in the middle is timed by itself, between two stamps, so that the time of all blocks follows
from a few.
"""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from brimful.base.errors import PlanError
from brimful.data.batches import IGNORED, MicroBatch
from brimful.hardware.contention import CoreWatch, own_clock
from brimful.hardware.host import keep_freed_memory, stop_keeping_freed_memory
from brimful.model.blocks import named_blocks_of
from brimful.planning.choices import MUON, PACKED_ATTENTION
from brimful.planning.step import StepSpec
from brimful.planning.timed import ENOUGH_PASSES, UNEVEN, TimedPasses
from brimful.rehearsal.element_wise import ElementWiseWatch, Part
from brimful.rehearsal.models import (
    config_of,
    count_parameters,
    kinds_of_blocks,
    meta_model,
    num_blocks,
    transformers_model,
    with_layers,
)
from brimful.rehearsal.optimizers import FP32_VARIANTS, optimizer_for
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.training import (
    Watcher,
    blank_batch,
    method_of,
    prepare,
    repeat_steps,
    without_garbage_collector,
)
from brimful.training.method import Network, hidden_states_of

WHOLE_UP_TO = 4
"""Models with at most this many blocks are run whole."""
FIRST_LENGTH = 64
"""Positions of the rows that are run first: they warm up, and say how long rows may be."""
LEAST_MARGINAL = 0.25
"""Share of a pass that surely grows with its positions; the rest, gradients of weights and the
like, may not (assumption).
"""
MOST_TIMES_BUDGET = 4.0
"""What was not timed after this many times the time for measuring, which is CPU time, is given up:
threads that wait for each other on a busy machine can take a hundred times as long.
"""
MOST_CALLS = 12
AGREE_WITHIN = 1.05
"""From `ENOUGH_PASSES` on, nothing more is timed once the slowest of their faster half took no
longer than so many times the fastest.
"""
MOST_PARAMETERS = 150_000_000
"""A larger model is not made only to time it: filling its weights would take longer."""


def time_passes(
    spec: StepSpec, micro_batch: int, seconds: float, threads: int, scored: float = 1.0
) -> TimedPasses | None:
    """Run optimizer steps of a model like the declared one, and return the time of their parts.

    torch's number of threads and its random state do not change.

    Args:
        spec: The step, on a CPU.
        micro_batch: Most sequences of a pass; fewer where a pass would take long.
        seconds: CPU time to spend after the model is made.
        threads: CPU threads of the training.
        scored: Share of the positions that the loss is computed of.

    Returns:
        None where the step cannot be taken apart like this: blocks of several kinds, or a model too
        large to make only for this.
    """
    if (
        spec.optimizer not in (*FP32_VARIANTS, MUON)
        or type(spec) is not StepSpec
        or spec.cuts_gradients
    ):
        return None
    config = config_of(spec)
    whole = num_blocks(config)
    blocks = _blocks_to_run(whole, kinds_of_blocks(config))
    short = with_layers(config, range(blocks))
    if count_parameters(meta_model(spec, short))[0] > MOST_PARAMETERS:
        return None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    keep_freed_memory()
    try:
        with without_garbage_collector(), torch.random.fork_rng(devices=[]), CoreWatch() as watch:
            timed = _run(spec, real_model(spec, short), micro_batch, seconds, scored)
    except (RuntimeError, PlanError):
        return None  # a step that cannot be run like this is predicted from its operators
    finally:
        torch.set_num_threads(before)
        stop_keeping_freed_memory()
    return timed_passes(timed, spec.sequence_length, whole, watch)


def _blocks_to_run(whole: int, kinds: Sequence[str] | None) -> int:
    """Return how many blocks to run: all of a small model; else one and a period of their kinds."""
    if whole <= WHOLE_UP_TO:
        return whole
    if not kinds or len(set(kinds)) == 1:
        return 3
    period = next(
        length
        for length in range(1, whole + 1)
        if all(kind == kinds[index % length] for index, kind in enumerate(kinds))
    )
    return min(1 + period, whole)


class _TookTooLong(Exception):
    """There is no time left for measuring."""


@dataclass
class _Stamps(Watcher):
    """When each part of the steps with passes of one size began, and when each block's output and
    gradient came.

    Attributes:
        micro_batch: Sequences of a pass.
        length: Positions of a sequence.
        blocks: Number of blocks in the model that runs.
        trainable: Trained parameters outside of the blocks, and of each block.
        until_s: Time after which nothing is timed any more, by `time.perf_counter`.
        clock: Says when parts began.
        passes_s: Times of every pass, by "first" and "further": (whole pass, blocks after the
            first).
        updates_s: Time of every update.
        operators: Times of the operators of further passes of this size, one by one.
        without_s: Times of the blocks after the first in passes without gradients, such as a
            reference's.
        measured_s: Times of a pass in which a step is measured before (whole pass, blocks after the
            first): it takes as long for each pass of the step.
    """

    micro_batch: int
    length: int
    blocks: int
    trainable: tuple[int, int]
    until_s: float = math.inf
    clock: Callable[[], float] = field(default_factory=own_clock)
    passes_s: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    updates_s: list[float] = field(default_factory=list)
    operators: ElementWiseWatch | None = None
    phase: str = ""
    in_step: int = 0
    since_s: float = 0.0
    entered_s: float = 0.0
    without_s: float = 0.0
    measured_s: tuple[float, float] = (0.0, 0.0)
    forward_s: dict[int, float] = field(default_factory=dict)
    backward_s: dict[int, float] = field(default_factory=dict)

    def begin(self, phase: str) -> None:
        """Note the beginning of a phase of `repeat_steps`."""
        now_s = self.clock()
        if self.phase == "backward" and phase in {"inputs", "optimizer"}:
            name = "first" if self.in_step == 1 else "further"
            before_s, blocks_s = self.measured_s
            middle_s = self._middle_s() + self.without_s + blocks_s
            self.passes_s[name].append((now_s - self.since_s + before_s, middle_s))
        if self.phase == "measure":
            self.measured_s = now_s - self.since_s, self.without_s
        if self.phase == "optimizer":
            self.updates_s.append(now_s - self.since_s)
        if phase in {"measure", "inputs", "optimizer"}:
            self.since_s = now_s
            self.in_step = self.in_step + 1 if phase == "inputs" else 0
            self.forward_s, self.backward_s, self.without_s = {}, {}, 0.0
        self.phase = phase
        if time.perf_counter() > self.until_s:
            raise _TookTooLong

    def note_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the end of an update."""
        self.begin("between updates")

    def made(self, index: int, _block: nn.Module, _inputs: Any, output: Any) -> None:
        """Note that a block's output was made, and ask for its gradient."""
        made = output[0] if isinstance(output, tuple) else output
        now_s = self.clock()
        if not made.requires_grad:
            self.entered_s = self.entered_s if index else now_s
            self.without_s += now_s - self.entered_s if index == self.blocks - 1 else 0.0
        elif self.phase == "forward":
            self.forward_s[index] = now_s
            made.register_hook(partial(self._came, index))

    def _came(self, index: int, _gradient: Tensor) -> None:
        self.backward_s[index] = self.clock()

    def part(self) -> Part:
        """Return the part of a pass that is running."""
        if self.phase not in {"forward", "backward"}:
            return ""
        ends, done = (0, self.blocks - 1), self.forward_s
        if self.phase == "backward":
            ends, done = ends[::-1], self.backward_s
        return "blocks" if ends[0] in done and ends[1] not in done else "outside"

    def _middle_s(self) -> float:
        """Return the seconds of all blocks after the first; not a number without their stamps."""
        first, last = 0, self.blocks - 1
        if not {first, last} <= self.forward_s.keys() & self.backward_s.keys():
            return math.nan
        return (
            self.forward_s[last]
            - self.forward_s[first]
            + self.backward_s[first]
            - self.backward_s[last]
        )

    @property
    def positions(self) -> int:
        """Return the positions of a pass."""
        return self.micro_batch * self.length

    @property
    def first_of_its_length_s(self) -> float:
        """Return how much longer the first pass took than those after it: what it takes to make the
        kernels of its shapes, once for all blocks. At most as long as a pass.
        """
        first_s, *rest_s = [total for total, _ in self.passes_s["first"]]
        if not rest_s:
            return 0.0
        usual_s = _typical(rest_s)
        return min(max(first_s - usual_s, 0.0), usual_s)

    @property
    def every_s(self) -> list[float]:
        """Return the seconds of all passes."""
        return [total for each in self.passes_s.values() for total, _ in each]

    @property
    def repeated_s(self) -> list[float]:
        """Return the seconds of all passes, without the first of each kind that ran again."""
        return [total for each in self.passes_s.values() for total, _ in each[len(each) > 1 :]]

    @property
    def agree(self) -> bool:
        """Return whether further passes would hardly change the result."""
        return all(
            len(passes) >= ENOUGH_PASSES and _agree([total for total, _ in passes])
            for passes in self.passes_s.values()
        )

    def of_whole(self, whole: int) -> tuple[float, float] | None:
        """Return the seconds of a first and a further pass through all blocks of the whole model;
        None without the stamps of a pass.
        """
        first = self.passes_s["first"]
        first_s = self._of_whole(first, whole)
        further_s = self._of_whole(self.passes_s["further"] or first, whole)
        return None if first_s is None or further_s is None else (first_s, further_s)

    def update_of_whole_s(self, whole: int) -> float:
        """Return the seconds of the whole model's update."""
        alone, each = self.trainable
        grown = (alone + each * whole) / max(alone + each * self.blocks, 1)
        return _typical(self.updates_s) * grown

    def _of_whole(self, passes_s: Sequence[tuple[float, float]], whole: int) -> float | None:
        if not passes_s:
            return None
        if self.blocks == whole:
            return _typical([total for total, _ in passes_s])
        if any(math.isnan(middle) for _, middle in passes_s):
            return None
        block_s = _typical([middle for _, middle in passes_s]) / (self.blocks - 1)
        outside_s = _typical([total - middle for total, middle in passes_s])
        return outside_s + block_s * (whole - 1)


def timed_passes(
    timed: Sequence[_Stamps], length: int, whole: int, watch: CoreWatch
) -> TimedPasses | None:
    """Return the seconds of the whole model's parts for sequences of a length; None where nothing
    was timed.

    Args:
        timed: Timed passes by their size, small ones first.
        length: Positions of a sequence of the step.
        whole: Blocks of the model.
        watch: Has ended, and says what other programs took while the passes ran.
    """
    whole_s = [(each, each.of_whole(whole)) for each in timed if each.updates_s]
    usable = [(each, seconds) for each, seconds in whole_s if seconds is not None]
    if not usable:
        return None
    longest, stretch = usable[-1][0], watch.own_over_clock
    first_s, further_s = (
        stretch * _at_length([(each.length, seconds[index]) for each, seconds in usable], length)
        for index in (0, 1)
    )
    return TimedPasses(
        micro_batch=longest.micro_batch,
        first_s=first_s,
        further_s=further_s,
        update_s=stretch * min(each.update_of_whole_s(whole) for each, _ in usable),
        spread=max(longest.repeated_s) / min(longest.repeated_s),
        lost_share=watch.lost_share,
        tries=len(longest.every_s),
        blocks=(longest.blocks, whole),
        made=time.time(),
        positions=(longest.length, length),
        lengths=len({each.length for each, _ in usable}),
        fixed_s=_fixed_s([(each.positions, stretch * seconds[1]) for each, seconds in usable]),
        new_length_s=stretch * longest.first_of_its_length_s,
        fusible=None
        if longest.operators is None
        else longest.operators.share(longest.blocks, whole),
    )


def _fixed_s(timed_s: Sequence[tuple[int, float]]) -> float | None:
    """Return the seconds of a pass that do not grow with its positions, from (positions, seconds)
    of passes; None where all have as many.
    """
    if len({positions for positions, _ in timed_s}) == 1:
        return None
    return _at_length(timed_s, 0)


def _at_length(timed_s: Sequence[tuple[int, float]], length: int) -> float:
    """Return the seconds of a pass with rows of a length, from (length, seconds) of one or two
    shorter ones: a constant, and a share that grows with the positions.
    """
    (short, short_s), (long, long_s) = timed_s[0], timed_s[-1]
    each_s = long_s / long
    if short < long:
        slope_s = (long_s - short_s) / (long - short)
        each_s = min(max(slope_s, LEAST_MARGINAL * each_s), each_s)
    return long_s + each_s * (length - long)


def _typical(times_s: Sequence[float]) -> float:
    """Return the median of the faster half: other programs only slow down, and the first seconds of
    a process are slower than those that follow.
    """
    return statistics.median(_faster_half(times_s))


def _faster_half(times_s: Sequence[float]) -> list[float]:
    return sorted(times_s)[: (len(times_s) + 1) // 2]


def _agree(times_s: Sequence[float]) -> bool:
    fastest_s, *rest_s = _faster_half(times_s)
    return max(rest_s, default=fastest_s) <= AGREE_WITHIN * fastest_s


def _run(
    spec: StepSpec, model: nn.Module, micro_batch: int, seconds: float, scored: float
) -> list[_Stamps]:
    """Return the stamps of steps with short rows and, where time is left, with longer ones."""
    prepare(spec, model)
    name, blocks = named_blocks_of(model)
    trained = {
        key: parameter.numel()
        for key, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    inside = sum(count for key, count in trained.items() if key.startswith(f"{name}."))
    trainable = (sum(trained.values()) - inside, inside // len(blocks))
    clock = own_clock()
    began_s, until_s = clock(), time.perf_counter() + MOST_TIMES_BUDGET * seconds
    end_s = began_s + seconds
    is_packed = spec.attention == PACKED_ATTENTION and spec.sequence_length > FIRST_LENGTH
    lacks = UNEVEN if is_packed else 0
    first = min(FIRST_LENGTH, spec.sequence_length) - lacks
    warm = _Stamps(1, first, len(blocks), trainable, until_s)
    timed = [warm]
    with suppress(_TookTooLong):
        _take_steps(spec, model, blocks, warm, scored, end_s=began_s)
        del warm.passes_s["first"][0]  # it made the kernels of its shapes
        position_s = min(warm.every_s) / warm.length
        per_call = 1 + (2 if spec.accumulates else 1)
        positions = int((end_s - clock()) / per_call / position_s)
        rows, length = _size(positions, micro_batch, spec.sequence_length)
        length -= lacks
        timed.append(_Stamps(rows, length, len(blocks), trainable, until_s))
        _take_steps(spec, model, blocks, timed[-1], scored, end_s=end_s)
        watched = _Stamps(rows, length, len(blocks), trainable, until_s)
        with ElementWiseWatch(watched.part) as operators:
            _take_steps(spec, model, blocks, watched, scored, end_s=began_s)
        timed[-1].operators = operators
    return timed


def _size(positions: int, micro_batch: int, length: int) -> tuple[int, int]:
    """Return rows and their length for a pass of so many positions: whole rows where it holds one,
    else a row that is shorter, but longer than the first ones.
    """
    if positions >= length or length <= 2 * FIRST_LENGTH:
        return max(1, min(micro_batch, positions // length)), length
    return 1, max(positions // FIRST_LENGTH, 2) * FIRST_LENGTH


def _take_steps(
    spec: StepSpec,
    model: nn.Module,
    blocks: nn.ModuleList,
    stamps: _Stamps,
    scored: float,
    *,
    end_s: float,
) -> None:
    """Run steps with passes of the stamps' size: once, and again while there is time for it and
    their times do not agree.
    """
    hooks = [
        block.register_forward_hook(partial(stamps.made, index))
        for index, block in enumerate(blocks)
    ]
    take = _steps(replace(spec, sequence_length=stamps.length), model, stamps, scored)
    try:
        for _ in range(MOST_CALLS):
            started_s = stamps.clock()
            take(stamps.micro_batch)
            if stamps.agree or 2 * stamps.clock() - started_s > end_s:
                break
    finally:
        for hook in hooks:
            hook.remove()


def _steps(
    spec: StepSpec, model: nn.Module, stamps: _Stamps, scored: float
) -> Callable[[int], None]:
    """Return what runs two optimizer steps with micro-batches of a given size."""
    inner = transformers_model(model)
    body = hidden_states_of(inner)
    network = Network(inner, body, spec.loss_chunk)
    optimizer = optimizer_for(spec, model)
    vocabulary = int(inner.config.get_text_config().vocab_size)

    def take(micro_batch: int) -> None:
        repeat_steps(network, method_of(spec), optimizer, spec, lambda: batch(micro_batch), stamps)

    def batch(micro_batch: int) -> MicroBatch:
        micro = blank_batch(spec, micro_batch)
        micro.inputs_BT.random_(vocabulary)
        micro.targets_BT.random_(2)
        if scored < 1:
            return _scored_in_part(micro, scored)
        if micro.scored_N is not None:
            micro.scored_N.random_(micro.inputs_BT.numel())
        return micro

    return take


def _scored_in_part(micro: MicroBatch, share: float) -> MicroBatch:
    """Return it with a loss of this share of its positions only."""
    count = max(1, round(share * micro.inputs_BT.numel()))
    chosen_N = torch.randperm(micro.inputs_BT.numel())[:count].sort().values
    ignored_N = torch.full((micro.targets_BT.numel(),), IGNORED)
    ignored_N[chosen_N] = micro.targets_BT.flatten()[chosen_N]
    kept = {
        name: values[:count] if name.endswith("_N") else values
        for name, values in micro.kept.items()
    }
    targets_BT = ignored_N.view_as(micro.targets_BT)
    return replace(micro, targets_BT=targets_BT, scored_N=chosen_N, kept=kept)
