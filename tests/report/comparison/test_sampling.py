"""What a user sees of sampling: a panel on a terminal, few plain lines elsewhere, and what became
of the samples at the end.
"""

import io
import re
from collections.abc import Iterable

import pytest
from rich.console import Console
from run_records import FakeClock
from syrupy.assertion import SnapshotAssertion

from brimful.report.comparison.sampling import (
    SamplingState,
    sampling_lines,
    sampling_progress,
)
from brimful.selection.choose import SelectionRules, choose
from brimful.selection.sample import JudgedSample, SampledPrompt
from brimful.selection.statistics import Statistics, statistics_of


def after(
    samples: int, *, before: int = 0, memory_bytes: int | None = 3 * 1024**3
) -> SamplingState:
    """Of 100 questions with 16 samples each, half of them right; 100 tokens a sample."""
    done = samples // 16
    return SamplingState(
        done,
        100,
        samples,
        1600,
        before,
        100 * samples,
        samples * 3 // 4,
        samples // 2,
        done,
        samples // 4,
        64,
        memory_bytes,
    )


def piped(snapshots: Iterable[SamplingState], seconds_each: float) -> list[str]:
    clock, file = FakeClock(), io.StringIO()
    with sampling_progress(Console(file=file, force_terminal=False, width=40), clock=clock) as show:
        for snapshot in snapshots:
            show(snapshot)
            clock.now_s += seconds_each
    return file.getvalue().splitlines()


def on_terminal(
    snapshots: Iterable[SamplingState], width: int = 100, encoding: str = "utf-8"
) -> list[str]:
    """Rows without colours and movements of the cursor."""
    buffer, clock = io.BytesIO(), FakeClock()
    file = io.TextIOWrapper(buffer, encoding=encoding, errors="strict")
    with sampling_progress(
        Console(file=file, force_terminal=True, width=width, height=25), clock=clock
    ) as show:
        for snapshot in snapshots:
            show(snapshot)
            clock.now_s += 1
    file.flush()
    return (
        re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", buffer.getvalue().decode(encoding))
        .replace("\r", "\n")
        .splitlines()
    )


def test_piped_output_has_a_line_every_ten_seconds_however_many_samples_there_are() -> None:
    lines = piped((after(samples) for samples in range(0, 1601, 5)), 0.125)
    assert [line.split("/")[0] for line in lines] == ["0", "400", "800", "1,200", "1,600"]


def test_a_plain_line_tells_everything_on_one_line_however_narrow_the_console() -> None:
    told = (
        "800/1,600 samples (50 %)  questions 50/100 done  correct 50.0%  answered 75.0%  accepted"
        " questions 50  kept 200  40 samples/s  4.00k tokens/s  64 rows  "
    )
    assert (
        piped((after(samples) for samples in range(0, 801, 5)), 0.125)[2]
        == f"{told}memory 3.00 GiB  20 s left"
    )


def test_the_last_snapshot_is_told_when_sampling_ends_or_is_stopped() -> None:
    assert [line.split("/")[0] for line in piped([after(0), after(4), after(8)], 0.1)] == ["0", "8"]
    assert len(piped([after(0)], 0.1)) == 1
    assert piped([], 0.1) == []


def test_samples_of_earlier_sessions_do_not_make_sampling_look_fast(
    snapshot: SnapshotAssertion,
) -> None:
    lines = piped((after(samples, before=800) for samples in range(800, 921, 4)), 1.0)
    assert lines == snapshot
    assert "/s" not in lines[0]


def test_the_speed_is_that_of_the_last_half_minute_and_the_time_left_follows_the_whole_session() -> (
    None
):
    slow_then_fast = [*range(0, 61), *range(70, 1000, 10)]
    last = piped(map(after, slow_then_fast), 1.0)[-1]
    assert "  10 samples/s  " in last
    assert "1m 35s left" in last


def test_memory_that_cannot_be_told_is_left_out() -> None:
    assert "memory" not in piped([after(16, memory_bytes=None)], 1.0)[0]


def test_a_terminal_shows_every_wanted_number() -> None:
    rows = " ".join(on_terminal(map(after, range(0, 801, 80))))
    wanted = (
        "800/1,600 samples (50 %)",
        "left",
        "questions 50/100 done",
        "correct 50.0%",
        "answered 75.0%",
        "accepted questions 50",
        "kept 200",
    )
    for told in (*wanted, "samples/s 80", "tokens/s 8.00k", "rows 64", "memory 3.00 GiB"):
        assert told in rows, told


@pytest.mark.parametrize(
    ("width", "encoding"),
    [(1, "utf-8"), (8, "ascii"), (20, "utf-8"), (59, "ascii"), (80, "ascii"), (200, "utf-8")],
)
def test_no_line_of_the_panel_is_wider_than_the_terminal(width: int, encoding: str) -> None:
    rows = on_terminal([after(0), after(800, before=400), after(1600)], width, encoding)
    assert len(rows) > 2
    assert max(map(len, rows)) <= width


def test_an_error_inside_leaves_the_terminal_with_its_cursor() -> None:
    file = io.StringIO()

    def interrupted() -> None:
        with sampling_progress(Console(file=file, force_terminal=True)) as show:
            show(after(4))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.getvalue().endswith("\x1b[?25h")


def drawing() -> Statistics:
    """Four samples each of ten questions about minutes, all right in two ways, and ten about feet,
    of which one is right once.
    """
    rules, samples = SelectionRules(samples_per_prompt=4, keep_per_prompt=1), []
    questions = [
        SampledPrompt(f"{kind} {number}", "How many?", (1,), kind)
        for kind in ("minutes", "feet")
        for number in range(10)
    ]
    for question in questions:
        right = 4 if question.kind == "minutes" else 1 if question.id == "feet 0" else 0
        samples += choose(
            [_sample(question.id, number, is_right=number < right) for number in range(4)], rules
        )
    return statistics_of(questions, samples, rules)


def _sample(question: str, number: int, *, is_right: bool) -> JudgedSample:
    verdict = (
        ("correct", "")
        if is_right
        else ("unparsed", "no final answer")
        if number == 3
        else ("wrong", "off by a factor")
    )
    return JudgedSample(
        question, number, "60", "stop", 100, number, 60.0, "60", *verdict, path=f"{number // 2}"
    )


def test_the_end_tells_what_was_kept_what_was_not_and_why(snapshot: SnapshotAssertion) -> None:
    assert sampling_lines(drawing()) == snapshot


def test_a_drawing_without_samples_is_told_too(snapshot: SnapshotAssertion) -> None:
    empty = statistics_of([], [], SelectionRules(4, 1))
    assert sampling_lines(empty) == snapshot


def test_one_kind_of_question_is_not_told_by_kind() -> None:
    statistics = drawing()
    del statistics.kinds["feet"]
    assert not any("fewest" in line for line in sampling_lines(statistics))
