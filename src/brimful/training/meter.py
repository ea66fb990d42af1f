"""Records of a run: collected on the device, read later in one transfer, written to the journal and
passed to listeners.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from brimful.base.rundir import Journal
from brimful.base.types import Json, JsonDict
from brimful.hardware.contention import own_s, thread_times
from brimful.hardware.process_memory import PeakOfProcess
from brimful.training.spikes import describe
from brimful.training.state import Progress
from brimful.training.tensorfile import Tensors

Listener = Callable[[JsonDict], None]
FLUSH_AFTER_S = 1.0
FLUSH_AFTER_STEPS = 200
MOST_STEP_RECORDS = 5000
"""Longer runs write every k-th step's record; bad steps are always written."""


class DevicePeak:
    """The peak of memory so far: reserved by CUDA's caching allocator, driver memory on MPS; on a
    CPU what the process held since this was made, mapped files not counted.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._process = PeakOfProcess() if device.type == "cpu" else None

    def look(self) -> int:
        """Return it in bytes. On a CPU peaks between two looks may be seen too low."""
        if self._process is not None:
            return self._process.look()
        if self._device.type == "mps":
            return torch.mps.driver_allocated_memory()
        return torch.cuda.max_memory_reserved(self._device)

    def look_at_tensors(self) -> int | None:
        """Return the peak of what tensors take of it, in bytes; None where only the whole is
        counted.
        """
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self._device)


class Meter:
    """Keeps losses and norms on the device until `flush`, so that no step waits for a number.

    Args:
        tokens_per_step: Tokens that a step reads on average, if only a part of them are targets.

    Attributes:
        step_time_s: Mean step time at the last flush; None before the first.
        evaluation_s: Duration of the last evaluation; None before the first.
    """

    def __init__(
        self,
        journal: Journal,
        listeners: Sequence[Listener],
        *,
        device: torch.device,
        total_steps: int,
        skipped: int = 0,
        spikes: int = 0,
        spike_policy: str = "note",
        tokens_per_step: int | None = None,
    ) -> None:
        self._journal, self._listeners = journal, listeners
        self._peak, self._is_cpu = DevicePeak(device), device.type == "cpu"
        self._record_every = max(1, -(-total_steps // MOST_STEP_RECORDS))
        self._pending: list[tuple[JsonDict, Tensor]] = []
        self._skipped, self._tokens_per_step = skipped, tokens_per_step
        self._spikes, self._spike_policy = spikes, spike_policy
        self._begin_timing()
        self._waited_s = 0.0
        self.step_time_s: float | None = None
        self.evaluation_s: float | None = None

    def _begin_timing(self) -> None:
        self._began = thread_times()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around waiting for a batch: its time is counted."""
        started_s = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - started_s

    def note_step(
        self,
        progress: Progress,
        *,
        loss: Tensor,
        grad_norm: Tensor,
        learning_rate: float,
        named: Tensors,
    ) -> None:
        """Keep the values of a step; `named`: further ones of its method."""
        plain = {
            "kind": "step",
            "step": progress.step,
            "learning_rate": learning_rate,
            "tokens": progress.target_tokens,
        }
        guard = progress.guard
        values = torch.stack(
            [
                loss,
                grad_norm,
                guard.loss_scale,
                guard.skipped,
                progress.spikes.found,
                *named.values(),
            ]
        )
        self._pending.append((plain | ({"named": tuple(named)} if named else {}), values))

    def peak_bytes(self) -> int:
        """Return the peak of memory so far."""
        return self._peak.look()

    def flush_if_due(self) -> None:
        """Flush when a second or many steps have passed."""
        if (
            len(self._pending) >= FLUSH_AFTER_STEPS
            or time.perf_counter() - self._began.passed >= FLUSH_AFTER_S
        ):
            self.flush()

    def flush(self) -> None:
        """Read the pending values in one transfer and write the records of their steps."""
        if not self._pending:
            return
        rows = torch.stack([values for _, values in self._pending]).tolist()
        began = self._began
        self._begin_timing()
        passed_s = self._began.passed - began.passed
        self.step_time_s = step_time_s = passed_s / len(rows)
        loader_wait_s, self._waited_s = self._waited_s / len(rows), 0.0
        shared = {
            "step_time_s": step_time_s,
            "loader_wait_s": loader_wait_s,
            "tokens_per_second": self._tokens_per_second(step_time_s),
            "memory_bytes": self._peak.look(),
        }
        if self._is_cpu:
            shared["core_wait_s"] = (passed_s - own_s(began, self._began)) / len(rows)
        allocated_bytes = self._peak.look_at_tensors()
        if allocated_bytes is not None:
            shared["allocated_bytes"] = allocated_bytes
        new_spikes: list[tuple[int, float, float]] = []
        for (plain, _), row in zip(self._pending, rows, strict=True):
            loss, grad_norm, loss_scale, skipped, spikes, *named = row
            if named:
                pairs = zip(plain["named"], named, strict=True)
                plain["named"] = {name: value for name, value in pairs if math.isfinite(value)}
            is_good = skipped == self._skipped and math.isfinite(loss) and math.isfinite(grad_norm)
            is_spike = spikes > self._spikes
            if is_spike:
                new_spikes.append((plain["step"], loss, grad_norm))
            if is_spike or not is_good or plain["step"] % self._record_every == 0:
                values = {
                    "loss": loss,
                    "grad_norm": grad_norm,
                    "skipped": int(skipped),
                    "spikes": int(spikes),
                    "loss_scale": loss_scale,
                }
                self._write({**plain, **values, **shared, "time": time.time()})
            self._skipped, self._spikes = int(skipped), int(spikes)
        if new_spikes:
            message = describe(*new_spikes[0], len(new_spikes), self._spike_policy)
            self._write({"kind": "event", "step": new_spikes[0][0], "message": message})
        self._pending.clear()

    def _tokens_per_second(self, step_time_s: float) -> float | None:
        """Return the rate over the pending steps; None if their number of tokens is unknown."""
        if self._tokens_per_step:
            return self._tokens_per_step / step_time_s
        if len(self._pending) == 1:
            return None
        tokens: int = self._pending[-1][0]["tokens"] - self._pending[0][0]["tokens"]
        return tokens / (len(self._pending) - 1) / step_time_s

    def note_evaluation(self, progress: Progress, score: Json, *, best: bool) -> None:
        self._write({"kind": "evaluation", "step": progress.step, **score, "best": best})
        began_s = self._began.passed
        self._begin_timing()
        self.evaluation_s = self._began.passed - began_s

    def note_checkpoint(self, step: int, num_bytes: int, seconds: float) -> None:
        self._write({"kind": "checkpoint", "step": step, "bytes": num_bytes, "seconds": seconds})
        self._begin_timing()

    def note_event(self, progress: Progress, message: str) -> None:
        self._write({"kind": "event", "step": progress.step, "message": message})

    def note_out_of_memory(
        self, step: int, phase: str, larger: Sequence[int], smaller: Sequence[int], *, where: str
    ) -> JsonDict:
        """Record that memory ran out and the work is repeated in smaller pieces; return the record.

        Args:
            step: The optimizer step that is repeated, or the one that was evaluated.
            phase: "training" or "evaluation".
            larger, smaller: Sequences per pass before and after.
            where: The pass that failed and what it asked for, or the split.
        """
        record = {
            "kind": "out_of_memory",
            "step": step,
            "phase": phase,
            "from": list(larger),
            "to": list(smaller),
            "where": where,
        }
        self._write(record)
        return record

    def note(self, record: JsonDict) -> None:
        """Write a record of any other kind."""
        self._write(record)
        self._begin_timing()

    def _write(self, record: JsonDict) -> None:
        self._journal.append(record)
        for listener in self._listeners:
            listener(record)
