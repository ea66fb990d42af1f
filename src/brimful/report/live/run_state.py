"""How a run stands, told by the records of metrics.jsonl as they come or are read back: numbers for
people, and a line for each record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from brimful.base.units import format_bytes, format_count, format_duration
from brimful.report.labels import WATCHED, watched
from brimful.report.quantities import format_micro_batches, format_step_time
from brimful.runs.runfiles import number, section

Clock = Callable[[], float]

SMOOTHING = 0.9
"""Weight of the past in the running mean of the loss."""
BURST_S = 0.5
"""Records that arrive within this time of the first say nothing about speed."""
LOADER_WAIT_SHOWN = 0.05
"""Share of a step spent waiting for data from which on it is shown."""


@dataclass
class RunState:
    """What the records of a run have told so far."""

    clock: Clock
    planned: Mapping[str, float] = field(default_factory=dict)
    run: str = "run"
    step: int = 0
    total_steps: int | None = None
    tokens_per_step: float | None = None
    loss: float | None = None
    loss_is_finite: bool = True
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    memory_bytes: float | None = None
    step_time_s: float | None = None
    loader_wait_s: float | None = None
    skipped: int = 0
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    best_step: int | None = None
    checkpoint_step: int | None = None
    checkpoint_at_s: float = 0.0
    ended: str | None = None
    _loss_weight: float = 0.0
    _loss_sum: float = 0.0
    _anchor: tuple[float, int] | None = None

    def update(self, record: dict[str, Any]) -> None:
        """Take one record in; kinds and keys that are not known are left aside."""
        kind = record.get("kind")
        if kind == "start":
            self.run = str(record.get("run") or self.run)
            total_steps = number(record.get("total_steps"))
            self.total_steps, self.tokens_per_step = (
                None if total_steps is None else int(total_steps),
                number(record.get("tokens_per_step")),
            )
            self.step, self.ended, self._anchor = step_of(record), None, None
        elif kind == "step":
            self._take_step(record)
        elif kind == "evaluation":
            self.validation_loss = number(record.get("loss"))
            self.bits_per_byte = number(record.get("bits_per_byte"))
            self.best_step = step_of(record) if record.get("best") else self.best_step
        elif kind == "checkpoint":
            self.checkpoint_step, self.checkpoint_at_s = step_of(record), self.clock()
        elif kind == "end":
            self.ended = str(record.get("reason") or "ended")

    def _take_step(self, record: dict[str, Any]) -> None:
        now_s, self.step = self.clock(), step_of(record)
        if self._anchor is None or now_s - self._anchor[0] < BURST_S:
            self._anchor = (self._anchor[0] if self._anchor else now_s, self.step)
        loss = number(record.get("loss"))
        self.loss_is_finite = loss is not None
        if loss is not None:
            self._loss_sum = SMOOTHING * self._loss_sum + (1 - SMOOTHING) * loss
            self._loss_weight = SMOOTHING * self._loss_weight + (1 - SMOOTHING)
            self.loss = self._loss_sum / self._loss_weight
        self.skipped = int(number(record.get("skipped")) or 0)
        for name in (
            "learning_rate",
            "tokens_per_second",
            "memory_bytes",
            "step_time_s",
            "loader_wait_s",
        ):
            setattr(self, name, number(record.get(name)))
        if self.tokens_per_second is None and self.tokens_per_step and self.step_time_s:
            self.tokens_per_second = self.tokens_per_step / self.step_time_s

    @property
    def share(self) -> float | None:
        """Done part of the run, 0 to 1."""
        return min(1.0, self.step / self.total_steps) if self.total_steps else None

    @property
    def remaining_s(self) -> float | None:
        """Time left at the pace since the first step here, evaluations and checkpoints included."""
        if self.total_steps is None or self.ended:
            return None
        steps_left = max(0, self.total_steps - self.step)
        if self._anchor is not None and self.step > self._anchor[1]:
            return (self.clock() - self._anchor[0]) / (self.step - self._anchor[1]) * steps_left
        return self.step_time_s * steps_left if self.step_time_s else None

    def fields(self) -> list[tuple[str, str, str]]:
        """(label, value, style) of what is known, the most wanted first."""
        fields: list[tuple[str, str, str]] = []
        if self.loss is not None:
            fields.append(("loss", f"{self.loss:.3f}", "bold"))
        if self.step and not self.loss_is_finite:
            fields.append(("last loss", "not finite", "bold red"))
        if self.validation_loss is not None:
            best = f" (best at step {self.best_step})" if self.best_step else ""
            fields.append(("validation", f"{self.validation_loss:.3f}{best}", "bold green"))
        if self.bits_per_byte is not None:
            fields.append(("bits/byte", f"{self.bits_per_byte:.3f}", "bold green"))
        if self.learning_rate is not None:
            fields.append(("lr", f"{self.learning_rate:.2e}", "cyan"))
        if self.tokens_per_second is not None:
            fields.append(("tokens/s", format_count(self.tokens_per_second), "cyan"))
        if self.step_time_s is not None:
            fields.append(
                (
                    "step",
                    _beside(self.step_time_s, self.planned.get("step_time_s"), format_step_time),
                    "cyan",
                )
            )
        if (
            self.loader_wait_s
            and self.step_time_s
            and self.loader_wait_s >= LOADER_WAIT_SHOWN * self.step_time_s
        ):
            fields.append(
                (
                    "waits for data",
                    f"{min(1.0, self.loader_wait_s / self.step_time_s) * 100:.0f} % of a step",
                    "bold yellow",
                )
            )
        if self.memory_bytes is not None:
            fields.append(
                (
                    "memory",
                    _beside(self.memory_bytes, self.planned.get("peak_memory_bytes"), format_bytes),
                    "cyan",
                )
            )
        if self.checkpoint_step is not None:
            age = coarse_duration(self.clock() - self.checkpoint_at_s)
            fields.append(("checkpoint", f"step {self.checkpoint_step}, {age} ago", ""))
        if self.skipped:
            fields.append(("skipped steps", str(self.skipped), "bold yellow"))
        return fields


def _beside(measured: float, planned: float | None, form: Callable[[float], str]) -> str:
    """`1.21 s (planned 1.15)`; a unit that both share is said once."""
    if planned is None:
        return form(measured)
    told = form(planned)
    same_unit = (
        told.rpartition(" ")[2] == form(measured).rpartition(" ")[2] and told.count(" ") == 1
    )
    return f"{form(measured)} (planned {told.rpartition(' ')[0] if same_unit else told})"


def describe(record: dict[str, Any], state: RunState) -> str:
    """One plain line for a record. `state` has taken the record in already."""
    kind, step = record.get("kind"), step_of(record)
    where = f"step {step}/{state.total_steps}" if state.total_steps else f"step {step}"
    if kind == "start":
        per_step = number(record.get("tokens_per_step"))
        size = f" of {format_count(per_step)} tokens" if per_step else ""
        begins = (
            f"goes on at step {step} of {state.total_steps}"
            if record.get("resumed")
            else f"{state.total_steps} steps{size}"
        )
        return f"{state.run}: {begins}"
    if kind == "step":
        return "  ".join([where + percent(state.share), *_step_parts(record, state)])
    if kind == "evaluation":
        return "  ".join([where, *_evaluation_parts(record)])
    return f"{where}  {_incident(record, state)}"


def _incident(record: dict[str, Any], state: RunState) -> str:
    """What happened besides steps and evaluations."""
    kind, seconds = record.get("kind"), number(record.get("seconds"))
    if kind == "checkpoint":
        return (
            f"checkpoint {format_bytes(number(record.get('bytes')) or 0)} in"
            f" {format_duration(seconds or 0)}"
        )
    if kind == "out_of_memory":
        before, after = (format_micro_batches(record.get(name)) for name in ("from", "to"))
        return (
            f"out of memory in {record.get('phase', 'training')}: micro-batches {before} ->"
            f" {after}, done again with the same sequences"
        )
    if kind == "loader":
        made = section(record, "seconds_per_batch")
        told = [
            f"{format_duration(taken_s)} with {threads}"
            for threads, value in made.items()
            if (taken_s := number(value)) is not None
        ]
        return (
            f"steps waited for data; measured: a batch is made in {', '.join(told)}"
            f" thread{'s' * (list(made)[-1:] != ['1'])}"
        )
    if kind == "end":
        return f"{state.ended}" + (
            f" after {format_duration(seconds)}" if seconds is not None else ""
        )
    return str(record.get("message", kind))


def _step_parts(record: dict[str, Any], state: RunState) -> list[str]:
    loss = number(record.get("loss"))
    parts = [f"loss {loss:.3f}" if loss is not None else "loss not finite"]
    parts += [
        f"{value} tokens/s" if label == "tokens/s" else f"{label} {value}"
        for label, value, _ in state.fields()
        if label in _PLAIN
    ]
    remaining_s = state.remaining_s
    return [*parts, f"{coarse_duration(remaining_s)} left"] if remaining_s else parts


_PLAIN = {"lr", "tokens/s", "step", "memory", "skipped steps"}
"""Fields of the panel that a plain step line repeats."""


def _evaluation_parts(record: dict[str, Any]) -> list[str]:
    loss = number(record.get("loss"))
    parts = [
        (
            f"{record.get('split', 'validation')} loss {loss:.4f}"
            if loss is not None
            else "validation loss not finite"
        )
    ]
    perplexity, bits_per_byte = (
        number(record.get("perplexity")),
        number(record.get("bits_per_byte")),
    )
    parts += [f"perplexity {perplexity:.2f}"] if perplexity is not None else []
    parts += [f"{bits_per_byte:.4f} bits/byte"] if bits_per_byte is not None else []
    parts += [f"{WATCHED[key]} {value:.4f}" for key, value in watched(record).items()]
    return [*parts, "best so far"] if record.get("best") else parts


def step_of(record: Mapping[str, Any]) -> int:
    """The step of a record, 0 where it has none."""
    return int(number(record.get("step")) or 0)


def coarse_duration(seconds: float) -> str:
    """A duration without fractions: it changes all the time."""
    return format_duration(max(60.0, seconds)) if seconds >= 59.5 else f"{max(1.0, seconds):.0f} s"


def age(seconds: float) -> str:
    """How long ago something was: `12 s`, `50m`, `2h 27m`; what a clock that runs behind makes
    negative is a second.
    """
    return f"{seconds // 60:.0f}m" if 600 <= seconds < 3600 else coarse_duration(seconds)


def percent(share: float | None) -> str:
    """` (12 %)`; "" where it is not known."""
    return "" if share is None else f" ({share * 100:.0f} %)"
