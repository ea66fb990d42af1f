"""Predicted beside published peaks of GPU memory, each row with its own software stack.

    python benchmarks/memory_truth.py CSV [--several] [--source WORDS] [--rows] [--compiled] [--no-record]

With --several the rows of several GPUs are predicted, through the planner's trace of one rank; nothing
is fitted to these, and their record is memory_parallel.

Rules: a stack follows from a row's source and columns (`memory_rows`), never from what was measured
in it, lengths of two data sets aside (`memory_fms`, `memory_peft`). One trace per stack, which is kept;
allocated bytes are the trace's, reserved bytes what the allocator's rules make of it, the driver's figure
adds the catalog's context. Errors are predicted over measured minus one. A row that repeats a
setting counts again under "rows" and once, with its median measurement, under "settings". Rows that
ran out of memory are right where the verdict is "does not fit".
"""

import argparse
import csv
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import memory_fms
import memory_rows
from brimful.base.env import cache_folder
from brimful.base.errors import BrimfulError
from brimful.base.units import GIB
from brimful.hardware import catalog as devices
from brimful.integrations.other_tools.stand_ins import ForeignStep, PeftAdapter, TrainerQuirks
from brimful.integrations.other_tools.stand_ins.attention import FLASH2, FLASH2_REPEATED
from brimful.model import catalog as models
from brimful.planning.allocator import CachingAllocator, Usage
from brimful.planning.longest_pass import SOME_PASSES
from brimful.planning.memory import (
    RESERVED_SHARE,
    SHARDED_SHARE,
    Footprint,
    Replayed,
    Replays,
    footprint,
    peaks_alone,
)
from brimful.planning.ragged import reserved_over
from brimful.planning.step import Lora, canonical
from brimful.planning.step_sequence import SECOND_STEP, sequence_of_steps
from brimful.planning.target import target_of, with_communication
from brimful.planning.trace import KINDS, Trace
from brimful.rehearsal.store import StoredTraces
from left_out import LeftOut
from memory_stack import Stack, version_of
from record import write_record


def spec_of(stack: Stack, sequence_length: int | None = None) -> ForeignStep:
    """A declared stack as a step that can be traced."""
    row = models.find(stack.model)
    assert row is not None, stack.model
    device = devices.get(stack.device)
    is_decoder = stack.task == "causal_lm"
    return ForeignStep(
        config_json=canonical({**row.config, **stack.model_overrides}),
        sequence_length=sequence_length or stack.sequence_length,
        method="pretrain" if is_decoder else "classify",
        options_json="{}" if is_decoder else '{"labels": 2}',
        weights=stack.weights,
        autocast=stack.autocast,
        adapter=_adapter(stack),
        quantize={"none": "none", "nf4_double": "nf4", "gptq4": "gptq4"}[stack.quantize],  # type: ignore[arg-type]
        gptq_group=stack.gptq_group,
        fp32_norms=stack.fp32_norms,
        chain=stack.loss if is_decoder else None,
        recompute=stack.recompute != "none",
        flash=device.abilities.flash_attention and stack.attention != "eager",
        attention={
            "eager": "eager",
            "sdpa": "sdpa",
            "flash2": FLASH2_REPEATED if stack.repeats_keys else FLASH2,
        }[stack.attention],
        optimizer=stack.optimizer,
        quirks=TrainerQuirks(
            stack.fused_rms_norm,
            stack.fused_rope,
            stack.fused_lora,
            stack.keeps_outputs,
            stack.use_cache,
            stack.keeps_fused_qkv,
            stack.fp32_outputs,
            stack.recompute == "reentrant",
        ),
        accumulates=stack.accumulation > 1,
        clips=stack.clip,
        padded=stack.padded,
        compiled="model" if stack.compile else "none",
        ranks=stack.ranks,
        sharding=stack.sharding,
        replicates_adapters=stack.replicates_adapters,
    )


def _adapter(stack: Stack) -> Lora | PeftAdapter | None:
    if stack.adapter is None:
        return None
    adapter = stack.adapter
    dtype = "fp32" if adapter.dtype == "fp32" else stack.weights
    if adapter.peft_type == "LORA":
        return Lora(
            adapter.rank,
            ",".join(adapter.targets),
            adapter.dropout,
            dtype,
            bool(adapter.settings.get("use_dora")),
        )
    return PeftAdapter(adapter.peft_type, json.dumps(adapter.settings, sort_keys=True), dtype)


class Emptied(Replayed):
    """A run of two steps with `torch.cuda.empty_cache` between them."""

    def __init__(self, make: Callable[[], Trace], workspace_bytes: int) -> None:
        super().__init__(make, workspace_bytes)
        events_E, start = self.trace.events_E, self.trace.marks[SECOND_STEP]
        ends_gradient_E = (events_E < 0) & (
            self.trace.kinds_S[np.abs(events_E) - 1] == KINDS.index("gradients")
        )
        ends_gradient_E[: self.trace.marks["optimizer"]] = False
        self._emptied_at = min(
            start, int(np.argmax(ends_gradient_E))
        )  # the loop zeroes gradients after it empties the cache

    @cached_property
    def usage(self) -> Usage:
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
                peak_bytes, peak_event, reserved_at_peak = (
                    allocator.allocated_bytes,
                    index,
                    allocator.reserved_bytes,
                )
        return Usage(peak_bytes, peak_event, reserved_at_peak, reserved_bytes, reserved_event, None)


def predict(stack: Stack) -> Footprint:
    """The footprint of a declared stack on its device, or of one rank of several, as a plan for
    several devices makes it.
    """
    target, share = target_of(devices.get(stack.device)), RESERVED_SHARE[stack.quantize != "none"]
    if stack.gpus > 1:
        version = None if stack.torch_version is None else version_of(stack.torch_version)
        target, share = with_communication(target, version), SHARDED_SHARE
    traces = [
        _trace(stack, length)
        for length in (stack.mean_sequence_length, stack.sequence_length)
        if length
    ]
    trace = sequence_of_steps(traces) if len(traces) > 1 else traces[0]
    replayed = (Emptied if stack.empties_cache_every else Replayed)(
        lambda: trace, target.workspace_bytes
    )
    peaks = peaks_alone(replayed, share)
    if stack.lengths != "fixed" and not stack.empties_cache_every:
        replays = Replays(StoredTraces(spec_of(stack), cache_folder() / "traces"))
        peaks = reserved_over(replays, varying_rows(stack), target.workspace_bytes)
    return footprint(replayed, target, _rows(stack), peaks)


def varying_rows(stack: Stack) -> list[float]:
    """Rows of a run's successive passes over texts of the data set's lengths, the longest last."""
    tokens = memory_fms.orca_passes(stack.micro_batch, joined=stack.lengths == "padding_free")
    full = _rows(stack)
    rows = [full * min(1.0, each / stack.sequence_length) for each in tokens]
    return [*rows[: SOME_PASSES - 1], full]


def _rows(stack: Stack) -> int:
    """Rows of the batch; without padding its sequences are joined into one."""
    return 1 if stack.lengths == "padding_free" else stack.micro_batch


def _trace(stack: Stack, length: int) -> Trace:
    return StoredTraces(spec_of(stack, length), cache_folder() / "traces").at(_rows(stack))


@dataclass(frozen=True)
class Outcome:
    """A measured figure beside its prediction.

    Attributes:
        group: Source, GPU and method; `kind` is "allocated", "reserved" or "driver".
        setting: What else decides the prediction; rows that share it repeat a setting.
        inside: The measurement lies in the 90 % interval.
    """

    group: tuple[str, str, str]
    kind: str
    setting: str
    measured_gib: float
    predicted_gib: float
    inside: bool

    @property
    def error(self) -> float:
        return self.predicted_gib / self.measured_gib - 1


def outcomes_of(row: Mapping[str, str], stack: Stack, foot: Footprint) -> list[Outcome]:
    """The row's own figure, and the driver's where the row has it beside another."""
    figures = {
        stack.kind: stack.measured_gib,
        **({"driver": stack.others_gib["driver"]} if "driver" in stack.others_gib else {}),
    }
    group = (row["source_repo"].split("/")[-1], stack.device.removeprefix("NVIDIA "), row["method"])
    setting = (
        f"{stack.configuration} {stack.model} {stack.micro_batch} x {stack.sequence_length}"
        f" {stack.device}"
    )
    made = []
    for kind, measured_gib in figures.items():
        if measured_gib:
            prediction = getattr(foot, kind)
            inside = prediction.low <= measured_gib * GIB <= prediction.high
            made.append(Outcome(group, kind, setting, measured_gib, prediction.value / GIB, inside))
    return made


def cannot(stack: Stack, *, compiled: bool = False) -> str | None:
    """Why a declared stack is not traced; None where it is. `compiled`: one graph is traced, too."""
    virtual = stack.adapter is not None and stack.adapter.peft_type in (
        "PROMPT_TUNING",
        "PREFIX_TUNING",
        "P_TUNING",
    )
    reasons = {
        "compiled as one graph, which --compiled traces in minutes": stack.compile and not compiled,
        "4-bit experts: transformers 5 fuses what these stacks held as one linear layer each": (
            stack.mixture and stack.quantize != "none"
        ),
        "virtual tokens: peft's wrapper cannot be put on fake tensors yet": virtual,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Errors over rows and over settings, in percent of the measurement."""
    by_setting: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_setting[outcome.setting].append(outcome)
    settings = [
        abs(each[0].predicted_gib / statistics.median(one.measured_gib for one in each) - 1)
        for each in by_setting.values()
    ]
    errors = np.array([outcome.error for outcome in outcomes])
    return {
        "rows": len(errors),
        "median_percent": _percent(np.median(np.abs(errors))),
        "ninetieth_percent": _percent(np.quantile(np.abs(errors), 0.9)),
        "worst_percent": _percent(errors[np.argmax(np.abs(errors))]),
        "bias_percent": _percent(np.median(errors)),
        "inside_percent": round(100 * statistics.mean(outcome.inside for outcome in outcomes), 1),
        "settings": len(settings),
        "settings_median_percent": _percent(statistics.median(settings)),
        "measured_over_predicted_5_50_95": [
            round(float(share), 3) for share in np.quantile(1 / (1 + errors), [0.05, 0.5, 0.95])
        ],
    }


def _percent(share: float) -> float:
    return round(100 * float(share), 2)


def main() -> None:
    """Predict every usable row, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv")
    parser.add_argument("--several", action="store_true", help="rows of several GPUs")
    parser.add_argument("--source", default="", help="only rows whose source contains these words")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--compiled", action="store_true", help="whole compiled models, too")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    with open(asked.csv, encoding="utf-8", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if asked.source in row["source_repo"]
            and (row["num_gpus"] not in {"", "1"}) == asked.several
        ]
    readers = memory_rows.SEVERAL_GPUS if asked.several else memory_rows.ONE_GPU
    declared = [(row, memory_rows.stack_of(row, readers)) for row in rows]
    outcomes, verdicts, left_out = predict_all(declared, asked.rows, asked.compiled)
    by_group: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_group[" | ".join((outcome.kind, *outcome.group))].append(outcome)
        by_group[f"{outcome.kind} | all"].append(outcome)
    values = {
        "rows": len(rows),
        "results": {group: summary(members) for group, members in sorted(by_group.items())},
        "verdicts": dict(sorted(verdicts.items())),
        "left_out": dict(left_out.most_common()),
    }
    print(json.dumps(values, indent=1))
    if not asked.no_record:
        print(write_record("memory_parallel" if asked.several else "memory_truth", values))


def predict_all(
    declared: Sequence[tuple[Mapping[str, str], Stack | LeftOut]], verbose: bool, compiled: bool
) -> tuple[list[Outcome], Counter[str], Counter[str]]:
    """Outcomes of rows that ran, verdicts on all by how they ended, and why rows are left out."""
    made: dict[str, Footprint] = {}
    outcomes: list[Outcome] = []
    verdicts, left_out = Counter[str](), Counter[str]()
    for row, stack in declared:
        reason = stack.reason if isinstance(stack, LeftOut) else cannot(stack, compiled=compiled)
        if isinstance(stack, LeftOut) or reason:
            left_out[f"{row['source_repo']}: {reason}"] += 1
            continue
        key = repr((spec_of(stack), stack.micro_batch, stack.device, stack.mean_sequence_length))
        try:
            foot = made[key] = made.get(key) or predict(stack)
        except BrimfulError as error:
            left_out[f"{row['source_repo']}: cannot be traced: {error}"[:160]] += 1
            continue
        verdicts[f"{'failed' if stack.status == 'oom' else 'ran'}: {foot.verdict}"] += 1
        if stack.status == "oom":
            continue
        for outcome in outcomes_of(row, stack, foot):
            outcomes.append(outcome)
            if verbose:
                print(
                    f"{outcome.error:+8.2%} {outcome.kind:9s} {outcome.predicted_gib:7.3f} /"
                    f" {outcome.measured_gib:7.3f} GiB  {outcome.setting}",
                    flush=True,
                )
    return outcomes, verdicts, left_out


if __name__ == "__main__":
    main()
