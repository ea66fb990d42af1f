"""Records of a run: collected on the device, read late, written to the journal and told to
listeners.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from brimful.base.rundir import Journal
from brimful.training.state import Progress

Listener = Callable[[dict[str, Any]], None]
FLUSH_AFTER_S = 1.0
FLUSH_AFTER_STEPS = 200
MOST_STEP_RECORDS = 5000
"""Longer runs write every k-th step's record; bad steps are always written."""


def peak_memory_bytes(device: torch.device) -> int:
    """Peak so far: reserved by CUDA's caching allocator, driver memory on MPS, resident set of the
    process on CPU.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Meter:
    """Keeps losses and norms on the device until `flush`, so that no step waits for a number.

    Args:
        tokens_per_step: Tokens that a step reads on average, where its targets are only a part of
            them.

    Attributes:
        step_time_s: Mean of the steps that were read last; None before.
        evaluation_s: What the last evaluation took; None before.
    """

    def __init__(
        self,
        journal: Journal,
        listeners: Sequence[Listener],
        *,
        device: torch.device,
        total_steps: int,
        skipped: int = 0,
        tokens_per_step: int | None = None,
    ) -> None:
        self._journal, self._listeners, self._device = journal, listeners, device
        self._record_every = max(1, -(-total_steps // MOST_STEP_RECORDS))
        self._pending: list[tuple[dict[str, Any], Tensor]] = []
        self._skipped, self._tokens_per_step = skipped, tokens_per_step
        self._last_flush_s = time.perf_counter()
        self._waited_s = 0.0
        self.step_time_s: float | None = None
        self.evaluation_s: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the host waits for a batch."""
        started_s = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - started_s

    def note_step(
        self, progress: Progress, *, loss: Tensor, grad_norm: Tensor, learning_rate: float
    ) -> None:
        plain = {
            "kind": "step",
            "step": progress.step,
            "learning_rate": learning_rate,
            "tokens": progress.target_tokens,
        }
        guard = progress.guard
        self._pending.append(
            (plain, torch.stack([loss, grad_norm, guard.loss_scale, guard.skipped]))
        )

    def flush_if_due(self) -> None:
        """Flush when a second or many steps have passed."""
        if (
            len(self._pending) >= FLUSH_AFTER_STEPS
            or time.perf_counter() - self._last_flush_s >= FLUSH_AFTER_S
        ):
            self.flush()

    def flush(self) -> None:
        """Read what is pending in one transfer and write it."""
        if not self._pending:
            return
        rows = torch.stack([values for _, values in self._pending]).tolist()
        now_s = time.perf_counter()
        self.step_time_s = step_time_s = (now_s - self._last_flush_s) / len(rows)
        loader_wait_s, self._waited_s = self._waited_s / len(rows), 0.0
        tokens = self._pending[-1][0]["tokens"] - self._pending[0][0]["tokens"]
        tokens_per_step = self._tokens_per_step or (
            tokens / (len(rows) - 1) if len(rows) > 1 else None
        )
        tokens_per_second = None if tokens_per_step is None else tokens_per_step / step_time_s
        memory_bytes = peak_memory_bytes(self._device)
        for (plain, _), (loss, grad_norm, loss_scale, skipped) in zip(
            self._pending, rows, strict=True
        ):
            if (
                plain["step"] % self._record_every == 0
                or skipped != self._skipped
                or not _is_finite(loss, grad_norm)
            ):
                values = {
                    "loss": loss,
                    "grad_norm": grad_norm,
                    "skipped": int(skipped),
                    "loss_scale": loss_scale,
                }
                timing = {
                    "step_time_s": step_time_s,
                    "loader_wait_s": loader_wait_s,
                    "tokens_per_second": tokens_per_second,
                }
                self._tell(
                    {**plain, **values, **timing, "memory_bytes": memory_bytes, "time": time.time()}
                )
            self._skipped = int(skipped)
        self._pending.clear()
        self._last_flush_s = now_s

    def note_evaluation(self, progress: Progress, score: Mapping[str, Any], *, best: bool) -> None:
        self._tell({"kind": "evaluation", "step": progress.step, **score, "best": best})
        now_s = time.perf_counter()
        self.evaluation_s, self._last_flush_s = now_s - self._last_flush_s, now_s

    def note_checkpoint(self, step: int, num_bytes: int, seconds: float) -> None:
        self._tell({"kind": "checkpoint", "step": step, "bytes": num_bytes, "seconds": seconds})
        self._last_flush_s = time.perf_counter()

    def note_event(self, progress: Progress, message: str) -> None:
        self._tell({"kind": "event", "step": progress.step, "message": message})

    def note_out_of_memory(
        self, step: int, phase: str, larger: Sequence[int], smaller: Sequence[int], *, where: str
    ) -> dict[str, Any]:
        """Memory ran out and the work is repeated in smaller pieces; returns the record.

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
        self._tell(record)
        return record

    def note(self, record: dict[str, Any]) -> None:
        """A record of another kind, as it is."""
        self._tell(record)
        self._last_flush_s = time.perf_counter()

    def _tell(self, record: dict[str, Any]) -> None:
        self._journal.append(record)
        for listener in self._listeners:
            listener(record)


def _is_finite(*values: float) -> bool:
    return all(abs(value) < float("inf") for value in values)
