"""The progress of a run, from the records of metrics.jsonl as they come or are read back: numbers
for people, and a line for each record.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from brimful.base.text import plural
from brimful.base.types import Json, Numbers
from brimful.base.units import format_bytes, format_count, format_duration
from brimful.base.warning_codes import coded
from brimful.report.quantities import (
    REWARD,
    WATCHED,
    format_micro_batches,
    format_step_time,
    ranks_text,
    watched,
    words_of,
)
from brimful.runs.records import (
    BaseRecord,
    CheckpointRecord,
    EvaluationRecord,
    LoaderRecord,
    OutOfMemoryRecord,
    RanksRecord,
    Record,
    RoundRecord,
    SessionEnd,
    SessionStart,
    StepRecord,
    read_record,
)

Clock = Callable[[], float]
Field = tuple[str, str, str]
"""Label, value, style of the value."""

SMOOTHING = 0.9
"""Weight of the past in the running mean of the loss."""
BURST_S = 0.5
"""Records that arrive within this time of the first say nothing about speed."""
MOST_NAMED, MOST_ON_SCREEN = 2, 5
"""The most values that a method reports beside the loss that the line of a step and the screen
show: of preferences the second has margin, accuracy, both rewards and the distance.
"""
LOADER_WAIT_SHOWN = 0.05
"""Share of a step spent waiting for data from which on it is shown."""


@dataclass
class RunState:
    """The progress of a run, as far as its records say.

    Attributes:
        planned: What the plan predicts, by its names.
        starting: What is done before the first step, such as `compiling`; "": nothing that takes
            long.
    """

    clock: Clock
    planned: Numbers = field(default_factory=dict)
    starting: str = ""
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
    spikes: int = 0
    named: Numbers = field(default_factory=dict)
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    best_step: int | None = None
    checkpoint_step: int | None = None
    checkpoint_at_s: float = 0.0
    ranks: RanksRecord | None = None
    ended: str | None = None
    _loss_weight: float = 0.0
    _loss_sum: float = 0.0
    _anchor: tuple[float, int] | None = None
    _started_s: float | None = None

    def update(self, values: Json) -> None:
        """Take in a record as it was written; kinds and keys that are not known are left aside."""
        self.take(read_record(values))

    def take(self, record: Record) -> None:
        """Take in a record."""
        match record:
            case SessionStart():
                self.run = record.run or self.run
                self.total_steps, self.tokens_per_step = record.total_steps, record.tokens_per_step
                self.step, self.ended, self._anchor = record.step, None, None
                self._started_s = self.clock()
            case StepRecord():
                self._take_step(record)
            case EvaluationRecord():
                self.validation_loss, self.bits_per_byte = record.loss, record.bits_per_byte
                self.best_step = record.step if record.best else self.best_step
            case CheckpointRecord():
                self.checkpoint_step, self.checkpoint_at_s = record.step, self.clock()
            case RanksRecord(ranks=[_, *_]):
                self.ranks = record
            case SessionEnd():
                self.ended = record.reason or "ended"

    def _take_step(self, record: StepRecord) -> None:
        now_s, self.step = self.clock(), record.step
        if self._anchor is None:
            self._anchor = (now_s, self.step)
        elif now_s - self._anchor[0] < BURST_S:
            self._anchor = (self._anchor[0], self.step)
        self.loss_is_finite = record.loss is not None
        if record.loss is not None:
            self._loss_sum = SMOOTHING * self._loss_sum + (1 - SMOOTHING) * record.loss
            self._loss_weight = SMOOTHING * self._loss_weight + (1 - SMOOTHING)
            self.loss = self._loss_sum / self._loss_weight
        self.named = record.named
        self.skipped, self.spikes = record.skipped or 0, record.spikes or 0
        self.learning_rate = record.learning_rate
        self.memory_bytes = record.memory_bytes
        self.step_time_s = record.step_time_s
        self.loader_wait_s = record.loader_wait_s
        self.tokens_per_second = record.tokens_per_second
        if self.tokens_per_second is None and self.tokens_per_step and self.step_time_s:
            self.tokens_per_second = self.tokens_per_step / self.step_time_s

    @property
    def share(self) -> float | None:
        """Return the part of the run that is done, 0 to 1."""
        return min(1.0, self.step / self.total_steps) if self.total_steps else None

    @property
    def remaining_s(self) -> float | None:
        """Return the time left at the pace since the first step here, with evaluations and
        checkpoints.
        """
        if self.total_steps is None or self.ended:
            return None
        steps_left = max(0, self.total_steps - self.step)
        if self._anchor is not None and self.step > self._anchor[1]:
            return (self.clock() - self._anchor[0]) / (self.step - self._anchor[1]) * steps_left
        return self.step_time_s * steps_left if self.step_time_s else None

    @property
    def position(self) -> str:
        """Return `step 120/900`."""
        return f"step {self.step}/{self.total_steps}" if self.total_steps else f"step {self.step}"

    def fields(self) -> list[Field]:
        """Return what is known, the most important first."""
        if self.starting and self._anchor is None and self._started_s is not None:
            waited = coarse_duration(self.clock() - self._started_s)
            planned_s = self.planned.get("start_time_s")
            planned = f" (planned {coarse_duration(planned_s)})" if planned_s else ""
            return [(self.starting, waited + planned, "yellow")]
        quality = sorted(self._quality_fields(), key=lambda field: field[0] != REWARD)
        return [*quality, *self._speed_fields(), *self._safety_fields()]

    def _quality_fields(self) -> Iterator[Field]:
        if self.loss is not None:
            yield ("loss", f"{self.loss:.3f}", "bold")
        if self.step and not self.loss_is_finite:
            yield ("last loss", "not finite", "bold red")
        yield from ((*each, "") for each in _telling(self.named, MOST_ON_SCREEN))
        if self.validation_loss is not None:
            best = f" (best at step {self.best_step})" if self.best_step else ""
            yield ("validation", f"{self.validation_loss:.3f}{best}", "bold green")
        if self.bits_per_byte is not None:
            yield ("bits/byte", f"{self.bits_per_byte:.3f}", "bold green")

    def _speed_fields(self) -> Iterator[Field]:
        if self.learning_rate is not None:
            yield ("lr", f"{self.learning_rate:.2e}", "cyan")
        if self.tokens_per_second is not None:
            yield ("tokens/s", format_count(self.tokens_per_second), "cyan")
        if self.step_time_s is not None:
            planned_s = self.planned.get("step_time_s")
            yield ("step", _with_plan(self.step_time_s, planned_s, format_step_time), "cyan")
        if self.loader_wait_s and self.step_time_s:
            share = self.loader_wait_s / self.step_time_s
            if share >= LOADER_WAIT_SHOWN:
                waits = f"{min(1.0, share) * 100:.0f} % of a step"
                yield ("waits for data", waits, "bold yellow")
        if self.memory_bytes is not None:
            planned_bytes = self.planned.get("peak_memory_bytes")
            yield ("memory", _with_plan(self.memory_bytes, planned_bytes, format_bytes), "cyan")
        if self.ranks is not None:
            yield ("ranks", ranks_text(self.ranks), "cyan")

    def _safety_fields(self) -> Iterator[Field]:
        if self.checkpoint_step is not None:
            age = coarse_duration(self.clock() - self.checkpoint_at_s)
            yield ("checkpoint", f"step {self.checkpoint_step}, {age} ago", "")
        if self.skipped:
            yield ("skipped steps", str(self.skipped), "bold yellow")
        if self.spikes:
            yield ("spikes", str(self.spikes), "bold yellow")


def _telling(named: Numbers, most: int = MOST_NAMED) -> Iterator[tuple[str, str]]:
    """Yield the most telling values that a method names."""
    for name, value in islice(named.items(), most):
        yield words_of(name), f"{value:.3f}"


def _with_plan(measured: float, planned: float | None, form: Callable[[float], str]) -> str:
    """Return `1.21 s (planned 1.15)`; a unit that both share stands once."""
    text = form(measured)
    if planned is None:
        return text
    value, _, unit = form(planned).rpartition(" ")
    has_same_unit = unit == text.rpartition(" ")[2] and " " not in value and bool(value)
    return f"{text} (planned {value if has_same_unit else form(planned)})"


def describe(record: Record, state: RunState) -> str:
    """Return a plain line for a record, which `state` has taken in already."""
    steps = f"/{state.total_steps}" if state.total_steps else ""
    where = f"step {record.step}{steps}"
    match record:
        case SessionStart():
            return f"{state.run}: {_start(record, state)}"
        case StepRecord():
            return "  ".join([where + percent(state.share), *_step_parts(record, state)])
        case EvaluationRecord():
            return "  ".join([where, *_evaluation_parts(record)])
        case RanksRecord(ranks=[_, *_]):
            return f"{where}  {len(record.ranks)} ranks: {ranks_text(record)}"
        case RoundRecord():
            return f"{where}  {_round(record, state)}"
    return f"{where}  {_incident(record, state)}"


def _start(record: SessionStart, state: RunState) -> str:
    if record.resumed:
        return f"goes on at step {record.step} of {state.total_steps}"
    per_step = record.tokens_per_step
    size = f" of {format_count(per_step)} tokens" if per_step else ""
    first = f", {state.starting} first" * bool(state.starting)
    return f"{plural(state.total_steps or 0, 'step')}{size}{first}"


def _round(record: RoundRecord, state: RunState) -> str:
    """Return what the phases of a round took, beside what the plan says of one."""
    told = []
    for name in ("sampling", "verifying", "scoring"):
        took_s, planned_s = getattr(record, f"{name}_s"), state.planned.get(f"round_{name}_time_s")
        if took_s:
            told.append(f"{name} {_with_plan(took_s, planned_s, format_duration)}")
    return "answers: " + ", ".join(told or ["kept from before"])


def _incident(record: Record, state: RunState) -> str:
    """Return what happened besides steps and evaluations."""
    match record:
        case CheckpointRecord():
            took = format_duration(record.seconds or 0)
            return f"checkpoint {format_bytes(record.bytes or 0)} in {took}"
        case BaseRecord():
            loss = "not finite" if record.loss is None else f"{record.loss:.4f}"
            return f"{record.model} model: {record.split} loss {loss}"
        case OutOfMemoryRecord():
            before = format_micro_batches(list(record.larger))
            after = format_micro_batches(list(record.smaller))
            return coded(
                "B312",
                f"out of memory in {record.phase or 'training'}: micro-batches {before} ->"
                f" {after}, done again with the same sequences",
            )
        case LoaderRecord():
            return _loader_times(record)
        case SessionEnd():
            took = f" after {format_duration(record.seconds)}" if record.seconds is not None else ""
            return f"{state.ended}{took}"
    return str(record.values.get("message", record.kind))


def _loader_times(record: LoaderRecord) -> str:
    times = [
        f"{format_duration(seconds)} with {threads}"
        for threads, seconds in record.seconds_per_batch.items()
    ]
    noun = "thread" if list(record.seconds_per_batch)[-1:] == [1] else "threads"
    return f"steps waited for data; measured: a batch is made in {', '.join(times)} {noun}"


def _step_parts(record: StepRecord, state: RunState) -> list[str]:
    parts = ["loss not finite" if record.loss is None else f"loss {record.loss:.3f}"]
    parts += map(" ".join, _telling(record.named))
    parts.sort(key=lambda part: not part.startswith(REWARD))
    for label, value, _ in state.fields():
        if label == "tokens/s":
            parts.append(f"{value} tokens/s")
        elif label in IN_STEP_LINES:
            parts.append(f"{label} {value}")
    if state.remaining_s:
        parts.append(f"{coarse_duration(state.remaining_s)} left")
    return parts


IN_STEP_LINES = {"lr", "step", "memory", "skipped steps", "spikes"}
"""Fields of the panel that a plain step line repeats, beside tokens/s."""


def _evaluation_parts(record: EvaluationRecord) -> list[str]:
    if record.loss is None:
        parts = ["validation loss not finite"]
    else:
        parts = [f"{record.split} loss {record.loss:.4f}"]
    if record.perplexity is not None:
        parts.append(f"perplexity {record.perplexity:.2f}")
    if record.bits_per_byte is not None:
        parts.append(f"{record.bits_per_byte:.4f} bits/byte")
    parts += map(" ".join, _telling(record.named))
    parts += [f"{WATCHED[key]} {value:.4f}" for key, value in watched(record.values).items()]
    if record.best:
        parts.append("best")
    return parts


def coarse_duration(seconds: float) -> str:
    """Return a duration without fractions, at least 1 s, for a display that is refreshed."""
    if seconds >= 59.5:
        return format_duration(max(60.0, seconds))
    return f"{max(1.0, seconds):.0f} s"


def age(seconds: float) -> str:
    """Return how long ago something was: `12 s`, `50m`, `2h 27m`. A negative age, from a clock that
    runs behind, counts as a second.
    """
    return f"{seconds // 60:.0f}m" if 600 <= seconds < 3600 else coarse_duration(seconds)


def percent(share: float | None) -> str:
    """Return ` (12 %)`, "" where the share is not known."""
    return "" if share is None else f" ({share * 100:.0f} %)"
