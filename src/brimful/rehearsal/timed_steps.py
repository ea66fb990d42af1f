"""Real optimizer steps of a model with few of its blocks, timed on this CPU before anything is
trained.

A block in the middle is timed by itself, between two stamps, so that the time of all blocks follows
from a few.
"""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from brimful.base.errors import PlanError
from brimful.hardware.contention import CoreWatch
from brimful.hardware.host import keep_freed_memory, stop_keeping_freed_memory
from brimful.model.blocks import named_blocks_of
from brimful.planning.step import StepSpec
from brimful.planning.timed import TimedPasses
from brimful.rehearsal.losses import loss_of
from brimful.rehearsal.models import (
    config_of,
    count_parameters,
    meta_model,
    num_blocks,
    transformers_model,
    with_layers,
)
from brimful.rehearsal.optimizers import optimizer_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.training import (
    prepare,
    random_batch,
    repeat_steps,
    without_garbage_collector,
)
from brimful.training.method import Network, hidden_states_of

WHOLE_UP_TO = 4
"""Models with at most this many blocks are run whole."""
PASS_SHARE = 0.25
"""Longest pass, as a share of the time for measuring. What else a machine does lasts longer than a
pass, so few long passes say as much as many short ones, and need no scaling to the real size.
"""
MOST_CALLS = 12
MOST_PARAMETERS = 150_000_000
"""A larger model is not made only to time it: filling its weights would take longer."""


def time_passes(
    spec: StepSpec, micro_batch: int, seconds: float, threads: int
) -> TimedPasses | None:
    """Run optimizer steps of a model like the declared one, and return the time of their parts.

    torch's number of threads and its random state do not change.

    Args:
        spec: The step, on a CPU.
        micro_batch: Most sequences of a pass; fewer where a pass would take long.
        seconds: Time to spend after the model is made.
        threads: CPU threads of the training.

    Returns:
        None where the step cannot be taken apart like this: blocks of several kinds, or a model too
        large to make only for this.
    """
    if spec.optimizer in {"8bit", "paged_8bit"} or type(spec) is not StepSpec or spec.feedback:
        return None
    config = config_of(spec)
    whole = num_blocks(config)
    blocks = _blocks_to_run(whole, getattr(config, "layer_types", None))
    short = with_layers(config, blocks)
    if count_parameters(meta_model(spec, short))[0] > MOST_PARAMETERS:
        return None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    keep_freed_memory()
    try:
        with without_garbage_collector(), torch.random.fork_rng(devices=[]), CoreWatch() as watch:
            stamps = _run(spec, real_model(spec, short), micro_batch, seconds)
    except (RuntimeError, PlanError):
        return None  # a step that cannot be run like this is predicted from its operators
    finally:
        torch.set_num_threads(before)
        stop_keeping_freed_memory()
    return None if stamps is None else stamps.passes(whole, watch.lost_share)


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


@dataclass
class _Stamps:
    """When each part of the steps began, and when each block's output and gradient came.

    Attributes:
        micro_batch: Sequences of a pass.
        blocks: Number of blocks in the model that runs.
        grown: Trained parameters of the whole model over those of this one, by blocks.
        passes_s: By "first" and "further": (whole pass, blocks after the first) of every pass.
        updates_s: Of every update.
    """

    micro_batch: int
    blocks: int
    trainable: tuple[int, int]
    passes_s: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    updates_s: list[float] = field(default_factory=list)
    phase: str = ""
    in_step: int = 0
    since_s: float = 0.0
    forward_s: dict[int, float] = field(default_factory=dict)
    backward_s: dict[int, float] = field(default_factory=dict)

    def begin(self, phase: str) -> None:
        """Note the beginning of a phase of `repeat_steps`."""
        now_s = time.perf_counter()
        if self.phase == "backward" and phase in {"inputs", "optimizer"}:
            name = "first" if self.in_step == 1 else "further"
            self.passes_s[name].append((now_s - self.since_s, self._middle_s()))
        if self.phase == "optimizer":
            self.updates_s.append(now_s - self.since_s)
        if phase in {"inputs", "optimizer"}:
            self.since_s = now_s
            self.in_step = self.in_step + 1 if phase == "inputs" else 0
            self.forward_s, self.backward_s = {}, {}
        self.phase = phase

    def note_inputs(self, tensors: Iterable[Tensor]) -> None:
        """Do nothing."""

    def note_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the end of an update."""
        self.begin("between updates")

    def made(self, index: int, _block: nn.Module, _inputs: Any, output: Any) -> None:
        """Note that a block's output was made, and ask for its gradient."""
        made = output[0] if isinstance(output, tuple) else output
        if self.phase == "forward" and made.requires_grad:
            self.forward_s[index] = time.perf_counter()
            made.register_hook(partial(self._came, index))

    def _came(self, index: int, _gradient: Tensor) -> None:
        self.backward_s[index] = time.perf_counter()

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

    def forget(self) -> None:
        """Drop what was timed so far: it warmed up."""
        self.passes_s.clear()
        self.updates_s.clear()

    def passes(self, whole: int, lost_share: float) -> TimedPasses | None:
        """Return the seconds of the whole model's parts."""
        del self.passes_s["first"][0]  # it made the kernels of its shapes
        first = self.passes_s["first"]
        first_s = self._of_whole(first, whole)
        further_s = self._of_whole(self.passes_s["further"] or first, whole)
        if first_s is None or further_s is None:
            return None
        alone, each = self.trainable
        grown = (alone + each * whole) / max(alone + each * self.blocks, 1)
        every_s = [total for total, _ in first]
        return TimedPasses(
            micro_batch=self.micro_batch,
            first_s=first_s,
            further_s=further_s,
            update_s=_typical(self.updates_s) * grown,
            spread=max(every_s) / min(every_s),
            lost_share=lost_share,
            tries=sum(len(each) for each in self.passes_s.values()),
            blocks=(self.blocks, whole),
            made=time.time(),
        )

    def _of_whole(self, passes_s: Sequence[tuple[float, float]], whole: int) -> float | None:
        if self.blocks == whole:
            return _typical([total for total, _ in passes_s])
        if any(math.isnan(middle) for _, middle in passes_s):
            return None
        block_s = _typical([middle for _, middle in passes_s]) / (self.blocks - 1)
        outside_s = _typical([total - middle for total, middle in passes_s])
        return outside_s + block_s * (whole - 1)


def _typical(times_s: Sequence[float]) -> float:
    """Return the median of the faster half: other programs only slow down, and the first seconds of
    a process are slower than those that follow.
    """
    return statistics.median(sorted(times_s)[: (len(times_s) + 1) // 2])


def _run(spec: StepSpec, model: nn.Module, micro_batch: int, seconds: float) -> _Stamps | None:
    """Return the stamps of several steps; None where the model has too few blocks."""
    prepare(spec, model)
    name, blocks = named_blocks_of(model)
    trained = {
        key: parameter.numel()
        for key, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    inside = sum(count for key, count in trained.items() if key.startswith(f"{name}."))
    trainable = (sum(trained.values()) - inside, inside // len(blocks))
    stamps = _Stamps(1, len(blocks), trainable)
    hooks = [
        block.register_forward_hook(partial(stamps.made, index))
        for index, block in enumerate(blocks)
    ]
    take = _steps(spec, model, stamps)
    end_s = time.perf_counter() + seconds
    take(1)
    one_s = min(total for total, _ in stamps.passes_s["first"])
    stamps.micro_batch = max(1, min(micro_batch, int(PASS_SHARE * seconds / one_s)))
    stamps.forget()
    for _ in range(MOST_CALLS):
        if time.perf_counter() > end_s and len(stamps.passes_s["first"]) > 1:
            break
        take(stamps.micro_batch)
    for hook in hooks:
        hook.remove()
    return stamps


def _steps(spec: StepSpec, model: nn.Module, stamps: _Stamps) -> Callable[[int], None]:
    """Return what runs two optimizer steps with micro-batches of a given size."""
    inner = transformers_model(model)
    network = Network(inner, hidden_states_of(inner), spec.loss_chunk)
    optimizer = optimizer_of(
        spec, [parameter for parameter in model.parameters() if parameter.requires_grad]
    )
    vocabulary = int(inner.config.get_text_config().vocab_size)

    def take(micro_batch: int) -> None:
        repeat_steps(network, loss_of(spec), optimizer, spec, lambda: batch(micro_batch), stamps)

    def batch(micro_batch: int) -> tuple[Tensor, ...]:
        return random_batch(spec, micro_batch, vocabulary)

    return take
