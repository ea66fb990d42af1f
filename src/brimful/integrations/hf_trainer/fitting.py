"""The micro-batch with which a Trainer fits a device, at the effective batch that it has."""

import dataclasses
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from brimful.base.errors import PlanError
from brimful.base.units import format_bytes
from brimful.base.warning_codes import as_note, coded
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.probe import probe
from brimful.hardware.process_memory import give_back_free_memory, unmapped_bytes
from brimful.integrations.hf_trainer.batches import longest_batch
from brimful.integrations.hf_trainer.rates import predicted_step
from brimful.integrations.hf_trainer.rehearsed import Batch, RehearsedStep, rehearse
from brimful.planning.memory import Footprint
from brimful.planning.plan import Prediction
from brimful.planning.search import MICRO_BATCH_TOKENS
from brimful.planning.survey import Margin, Memory
from brimful.planning.target import target_of
from brimful.planning.trace import Trace
from brimful.planning.work import Work
from brimful.report.quantities import capitalised


@dataclass(frozen=True)
class TrainerPlan:
    """How a Trainer's optimizer step is divided, and what is predicted of it.

    Attributes:
        trainer: Name of its class.
        device: That was planned for.
        micro_batch: Rows of a forward and backward pass on the device.
        passes: Micro-batches of an optimizer step (gradient accumulation).
        before: The same two as the trainer had them.
        reason: Why so.
        footprint: Predicted peak memory.
        step_time: Predicted seconds of an optimizer step; None where no rate is known.
        notes: What else is to be known of it.
    """

    trainer: str
    device: Device
    micro_batch: int
    passes: int
    before: tuple[int, int]
    reason: str
    footprint: Footprint
    step_time: Prediction | None
    notes: tuple[str, ...] = ()

    @property
    def effective_batch(self) -> int:
        """Rows of an optimizer step, which planning never changes."""
        return self.micro_batch * self.passes

    @property
    def changes(self) -> bool:
        """Whether the division is another than the trainer's own."""
        return (self.micro_batch, self.passes) != self.before

    def explain(self) -> str:
        """Return the plan in a few lines."""
        old, new = division_in_words(*self.before), division_in_words(self.micro_batch, self.passes)
        change = f"{old} becomes {new}" if self.changes else f"{new}, as it was"
        peak = self.footprint.driver
        between = f"{format_bytes(peak.low)} to {format_bytes(peak.high)}"
        usable = format_bytes(self.footprint.usable_bytes)
        lines = [
            f"{self.trainer} on {self.device.name}: {change} (effective batch"
            f" {self.effective_batch}).",
            self.reason,
            f"Predicted peak memory: {format_bytes(peak.value)} ({between}) of {usable} usable;"
            f" {self.footprint.verdict}.",
        ]
        return "\n".join([*lines, *map(as_note, self.notes)])


def plan_trainer(trainer: Any, device: Device, margin: Margin, *, keeps: bool) -> TrainerPlan:
    """Return the plan of a Trainer.

    Args:
        keeps: The micro-batch is kept whatever it needs.

    Raises:
        PlanError: its step cannot be traced, or not even one row at a time fits.
    """
    before = (trainer._train_batch_size, trainer.args.gradient_accumulation_steps)
    fitting = _Divisions(trainer, device, margin, before)
    micro_batch, reason = (before[0], "The division is kept.") if keeps else fitting.choose()
    passes = fitting.effective_batch // micro_batch
    footprint = fitting.memory.at(micro_batch)
    return TrainerPlan(
        type(trainer).__name__,
        device,
        micro_batch,
        passes,
        before,
        reason,
        footprint,
        predicted_step(
            fitting.memory.work_at, (micro_batch,) * passes, device, _precision(trainer)
        ),
        tuple(_notes(trainer, changes=micro_batch != before[0])),
    )


def device_of(trainer: Any, device: Device | str) -> Device:
    """Return the device to plan for: a row of the catalog by name, or with "auto" the trainer's
    own.

    Raises:
        DeviceError: no such device.
    """
    if isinstance(device, Device):
        return device
    if device != "auto":
        return catalog.get(device)
    own = trainer.args.device
    chosen = probe(str(own))
    if own.type == "cuda" and chosen.free_memory_bytes is not None:
        # What this process already holds is not free, and will be used by the training.
        held_bytes = torch.cuda.memory_reserved(own)
        chosen = dataclasses.replace(
            chosen, free_memory_bytes=chosen.free_memory_bytes + held_bytes
        )
    return chosen


def _notes(trainer: Any, *, changes: bool) -> Iterator[str]:
    """Yield what a user may not expect."""
    args = trainer.args
    if args.torch_compile:
        yield coded(
            "B111",
            "it is planned as if it were not compiled; a compiled step needs another amount.",
        )
    if changes and not (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func):
        yield coded(
            "B112",
            "its loss is a mean over each micro-batch, not over the step: where micro-batches"
            " count different numbers of rows or tokens, the mean of the step differs a little.",
        )
    if trainer.eval_dataset is not None and args.eval_strategy.value != "no":
        yield coded(
            "B113",
            "its evaluations are not in the prediction; per_device_eval_batch_size decides theirs.",
        )
    if changes and args.dataloader_drop_last:
        yield coded(
            "B114",
            "dataloader_drop_last drops what does not fill a micro-batch, which has another size.",
        )


def name_of(device: torch.device) -> str:
    """Return the name of one of this machine's devices, as plans call it."""
    return probe(str(device)).name


class _Divisions:
    """Divisions of an effective batch, each traced once."""

    def __init__(
        self, trainer: Any, device: Device, margin: Margin, before: tuple[int, int]
    ) -> None:
        self._trainer, self._device, self._margin, self._before = trainer, device, margin, before
        self.effective_batch = before[0] * before[1]
        self._traces = _TrainerTraces(trainer, device, self.effective_batch)
        modules = [each for each in vars(trainer).values() if isinstance(each, nn.Module)]
        process_bytes = process_bytes_beside(modules, device)
        self.memory = Memory(self._traces, target_of(device, process_bytes))

    def choose(self) -> tuple[int, str]:
        """Return the micro-batch and why it was taken."""
        candidates = self._candidates
        if self.memory.fits(candidates[-1], self._margin):
            return candidates[-1], self._of_largest(candidates[-1])
        low, high = 0, len(candidates) - 1  # the last of `low` fits, `high` does not
        while low < high:
            middle = (low + high) // 2
            if self.memory.fits(candidates[middle], self._margin):
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return self._smallest()
        chosen = candidates[low - 1]
        return chosen, self._compared(chosen, candidates[low])

    @cached_property
    def _candidates(self) -> list[int]:
        """Divisors of the effective batch that are useful, in order; the trainer's own among
        them.
        """
        own, whole = self._before[0], self.effective_batch
        tokens = _num_elements(self._traces.batch(own)) / own
        useful = max(own, int(MICRO_BATCH_TOKENS[self._device.kind] / tokens))
        return [size for size in range(1, min(useful, whole) + 1) if whole % size == 0]

    def _of_largest(self, chosen: int) -> str:
        if chosen == self.effective_batch:
            return "The whole effective batch fits in one pass."
        if chosen == self._before[0]:
            return "It fits, and larger passes would not be faster."
        return "It is the largest that fits and is still faster than smaller ones."

    def _compared(self, chosen: int, larger: int) -> str:
        """Say what the trainer's own division would need, or else the next larger one."""
        size = self._before[0] if self._before[0] > chosen else larger
        footprint = self.memory.at(size)
        needs = f"would need {format_bytes(footprint.driver.value)} at its peak"
        if footprint.driver.value <= footprint.usable_bytes:
            needs += ", with less to spare than a plan should leave"
        whole = self.effective_batch
        return (
            f"{capitalised(division_in_words(size, whole // size))} {needs}, and"
            f" {format_bytes(footprint.usable_bytes)} are usable; {chosen} is the largest divisor"
            f" of {whole} that fits."
        )

    def _smallest(self) -> tuple[int, str]:
        """Return one row at a time where it fits without room to spare.

        Raises:
            PlanError: it does not.
        """
        footprint = self.memory.at(1)
        if footprint.verdict == "fits":
            return 1, "One row at a time fits, with less to spare than a plan should leave."
        raise PlanError(
            f"{type(self._trainer).__name__} does not fit {self._device.name}: one row of"
            f" {_num_elements(self._traces.batch(1))} tokens at a time needs"
            f" {format_bytes(footprint.driver.low)} to {format_bytes(footprint.driver.high)}, and"
            f" {format_bytes(footprint.usable_bytes)} are usable."
            f" {_advice(self._trainer, footprint)}"
        )


def _advice(trainer: Any, footprint: Footprint) -> str:
    """Return what would take less, of what the trainer does not do yet."""
    terms, args = footprint.terms, trainer.args
    ideas = []
    name = next(name for name in CHECKPOINTING if hasattr(args, name))
    if not getattr(args, name):
        ideas.append(f"{name}=True computes activations again instead of keeping them")
    if footprint.trainable == footprint.parameters:
        ideas.append("LoRA (peft) has gradients and optimizer states for a few weights only")
    if "8bit" not in str(args.optim) and terms.get("optimizer states", 0):
        ideas.append('optim="adamw_8bit" keeps optimizer states in bytes')
    ideas.append("shorter rows take less")
    largest = max((name for name in terms if name not in _AROUND), key=lambda name: terms[name])
    return f"The largest part is {largest} ({format_bytes(terms[largest])}). {'; '.join(ideas)}."


_AROUND = ("CUDA context and libraries", "process", "allocator slack", "library workspaces")
"""Terms that no setting of a trainer makes smaller."""
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
"""What transformers calls it now, and what it called it before."""


class _TrainerTraces:
    """Traces of a trainer's step, one for every division of its effective batch."""

    def __init__(self, trainer: Any, device: Device, effective_batch: int) -> None:
        self._trainer, self._device, self._effective_batch = trainer, device, effective_batch
        self._batches: dict[int, Batch] = {}
        self._traces: dict[int, Trace] = {}

    def batch(self, micro_batch: int) -> Batch:
        """Return the largest micro-batch of the run."""
        if micro_batch not in self._batches:
            passes = self._effective_batch // micro_batch
            self._batches[micro_batch] = longest_batch(self._trainer, micro_batch, passes)
        return self._batches[micro_batch]

    def at(self, rows: float) -> Trace:
        """Return the trace of a division."""
        micro_batch = round(rows)
        if micro_batch not in self._traces:
            step = RehearsedStep(
                self.batch(micro_batch),
                self._effective_batch // micro_batch,
                cuda=self._device.kind == "cuda",
                flash=self._device.abilities.flash_attention,
            )
            self._traces[micro_batch] = rehearse(self._trainer, step)
        return self._traces[micro_batch]

    def work_at(self, micro_batch: int) -> Work:
        """Return the work of its operators."""
        work = self.at(micro_batch).work
        if work is None:
            raise PlanError("the operators of the step were not recorded.")
        return work


def _num_elements(batch: Batch) -> int:
    """Return the elements of the largest tensor: tokens, for text."""
    return max(value.numel() for value in batch.values() if isinstance(value, Tensor))


def process_bytes_beside(modules: Iterable[nn.Module], device: Device) -> int:
    """Return what this process holds beside these modules; 0 where the training runs on another
    device. What earlier work left free in the process is given back first.
    """
    if device.kind != "cpu" or not device.is_present:
        return 0
    gc.collect()
    give_back_free_memory()
    storages = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for module in modules
        for tensor in [*module.parameters(), *module.buffers()]
    }
    return max(0, unmapped_bytes() - sum(storages.values()))


def _precision(trainer: Any) -> str:
    mixed = trainer.accelerator.mixed_precision
    if mixed in ("bf16", "fp16"):
        return str(mixed)
    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    return names.get(next(trainer.model.parameters()).dtype, "fp32")


def division_in_words(micro_batch: int, passes: int) -> str:
    """`one micro-batch of 8`, `4 micro-batches of 2`."""
    if passes == 1:
        return f"one micro-batch of {micro_batch}"
    return f"{passes} micro-batches of {micro_batch}"
