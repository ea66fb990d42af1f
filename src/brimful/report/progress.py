"""Live progress of a run and of data preparation: a panel that updates in place on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from brimful.base.units import format_bytes, format_count, format_duration
from brimful.report.labels import WATCHED, watched
from brimful.report.tables import format_micro_batches, format_step_time

Listener = Callable[[dict[str, Any]], None]
"""Receives the records of metrics.jsonl as they are made."""
DataProgress = Callable[[str, int, int | None], None]
"""Receives (phase, how many are done, how many there are or None)."""
Clock = Callable[[], float]

REFRESHES_PER_SECOND = 4
SMOOTHING = 0.9
"""Weight of the past in the running mean of the loss."""
LINE_EVERY_S = 10.0
LINE_EVERY_SHARE = 0.05
LINE_AT_MOST_EVERY_S = 1.0
"""Runs whose twentieth part is shorter than this print fewer than twenty lines."""
BURST_S = 0.5
"""Records that arrive within this time of the first say nothing about speed."""
BAR_FROM_WIDTH = 60


@contextmanager
def progress_listener(console: Console, *, planned: Mapping[str, float] | None = None, clock: Clock = time.monotonic) -> Iterator[Listener]:
    """Show a run's records while they come.

    On a terminal: one panel updated in place, evaluations and events kept above it. Elsewhere: the first step, then a line
    about every 10 s or 5 % of the steps, and one for each evaluation, event and checkpoint.

    Args:
        console: Where to show; its width and encoding are respected.
        planned: What the plan predicts, by its names; step_time_s and peak_memory_bytes are shown beside what is measured.
        clock: Seconds, rising; replaced in tests.
    """
    if not console.is_terminal or console.is_dumb_terminal:
        yield _LineListener(console, RunState(clock, planned or {}))
        return
    state = RunState(clock, planned or {})
    panel = _Panel(state)
    with Live(panel, console=console, refresh_per_second=REFRESHES_PER_SECOND) as live:

        def listen(record: dict[str, Any]) -> None:
            state.update(record)
            if record.get("kind") in {"evaluation", "event", "out_of_memory", "end"}:
                _print_line(live.console, describe(record, state))

        yield listen


@contextmanager
def data_progress(console: Console, *, clock: Clock = time.monotonic) -> Iterator[DataProgress]:
    """Show the phases of data preparation: a bar each on a terminal, a line each elsewhere (and every 10 s in a long one)."""
    if not console.is_terminal or console.is_dumb_terminal:
        lines = _PhaseLines(console, clock)
        try:
            yield lines
        finally:
            lines.finish()
        return
    with Progress(*_data_columns(), console=console, refresh_per_second=REFRESHES_PER_SECOND) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(_printable(what, console), total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield progress


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
            self.total_steps, self.tokens_per_step = record.get("total_steps"), _finite(record.get("tokens_per_step"))
            self.step, self.ended, self._anchor = int(record.get("step") or 0), None, None
        elif kind == "step":
            self._take_step(record)
        elif kind == "evaluation":
            self.validation_loss = _finite(record.get("loss"))
            self.bits_per_byte = _finite(record.get("bits_per_byte"))
            self.best_step = record.get("step") if record.get("best") else self.best_step
        elif kind == "checkpoint":
            self.checkpoint_step, self.checkpoint_at_s = record.get("step"), self.clock()
        elif kind == "end":
            self.ended = str(record.get("reason") or "ended")

    def _take_step(self, record: dict[str, Any]) -> None:
        now_s, self.step = self.clock(), int(record.get("step") or 0)
        if self._anchor is None or now_s - self._anchor[0] < BURST_S:
            self._anchor = (self._anchor[0] if self._anchor else now_s, self.step)
        loss = _finite(record.get("loss"))
        self.loss_is_finite = loss is not None
        if loss is not None:
            self._loss_sum = SMOOTHING * self._loss_sum + (1 - SMOOTHING) * loss
            self._loss_weight = SMOOTHING * self._loss_weight + (1 - SMOOTHING)
            self.loss = self._loss_sum / self._loss_weight
        self.skipped = int(record.get("skipped") or 0)
        for name in ("learning_rate", "tokens_per_second", "memory_bytes", "step_time_s"):
            setattr(self, name, _finite(record.get(name)))
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
            fields.append(("step", _beside(self.step_time_s, self.planned.get("step_time_s"), format_step_time), "cyan"))
        if self.memory_bytes is not None:
            fields.append(("memory", _beside(self.memory_bytes, self.planned.get("peak_memory_bytes"), format_bytes), "cyan"))
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
    same_unit = told.rpartition(" ")[2] == form(measured).rpartition(" ")[2] and told.count(" ") == 1
    return f"{form(measured)} (planned {told.rpartition(' ')[0] if same_unit else told})"


def describe(record: dict[str, Any], state: RunState) -> str:
    """One plain line for a record. `state` has taken the record in already."""
    kind, step = record.get("kind"), int(record.get("step") or 0)
    where = f"step {step}/{state.total_steps}" if state.total_steps else f"step {step}"
    if kind == "start":
        per_step = _finite(record.get("tokens_per_step"))
        size = f" of {format_count(per_step)} tokens" if per_step else ""
        begins = f"goes on at step {step} of {state.total_steps}" if record.get("resumed") else f"{state.total_steps} steps{size}"
        return f"{state.run}: {begins}"
    if kind == "step":
        return "  ".join([where + _percent(state.share), *_step_parts(record, state)])
    if kind == "evaluation":
        return "  ".join([where, *_evaluation_parts(record)])
    return f"{where}  {_incident(record, state)}"


def _incident(record: dict[str, Any], state: RunState) -> str:
    """What happened besides steps and evaluations."""
    kind, seconds = record.get("kind"), _finite(record.get("seconds"))
    if kind == "checkpoint":
        return f"checkpoint {format_bytes(record.get('bytes') or 0)} in {format_duration(seconds or 0)}"
    if kind == "out_of_memory":
        before, after = (format_micro_batches(record.get(name)) for name in ("from", "to"))
        return f"out of memory in {record.get('phase', 'training')}: micro-batches {before} -> {after}, done again with the same sequences"
    if kind == "end":
        return f"{state.ended}" + (f" after {format_duration(seconds)}" if seconds is not None else "")
    return str(record.get("message", kind))


def _step_parts(record: dict[str, Any], state: RunState) -> list[str]:
    loss = _finite(record.get("loss"))
    parts = [f"loss {loss:.3f}" if loss is not None else "loss not finite"]
    parts += [f"{value} tokens/s" if label == "tokens/s" else f"{label} {value}" for label, value, _ in state.fields() if label in _PLAIN]
    remaining_s = state.remaining_s
    return [*parts, f"{coarse_duration(remaining_s)} left"] if remaining_s else parts


_PLAIN = {"lr", "tokens/s", "step", "memory", "skipped steps"}
"""Fields of the panel that a plain step line repeats."""


def _evaluation_parts(record: dict[str, Any]) -> list[str]:
    loss = _finite(record.get("loss"))
    parts = [f"{record.get('split', 'validation')} loss {loss:.4f}" if loss is not None else "validation loss not finite"]
    perplexity, bits_per_byte = _finite(record.get("perplexity")), _finite(record.get("bits_per_byte"))
    parts += [f"perplexity {perplexity:.2f}"] if perplexity is not None else []
    parts += [f"{bits_per_byte:.4f} bits/byte"] if bits_per_byte is not None else []
    parts += [f"{WATCHED[key]} {value:.4f}" for key, value in watched(record).items()]
    return [*parts, "best so far"] if record.get("best") else parts


class _Panel:
    """The terminal's view of a RunState: a bar, then the fields, as many a line as fit."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield self._bar(console) if width >= BAR_FROM_WIDTH else self._short_header(console)
        line = Text(no_wrap=True, overflow="crop")
        for label, value, style in self._state.fields():
            field = Text.assemble((label, "dim"), " ", (value, style), no_wrap=True, overflow="crop")
            if line and line.cell_len + 3 + field.cell_len > width:
                yield line
                line = field
            else:
                line = Text.assemble(line, "   ", field, no_wrap=True, overflow="crop") if line else field
        if line:
            yield line

    def _numbers(self) -> str:
        state = self._state
        steps = f"{state.step}/{state.total_steps}" if state.total_steps else str(state.step)
        remaining_s = state.remaining_s
        left = f"  {coarse_duration(remaining_s)} left" if remaining_s else ""
        return f"{steps}{_percent(state.share)}{f'  {state.ended}' if state.ended else left}"

    def _bar(self, console: Console) -> Table:
        table = Table.grid(
            Column(no_wrap=True, overflow="crop", max_width=24), Column(ratio=1), Column(no_wrap=True, overflow="crop"), padding=(0, 1), expand=True
        )
        bar = ProgressBar(total=1.0, completed=self._state.share or 0.0, complete_style="cyan", finished_style="green")
        table.add_row(Text(_printable(self._state.run, console), style="bold"), bar, Text(_printable(self._numbers(), console)))
        return table

    def _short_header(self, console: Console) -> Text:
        return Text(_printable(f"{self._state.run} {self._numbers()}", console), no_wrap=True, overflow="crop")


class _LineListener:
    """Plain lines for pipes, files and notebooks."""

    def __init__(self, console: Console, state: RunState) -> None:
        self._console, self._state, self._clock = console, state, state.clock
        self._line_at_s: float | None = None
        self._line_share = 0.0

    def __call__(self, record: dict[str, Any]) -> None:
        self._state.update(record)
        if record.get("kind") != "step" or self._is_due():
            _print_line(self._console, describe(record, self._state))

    def _is_due(self) -> bool:
        now_s, share = self._clock(), self._state.share
        if self._line_at_s is not None and share != 1.0:
            age_s = now_s - self._line_at_s
            is_next_part = share is not None and share - self._line_share >= LINE_EVERY_SHARE - 1e-9
            if age_s < LINE_EVERY_S and not (is_next_part and age_s >= LINE_AT_MOST_EVERY_S):
                return False
        self._line_at_s, self._line_share = now_s, share or 0.0
        return True


class _PhaseLines:
    """Plain lines for the phases of data preparation."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock = console, clock
        self._what: str | None = None
        self._done = 0
        self._is_told = True
        self._started_s = self._line_at_s = self._ended_s = clock()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """A phase that is first heard of with some done began when the one before it ended."""
        if what != self._what or done < self._done:
            self.finish()
            self._what, self._is_told, self._started_s = what, False, self._ended_s if done else self._clock()
            self._line_at_s = self._clock()
        self._done = done
        if done == total:
            self.finish()
        elif not self._is_told and self._clock() - self._line_at_s >= LINE_EVERY_S:
            self._line_at_s = self._clock()
            of_all = f" of {total:,}{_percent(done / total)}" if total else ""
            _print_line(self._console, f"{what}: {done:,}{of_all}")

    def finish(self) -> None:
        """Tell the phase at hand, once."""
        if not self._is_told:
            self._is_told, self._ended_s = True, self._clock()
            _print_line(self._console, f"{self._what}: {self._done:,} in {format_duration(self._ended_s - self._started_s)}")


class _CountColumn(ProgressColumn):
    """`1,234/5,678`, or `1,234` while the total is unknown."""

    def render(self, task: Task) -> Text:
        total = f"/{task.total:,.0f}" if task.total is not None else ""
        return Text(f"{task.completed:,.0f}{total}", style="cyan")


class _TimeColumn(ProgressColumn):
    """Time left while a phase runs, time taken when it is done."""

    def render(self, task: Task) -> Text:
        if task.finished or task.time_remaining is None:
            return Text(format_duration(task.finished_time or task.elapsed or 0.0), style="dim")
        return Text(f"{coarse_duration(task.time_remaining)} left", style="dim")


def _data_columns() -> list[ProgressColumn]:
    def column() -> Column:
        return Column(no_wrap=True, overflow="crop")

    return [
        TextColumn("{task.description}", markup=False, table_column=column()),
        BarColumn(bar_width=30, complete_style="cyan", finished_style="green", table_column=column()),
        _CountColumn(table_column=column()),
        _TimeColumn(table_column=column()),
    ]


def _print_line(console: Console, line: str) -> None:
    console.print(Text(_printable(line, console)), soft_wrap=True, highlight=False)


def _printable(text: str, console: Console) -> str:
    """`text` on one line, without control characters or what the console's encoding lacks."""
    one_line = "".join(character if character.isprintable() else " " for character in text)
    return one_line.encode(console.encoding, "replace").decode(console.encoding)


def coarse_duration(seconds: float) -> str:
    """A duration without fractions: it changes all the time."""
    return format_duration(seconds) if seconds >= 59.5 else f"{max(1.0, seconds):.0f} s"


def _percent(share: float | None) -> str:
    return "" if share is None else f" ({share * 100:.0f} %)"


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
