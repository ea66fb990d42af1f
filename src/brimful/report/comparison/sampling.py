"""What a user sees of sampling: live progress while answers are sampled and verified, and lines at
the end on what became of them.
"""

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live

from brimful.base.console import console_printer
from brimful.base.units import format_bytes, format_count
from brimful.report.bars import Bar, Bars, Part
from brimful.report.comparison.study_folder import SampleExample
from brimful.report.live.panel import Panel
from brimful.report.live.progress import LINE_EVERY_S, REFRESHES_PER_SECOND
from brimful.report.live.run_state import Clock, Field, coarse_duration, percent
from brimful.report.quantities import format_score
from brimful.report.table import Cell, Row, Table, table_of
from brimful.report.terminal import told
from brimful.report.views import Block, Heading
from brimful.selection.statistics import RejectionReason, Share, Statistics, share_of

RATE_WINDOW_S = 30.0
"""Rates are averaged over this many seconds, because answers end in bursts."""
RATE_SAMPLE_EVERY_S = 0.5
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
"""In the order in which they are shown: correct samples first."""
MAX_REASONS, MAX_KINDS = 5, 12


@dataclass(frozen=True)
class SamplingState:
    """How far sampling is. Counts are over all sessions and of verified samples.

    Attributes:
        questions_done: Questions of which no more samples are drawn.
        samples_planned: Samples there will be at most; may shrink as questions are settled early.
        samples_before: How many of `samples` were drawn in earlier sessions.
        tokens: New tokens of all samples.
        answered: Samples that could be read.
        correct: Samples that are right.
        questions_accepted: Questions with at least one kept answer so far, done or not.
        kept: Samples that will be trained on.
        running_rows: Answers being written now.
        memory_bytes: Memory in use; None where it cannot be measured.
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


SamplingProgress = Callable[[SamplingState], None]
"""Receives the state as often as it changes."""


@contextmanager
def sampling_progress(
    console: Console, *, clock: Clock = time.monotonic
) -> Iterator[SamplingProgress]:
    """Show the progress of sampling: a panel that is updated in place on a terminal; elsewhere a
    line for the first state, about every 10 s, and for the last.

    Args:
        console: Where to show; its width is respected.
        clock: Seconds, rising; replaced in tests.
    """
    pace = _Pace(clock)
    if console.is_terminal and not console.is_dumb_terminal:
        with Live(Panel(pace), console=console, refresh_per_second=REFRESHES_PER_SECOND):
            yield pace.update
        return
    lines = _Lines(console, pace, clock)
    try:
        yield lines
    finally:
        lines.finish()


class _Pace:
    """The last state, and the rates at which it changes."""

    run, ended = "sampling", None

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._marks: deque[tuple[float, int, int]] = deque()
        self.now: SamplingState | None = None

    def update(self, state: SamplingState) -> None:
        now_s, self.now = self._clock(), state
        self._first = self._first or (now_s, state.samples)
        if not self._marks or now_s - self._marks[-1][0] >= RATE_SAMPLE_EVERY_S:
            self._marks.append((now_s, state.samples, state.tokens))
        while len(self._marks) > 2 and now_s - self._marks[1][0] >= RATE_WINDOW_S:
            self._marks.popleft()

    def rates_per_s(self) -> tuple[float, float] | None:
        """Return samples and tokens per second; None before there are two measurements."""
        if len(self._marks) < 2:
            return None
        first_s, first_samples, first_tokens = self._marks[0]
        last_s, last_samples, last_tokens = self._marks[-1]
        passed_s = last_s - first_s
        return (last_samples - first_samples) / passed_s, (last_tokens - first_tokens) / passed_s

    @property
    def remaining_s(self) -> float | None:
        """Time left at the rate of this session."""
        if self.now is None or self._first is None or self.now.samples <= self._first[1]:
            return None
        left = max(0, self.now.samples_planned - self.now.samples)
        return (self._clock() - self._first[0]) / (self.now.samples - self._first[1]) * left

    @property
    def share(self) -> float | None:
        """Share of the samples that are done, 0 to 1."""
        if self.now is None or not self.now.samples_planned:
            return None
        return min(1.0, self.now.samples / self.now.samples_planned)

    @property
    def position(self) -> str:
        """`1,234/16,000 samples`."""
        if self.now is None:
            return "starting"
        return f"{self.now.samples:,}/{self.now.samples_planned:,} samples"

    def fields(self) -> list[Field]:
        """Return (label, value, style) of each field, the most important first."""
        now, rates = self.now, self.rates_per_s()
        if now is None:
            return []
        fields = [("questions", f"{now.questions_done:,}/{now.questions:,} done", "bold")]
        if now.samples:
            fields += [
                ("correct", _percent(now.correct, now.samples), "bold green"),
                ("answered", _percent(now.answered, now.samples), ""),
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
        if now.memory_bytes is not None:
            fields.append(("memory", format_bytes(now.memory_bytes), "cyan"))
        if now.samples_before:
            fields.append(("samples of earlier sessions", f"{now.samples_before:,}", ""))
        return fields


class _Lines:
    """Plain lines for pipes, files and notebooks."""

    def __init__(self, console: Console, pace: _Pace, clock: Clock) -> None:
        self._console, self._pace, self._clock = console, pace, clock
        self._printed_at_s: float | None = None
        self._is_printed = True

    def __call__(self, state: SamplingState) -> None:
        self._pace.update(state)
        self._is_printed = False
        if self._printed_at_s is None or self._clock() - self._printed_at_s >= LINE_EVERY_S:
            self.finish()

    def finish(self) -> None:
        """Print the last state if it is not printed yet."""
        if self._is_printed:
            return
        self._is_printed, self._printed_at_s = True, self._clock()
        parts = [
            f"{value} {label}" if label in _VALUE_FIRST else f"{label} {value}"
            for label, value, _ in self._pace.fields()
        ]
        first = self._pace.position + percent(self._pace.share)
        left = self._pace.remaining_s
        last = f"{coarse_duration(left)} left" if left else ""
        console_printer(self._console)("  ".join(filter(None, (first, *parts, last))))


_VALUE_FIRST = {"samples/s", "tokens/s", "rows"}
"""Labels that read as a unit."""


def _percent(count: float, total: float) -> str:
    return format_score(count / total if total else None, "share")


def _rate(per_s: float) -> str:
    return format_count(per_s) if per_s >= 100 else f"{per_s:.3g}"


def sampling_lines(statistics: Statistics, width: float = math.inf) -> list[str]:
    """Return what sampling gave for a terminal of `width` columns: how many answers are right, what
    was kept, what was not kept and why, and the kinds of question.
    """
    drawn = Table(DRAWN, (drawn_row("all", statistics),))
    blocks = fate_blocks([statistics], with_samples=False)
    return told([drawn, *blocks], width).plain.splitlines()


DRAWN = ("", "Samples", "Tokens", "Correct", "Answered", "Accepted", "Kept")
"""Columns of `drawn_row`."""


def drawn_row(name: str, statistics: Statistics) -> Row:
    """Return the counts of a drawing."""
    return (
        name,
        Cell(statistics.samples),
        Cell(statistics.tokens),
        _share_cell(statistics.correct),
        _share_cell(statistics.answered),
        _accepted_cell(sum(statistics.questions_by_kept[1:]), statistics.questions),
        Cell(statistics.kept),
    )


def _accepted_cell(accepted: int, questions: int) -> Cell:
    """Questions of which at least one sample is kept."""
    note = f"{accepted:,} of {questions:,} questions"
    return Cell(accepted / questions if questions else None, "{:.1%}".format, note=note)


def _share_cell(share: Share | None) -> Cell:
    """`52.1% [51.3%, 52.9%]`; empty without samples."""
    if share is None:
        return Cell(None)
    return Cell(share.share, "{:.1%}".format, (share.low, share.high))


def fate_blocks(statistics: Sequence[Statistics], *, with_samples: bool = True) -> Iterator[Block]:
    """Return what became of the samples of several drawings together, why some were not kept (with
    a sample of each reason, or without), and how it went by kind of question.
    """
    if became := tuple(_fates(statistics)):
        yield Heading("What became of them")
        yield Bars("", "What became of them", (Bar("samples", became),))
    if reasons := table_of(("Samples", "Why", "Such as", "Answered"), _reasons(statistics)):
        yield Heading("Why samples were not kept")
        if not with_samples:
            reasons = reasons.without_column("Such as").without_column("Answered")
        yield reasons
    if kinds := _kinds(statistics):
        yield Heading("By kind of question, fewest accepted first")
        yield kinds


def _fates(statistics: Sequence[Statistics]) -> Iterator[Part]:
    counts: Counter[str] = Counter()
    for each in statistics:
        counts.update(each.fates)
    names = dict.fromkeys((*FATES, *counts))
    for place, name in enumerate(names):
        if count := counts[name]:
            share = count / counts.total()
            yield Part(name.replace("-", " "), count, share, f"{count:,}", min(place, len(FATES)))


def _reasons(statistics: Sequence[Statistics]) -> Iterator[Row]:
    """Return the most frequent reasons of all seeds, each with the first seed's sample."""
    counts: Counter[str] = Counter()
    samples: dict[str, tuple[str, str]] = {}
    for reason in (reason for each in statistics for reason in each.reasons):
        what = reason_text(reason)
        counts[what] += reason.samples
        samples.setdefault(what, (reason.question, reason.completion))
    for what, count in counts.most_common(MAX_REASONS):
        yield count, what, *samples[what]


def _kinds(statistics: Sequence[Statistics]) -> Table | None:
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for name, kind in (item for each in statistics for item in each.kinds.items()):
        total = totals[name]
        total.update(questions=kind.questions, accepted=kind.questions_with_kept, kept=kind.kept)
        if kind.correct is not None:
            total.update(correct=kind.correct.count, samples=kind.correct.total)
    if len(totals) < 2:
        return None
    rows = [
        (
            name,
            _accepted_cell(total["accepted"], total["questions"]),
            Cell(total["kept"]),
            _share_cell(share_of(total["correct"], total["samples"])),
        )
        for name, total in sorted(totals.items(), key=_accepted_share)[:MAX_KINDS]
    ]
    return table_of(("Kind of question", "Accepted", "Kept", "Correct"), rows)


def _accepted_share(item: tuple[str, Counter[str]]) -> float:
    return item[1]["accepted"] / max(1, item[1]["questions"])


def reason_text(reason: RejectionReason | SampleExample) -> str:
    """`wrong: off by more than the tolerance`."""
    return ": ".join(filter(None, (reason.fate.replace("-", " "), reason.detail)))
