"""Predicted beside published peaks of GPU memory.

    python benchmarks/memory_truth.py CSV [--source WORDS] [--rows]
"""

import argparse
import csv
import json
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import memory_rows
import numpy as np
from memory_stack import LeftOut, Stack

from brimful.base.env import cache_folder
from brimful.base.units import GIB
from brimful.hardware import catalog as devices
from brimful.model import catalog as models
from brimful.planning.allocator import CachingAllocator, Usage
from brimful.planning.memory import Footprint, Replayed, footprint
from brimful.planning.step import Habits, Lora, LossChain, PeftAdapter, StepSpec, canonical
from brimful.planning.steps import SECOND_STEP, run_of
from brimful.planning.target import target_of
from brimful.planning.trace import KINDS, Trace
from brimful.rehearsal.store import StoredTraces


def spec_of(stack: Stack, sequence_length: int | None = None) -> StepSpec:
    """A declared stack as a step that can be traced."""
    row = models.find(stack.model)
    assert row is not None, stack.model
    device = devices.get(stack.device)
    return StepSpec(
        config_json=canonical({**row.config, **stack.model_overrides}),
        sequence_length=sequence_length or stack.sequence_length,
        task=stack.task,
        weights=stack.weights,
        autocast=stack.autocast,
        adapter=_adapter(stack),
        quantize={"none": "none", "nf4_double": "nf4", "gptq4": "gptq4"}[stack.quantize],
        gptq_group=stack.gptq_group,
        upcast="norms" if stack.fp32_norms else False,
        loss="model" if stack.task != "causal_lm" else LossChain(stack.loss.upcast, stack.loss.shifted_copy, stack.loss.cross_entropy),
        recompute=stack.recompute != "none",
        flash=device.abilities.flash_attention and stack.attention != "eager",
        attention={"eager": "eager", "sdpa": "sdpa", "flash2": "brimful_fa2"}[stack.attention],
        optimizer=stack.optimizer,
        habits=Habits(stack.fused_rms_norm, stack.fused_rope, stack.fused_lora, stack.keeps_outputs, stack.use_cache, stack.keeps_fused_qkv, stack.recompute == "reentrant"),
        accumulates=stack.accumulation > 1,
        clips=stack.clip,
        padded=stack.padded,
    )


def _adapter(stack: Stack) -> Lora | PeftAdapter | None:
    if stack.adapter is None:
        return None
    adapter = stack.adapter
    dtype = "fp32" if adapter.dtype == "fp32" else stack.weights
    if adapter.peft_type == "LORA":
        return Lora(adapter.rank, ",".join(adapter.targets), adapter.dropout, dtype, bool(adapter.settings.get("use_dora")))
    return PeftAdapter(adapter.peft_type, json.dumps(adapter.settings, sort_keys=True), dtype)


class Emptied(Replayed):
    """A run of two steps with `torch.cuda.empty_cache` between them."""

    def __init__(self, trace: Trace, workspace_bytes: int) -> None:
        super().__init__(trace, workspace_bytes)
        events_E, start = self.trace.events_E, self.trace.marks[SECOND_STEP]
        ends_gradient_E = (events_E < 0) & (self.trace.kinds_S[np.abs(events_E) - 1] == KINDS.index("gradients"))
        ends_gradient_E[: self.trace.marks["optimizer"]] = False
        self._emptied_at = min(start, int(np.argmax(ends_gradient_E)))  # the loop zeroes gradients after it empties the cache

    @cached_property
    def usage(self) -> Usage:  # type: ignore[override]
        allocator, handles = CachingAllocator(), dict[int, int]()
        sizes = self.trace.sizes_S.tolist()
        peak_bytes, peak_event, reserved_at_peak, reserved_bytes, reserved_event = 0, -1, 0, 0, -1
        for index, event in enumerate(self.trace.events_E.tolist()):
            if index == self._emptied_at:
                allocator.empty_cache()
            if event < 0:
                allocator.free(handles.pop(-event - 1))
                continue
            handles[event - 1] = allocator.malloc(sizes[event - 1])
            if allocator.reserved_bytes > reserved_bytes:
                reserved_bytes, reserved_event = allocator.reserved_bytes, index
            if allocator.allocated_bytes > peak_bytes:
                peak_bytes, peak_event, reserved_at_peak = allocator.allocated_bytes, index, allocator.reserved_bytes
        return Usage(peak_bytes, peak_event, reserved_at_peak, reserved_bytes, reserved_event, None)


def predict(stack: Stack) -> Footprint:
    """The footprint of a declared stack on its device."""
    target = target_of(devices.get(stack.device))
    traces = [_trace(stack, length) for length in (stack.mean_sequence_length, stack.sequence_length) if length]
    trace = run_of(traces) if len(traces) > 1 else traces[0]
    replayed = (Emptied if stack.empties_cache_every else Replayed)(trace, target.workspace_bytes)
    return footprint(replayed, target, stack.micro_batch)


def _trace(stack: Stack, length: int) -> Trace:
    return StoredTraces(spec_of(stack, length), cache_folder() / "traces").at(stack.micro_batch)
