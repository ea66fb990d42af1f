"""What a user sees of sampling: live progress while answers are drawn and verified, and lines at
the end on what became of them.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from brimful.base.units import format_bytes, format_count
from brimful.report.live.panel import BAR_FROM_WIDTH
from brimful.report.live.progress import LINE_EVERY_S, REFRESHES_PER_SECOND
from brimful.report.live.run_state import Clock, coarse_duration
from brimful.report.quantities import format_score, with_interval
from brimful.runs.runfiles import Json, items, number, section

RATE_OVER_S = 30.0
"""Speeds are those of so many last seconds: answers end in bursts."""
RATE_MARK_EVERY_S = 0.5
FATES = (
    "kept",
    "repeated-path",
    "enough",
    "wrong",
    "unparsed",
    "unended",
    "too-short",
    "too-long",
    "contaminated",
)
"""As they are told: what is right first."""
MAX_KINDS = 3
"""Kinds of question told at the end, those with the fewest accepted questions."""


@dataclass(frozen=True)
class Snapshot:
    """How far sampling is. Counts are over all sessions; samples are those verified.

    Attributes:
        questions_done: Questions of which no more samples are drawn.
        samples_planned: Samples there will be at most; may shrink as questions are settled early.
        samples_before: Of `samples`, drawn in earlier sessions.
        tokens: New tokens of all samples.
        answered: Samples that could be read.
        correct: Samples that are right.
        questions_accepted: Questions with at least one kept answer so far, done or not.
        kept: Samples that will be trained on.
        running_rows: Answers being written now.
        memory_bytes: In use; None where it cannot be told.
    """

    questions_done: int
    questions: int
    samples: int
    samples_planned: int
    samples_before: int
    tokens: int
    answered: int
    correct: int
    questions_accepted: int
    kept: int
    running_rows: int
    memory_bytes: int | None = None


SamplingProgress = Callable[[Snapshot], None]
"""Receives snapshots as often as they are made."""


@contextmanager
def sampling_progress(
    console: Console, *, clock: Clock = time.monotonic
) -> Iterator[SamplingProgress]:
    """Show how sampling goes on: one panel updated in place on a terminal; elsewhere the first
    snapshot, a line about every 10 s, and the last.

    Args:
        console: Where to show; its width is respected.
        clock: Seconds, rising; replaced in tests.
    """
    state = _State(clock)
    if console.is_terminal and not console.is_dumb_terminal:
        with Live(_Panel(state), console=console, refresh_per_second=REFRESHES_PER_SECOND):
            yield state.update
        return
    lines = _Lines(console, state, clock)
    try:
        yield lines
    finally:
        lines.finish()


class _State:
    """The last snapshot, and the pace of those before it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._marks: deque[tuple[float, int, int]] = deque()
        self.now: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        now_s, self.now = self._clock(), snapshot
        self._first = self._first or (now_s, snapshot.samples)
        if not self._marks or now_s - self._marks[-1][0] >= RATE_MARK_EVERY_S:
            self._marks.append((now_s, snapshot.samples, snapshot.tokens))
        while len(self._marks) > 2 and now_s - self._marks[1][0] >= RATE_OVER_S:
            self._marks.popleft()

    def rates_per_s(self) -> tuple[float, float] | None:
        """Samples and tokens per second; None while nothing can be said."""
        if self.now is None or len(self._marks) < 2:
            return None
        at_s, samples, tokens = self._marks[0]
        passed_s = self._marks[-1][0] - at_s
        return (self._marks[-1][1] - samples) / passed_s, (self._marks[-1][2] - tokens) / passed_s

    @property
    def remaining_s(self) -> float | None:
        """Time left at the pace of this session."""
        if self.now is None or self._first is None or self.now.samples <= self._first[1]:
            return None
        left = max(0, self.now.samples_planned - self.now.samples)
        return (self._clock() - self._first[0]) / (self.now.samples - self._first[1]) * left

    def header(self) -> str:
        """`1,234/16,000 samples (8%)  3m 02s left`."""
        now, remaining_s = self.now, self.remaining_s
        if now is None:
            return "starting"
        left = f"  {coarse_duration(remaining_s)} left" if remaining_s else ""
        return f"{now.samples:,}/{now.samples_planned:,} samples ({self.share:.0%}){left}"

    @property
    def share(self) -> float:
        """Done part, 0 to 1."""
        return (
            min(1.0, self.now.samples / self.now.samples_planned)
            if self.now and self.now.samples_planned
            else 0.0
        )

    def fields(self) -> list[tuple[str, str, str]]:
        """(label, value, style), the most wanted first."""
        now, rates = self.now, self.rates_per_s()
        if now is None:
            return []
        fields = [("questions", f"{now.questions_done:,}/{now.questions:,} done", "bold")]
        if now.samples:
            fields += [
                ("correct", _share(now.correct, now.samples), "bold green"),
                ("answered", _share(now.answered, now.samples), ""),
            ]
        fields += [
            ("accepted questions", f"{now.questions_accepted:,}", "bold green"),
            ("kept", f"{now.kept:,}", "bold green"),
        ]
        if rates is not None:
            fields += [
                ("samples/s", _rate(rates[0]), "cyan"),
                ("tokens/s", _rate(rates[1]), "cyan"),
            ]
        fields.append(("rows", f"{now.running_rows:,}", "cyan"))
        fields += (
            [("memory", format_bytes(now.memory_bytes), "cyan")]
            if now.memory_bytes is not None
            else []
        )
        return (
            [*fields, ("samples of earlier sessions", f"{now.samples_before:,}", "")]
            if now.samples_before
            else fields
        )


class _Panel:
    """The terminal's view: a bar, then the fields in columns."""

    def __init__(self, state: _State) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        header = Text(self._state.header(), no_wrap=True, overflow="crop")
        if options.max_width >= BAR_FROM_WIDTH:
            line = Table.grid(
                Column(no_wrap=True),
                Column(ratio=1),
                Column(no_wrap=True, overflow="crop"),
                padding=(0, 1),
                expand=True,
            )
            line.add_row(
                Text("sampling", style="bold"),
                ProgressBar(
                    total=1.0,
                    completed=self._state.share,
                    complete_style="cyan",
                    finished_style="green",
                ),
                header,
            )
            yield line
        else:
            yield header
        fields = self._state.fields()
        if fields:
            texts = [
                Text.assemble((label, "dim"), " ", (value, style), no_wrap=True, overflow="crop")
                for label, value, style in fields
            ]
            yield Columns(texts, padding=(0, 3))


class _Lines:
    """Plain lines for pipes, files and notebooks."""

    def __init__(self, console: Console, state: _State, clock: Clock) -> None:
        self._console, self._state, self._clock = console, state, clock
        self._line_at_s: float | None = None
        self._is_told = True

    def __call__(self, snapshot: Snapshot) -> None:
        self._state.update(snapshot)
        self._is_told = False
        if self._line_at_s is None or self._clock() - self._line_at_s >= LINE_EVERY_S:
            self.finish()

    def finish(self) -> None:
        """Tell the last snapshot, once."""
        if self._is_told:
            return
        self._is_told, self._line_at_s = True, self._clock()
        parts = [
            f"{value} {label}" if label in _VALUE_FIRST else f"{label} {value}"
            for label, value, _ in self._state.fields()
        ]
        header, _, left = self._state.header().partition("  ")
        self._console.print(
            Text("  ".join(part for part in (header, *parts, left) if part)),
            soft_wrap=True,
            highlight=False,
        )


_VALUE_FIRST = {"samples/s", "tokens/s", "rows"}
"""Labels that read as a unit."""


def _share(count: float, total: float) -> str:
    return format_score(count / total if total else None, "share")


def _rate(per_s: float) -> str:
    return format_count(per_s) if per_s >= 100 else f"{per_s:.3g}"


def sampling_lines(statistics: Json) -> list[str]:
    """What sampling gave: how many answers are right, what was kept, what was not and why, and the
    kinds of question with the fewest accepted.

    Args:
        statistics: Of `selection.statistics`, as JSON.
    """
    kept = number(section(statistics, "fates").get("kept")) or 0.0
    questions, samples, tokens = (
        number(statistics.get(key)) or 0.0 for key in ("questions", "samples", "tokens")
    )
    accepted = questions_with_kept(statistics)
    lines = [
        f"{samples:,.0f} samples of {questions:,.0f} questions, {format_count(tokens)} tokens",
        (
            f"  correct: {share_text(statistics, 'correct')}, answered:"
            f" {share_text(statistics, 'answered')}"
        ),
        f"  kept: {kept:,.0f} samples of {accepted:,.0f} questions ({_share(accepted, questions)})",
    ]
    dropped = [f"{count:,} {name}" for name, count in fates(statistics) if name != "kept"]
    lines += [f"  not kept: {', '.join(dropped)}"] if dropped else []
    reasons = [
        reason
        for reason in items(statistics.get("reasons"))
        if isinstance(reason, dict) and reason.get("detail")
    ]
    lines += [
        f"  {number(reason.get('samples')) or 0:,.0f} x {reason_text(reason)}" for reason in reasons
    ]
    kinds = sorted(section(statistics, "kinds").items(), key=lambda kind: _accepted_share(kind[1]))
    if len(kinds) > 1:
        lines.append(
            "  fewest questions accepted:"
            f" {', '.join(f'{name} {_accepted(kind)}' for name, kind in kinds[:MAX_KINDS])}"
        )
    return lines


def fates(statistics: Json) -> list[tuple[str, int]]:
    """What became of samples, in words, with counts above 0; what is right first."""
    counts = section(statistics, "fates")
    names = [*FATES, *(name for name in counts if name not in FATES)]
    return [
        (name.replace("-", " "), int(count))
        for name in names
        if (count := number(counts.get(name)))
    ]


def questions_with_kept(statistics: Json) -> float:
    """Questions of which at least one sample is kept."""
    return sum(number(count) or 0.0 for count in items(statistics.get("questions_by_kept"))[1:])


def share_text(record: Json, key: str) -> str:
    """`52.1% [51.3%, 52.9%]`; `not known` without samples."""
    share = section(record, key)
    value, low, high = (number(share.get(each)) for each in ("share", "low", "high"))
    interval = None if low is None or high is None else (low, high)
    return with_interval(value, interval, lambda each: format_score(each, "share")) or format_score(
        None, "share"
    )


def reason_text(reason: Json) -> str:
    """`wrong: off by more than the tolerance`."""
    fate, detail = (str(reason.get(key) or "") for key in ("fate", "detail"))
    return ": ".join(part for part in (fate.replace("-", " "), detail) if part)


def _accepted_share(kind: Json) -> float:
    return (number(kind.get("questions_with_kept")) or 0.0) / (number(kind.get("questions")) or 1.0)


def _accepted(kind: Json) -> str:
    return (
        f"{format_score(_accepted_share(kind), 'share')} ({kind.get('questions_with_kept')} of"
        f" {kind.get('questions')})"
    )
