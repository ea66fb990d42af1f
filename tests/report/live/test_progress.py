"""The live view: a panel on a terminal, plain lines elsewhere, no trouble with width, encoding or
odd records.
"""

import io
import re

import pytest
from rich.console import Console
from run_records import START, FakeClock, step
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.live.progress import data_progress, progress_listener

EVALUATION = {
    "kind": "evaluation",
    "step": 50,
    "split": "validation",
    "loss": 3.25,
    "perplexity": 25.79,
    "bits_per_byte": 1.5,
    "best": True,
}
CHECKPOINT = {"kind": "checkpoint", "step": 50, "bytes": 3 * 1024**2, "seconds": 0.2}
EVENT = {
    "kind": "event",
    "step": 50,
    "message": "resumed from step 50 (3 steps lost) [bold]é[/bold]",
}
OUT_OF_MEMORY = {
    "kind": "out_of_memory",
    "step": 7,
    "phase": "training",
    "from": [8, 8, 3],
    "to": [4, 4, 4, 4, 2, 1],
}
OF_LABELS = {
    "kind": "evaluation",
    "step": 50,
    "split": "validation",
    "loss": 0.25,
    "f1": 0.9,
    "macro_f1": 0.95,
    "pr_auc": 0.97,
    "accuracy": 0.98,
    "roc_auc": 0.99,
    "objective": -0.9,
    "best": True,
}
END = {"kind": "end", "step": 100, "seconds": 62.0, "reason": "finished"}


PLANNED = {"step_time_s": 1.15, "peak_memory_bytes": 512.0 * 1024**2, "tokens_per_s": 9.9}


def piped(
    records: list[JsonDict],
    clock: FakeClock,
    seconds_per_record: float,
    planned: dict[str, float] | None = None,
) -> list[str]:
    file = io.StringIO()
    with progress_listener(
        Console(file=file, force_terminal=False, width=40), planned=planned, clock=clock
    ) as listen:
        for record in records:
            listen(record)
            clock.now_s += seconds_per_record
    return file.getvalue().splitlines()


def on_terminal(
    records: list[JsonDict],
    width: int = 100,
    encoding: str = "utf-8",
    planned: dict[str, float] | None = None,
) -> str:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding, errors="strict")
    console = Console(
        file=file, force_terminal=True, width=width, height=25, color_system="truecolor"
    )
    with progress_listener(console, planned=planned) as listen:
        for record in records:
            listen(record)
    file.flush()
    return buffer.getvalue().decode(encoding)


def rows_of(screen: str) -> list[str]:
    """Rows without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).replace("\r", "\n").splitlines()


def test_piped_output_has_the_first_step_then_a_line_each_twentieth_of_the_run(
    snapshot: SnapshotAssertion,
) -> None:
    lines = piped([START, *[step(number) for number in range(1, 101)], END], FakeClock(), 1.0)
    told = [int(line.split("/")[0].removeprefix("step ")) for line in lines if "loss" in line]
    assert told[:3] == [1, 6, 11]
    assert told[-1] == 100
    assert (lines[0], lines[-1]) == snapshot


def test_a_slow_run_prints_a_line_about_every_ten_seconds_before_a_twentieth_is_done() -> None:
    start = START | {"total_steps": 100_000}
    lines = piped([start, *[step(number) for number in range(1, 62)]], FakeClock(), 1.0)
    assert sum("loss" in line for line in lines) == 7


def test_a_run_of_milliseconds_prints_its_first_and_last_step_only() -> None:
    lines = piped([START, *[step(number) for number in range(1, 101)]], FakeClock(), 0.001)
    assert [line.split()[1] for line in lines if "loss" in line] == ["1/100", "100/100"]


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([START, step(1, skipped=2)], id="step"),
        pytest.param([START, step(1, tokens_per_second=None)], id="speed of slow steps"),
        *(
            pytest.param([START, step(1, loss=loss)], id=f"loss {loss}")
            for loss in (None, float("nan"), float("inf"))
        ),
        pytest.param([START, OUT_OF_MEMORY], id="out of memory"),
        pytest.param([START, EVALUATION, CHECKPOINT, EVENT], id="evaluation"),
        pytest.param([OF_LABELS], id="evaluation of a classifier"),
        pytest.param([START | {"step": 40, "resumed": True}], id="resumed"),
    ],
)
def test_each_record_has_one_plain_line_however_narrow_the_console(
    records: list[JsonDict], snapshot: SnapshotAssertion
) -> None:
    assert piped(records, FakeClock(), 1.0) == snapshot


def test_what_was_planned_stands_beside_what_is_measured(snapshot: SnapshotAssertion) -> None:
    for planned in (PLANNED, {"peak_memory_bytes": 1024.0**3}):
        lines = piped([START, step(1, step_time_s=1.213)], FakeClock(), 1.0, planned)
        assert lines[1] == snapshot
    for width in (80, 120):
        rows = rows_of(
            on_terminal(
                [START, step(50), EVALUATION, CHECKPOINT, step(51)], width=width, planned=PLANNED
            )
        )
        for told in ("step 500 ms (planned 1.15 s)", "memory 2.00 GiB (planned 512.0 MiB)"):
            assert any(told in row for row in rows)


def test_a_terminal_shows_every_wanted_number() -> None:
    screen = on_terminal([START, step(50), EVALUATION, CHECKPOINT, step(51, skipped=3)])
    wanted = [
        "quickstart",
        "51/100",
        "loss",
        "validation",
        "3.250",
        "best at step 50",
        "bits/byte",
        "1.00e-03",
        "12.35k",
        "2.00 GiB",
        "step 50",
    ]
    for text in [*wanted, "skipped steps", "left"]:
        assert text in screen


def test_evaluations_and_events_stay_above_the_panel_with_markup_shown_as_written() -> None:
    screen = on_terminal([START, EVALUATION, EVENT, OUT_OF_MEMORY], width=200)
    assert "perplexity 25.79" in screen
    assert "done again with the same sequences" in screen
    assert "[bold]é[/bold]" in screen


@pytest.mark.parametrize("width", [1, 8, 20, 39, 60, 200])
def test_no_line_of_the_panel_is_wider_than_the_terminal(width: int) -> None:
    screen = on_terminal(
        [START, step(50), EVALUATION, CHECKPOINT, step(51, skipped=3)], width=width, planned=PLANNED
    )
    lines = [line for line in rows_of(screen) if "perplexity" not in line]
    assert len(lines) > 3
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [8, 20, 100])
def test_an_ascii_terminal_gets_ascii_only(width: int) -> None:
    records = [
        START | {"run": "köln\x1b[2J"},
        step(50),
        EVALUATION,
        CHECKPOINT,
        EVENT,
        step(51),
        END,
    ]
    screen = on_terminal(records, width=width, encoding="ascii")
    assert "\x1b[2J" not in screen


def test_unknown_records_and_missing_keys_are_left_aside() -> None:
    odd: list[JsonDict] = [
        {"kind": "step"},
        {"kind": "evaluation"},
        {"kind": "checkpoint"},
        {"kind": "news"},
        {},
        {"kind": "end"},
        {"kind": "start"},
    ]
    assert on_terminal(odd)
    assert len(piped(odd, FakeClock(), 0.0)) == len(odd)


def test_an_error_inside_leaves_the_terminal_with_its_cursor() -> None:
    file = io.StringIO()

    def interrupted_run() -> None:
        with progress_listener(Console(file=file, force_terminal=True)) as listen:
            listen(START)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_run()
    assert file.getvalue().endswith("\x1b[?25h")


def test_piped_data_preparation_gets_one_line_a_phase(snapshot: SnapshotAssertion) -> None:
    clock = FakeClock()
    file = io.StringIO()
    with data_progress(Console(file=file, force_terminal=False), clock=clock) as progress:
        for done in range(0, 1001, 100):
            progress("reading", done, None)
            clock.now_s += 0.1
        for done in (0, 500, 2000, 2000):
            progress("tokenizing", done, 2000)
    assert file.getvalue().splitlines() == snapshot


def test_a_phase_that_reports_only_what_is_done_took_the_time_since_the_one_before() -> None:
    clock = FakeClock()
    file = io.StringIO()
    with data_progress(Console(file=file, force_terminal=False), clock=clock) as progress:
        clock.now_s += 2
        progress("generate", 9, 9)
        clock.now_s += 3
        progress("verify", 9, 9)
        clock.now_s += 4
        progress("generate", 4, 8)
        progress("generate", 8, 8)
    assert file.getvalue().splitlines() == [
        "generate: 9 in 2.0 s",
        "verify: 9 in 3.0 s",
        "generate: 8 in 4.0 s",
    ]


def test_a_long_phase_of_piped_data_preparation_says_how_far_it_is() -> None:
    clock = FakeClock()
    file = io.StringIO()
    with data_progress(Console(file=file, force_terminal=False), clock=clock) as progress:
        progress("tokenizing", 0, 2000)
        clock.now_s += 11
        progress("tokenizing", 500, 2000)
        assert file.getvalue() == "tokenizing: 500 of 2,000 (25 %)\n"


def test_a_brief_phase_in_a_pipe_says_something_within_seconds_and_then_ever_more_rarely() -> None:
    clock = FakeClock()
    file = io.StringIO()
    with data_progress(Console(file=file), brief=True, clock=clock) as progress:
        progress("reading", 0, 2)
        clock.now_s += 2
        progress("reading", 2, 2)
        for second in range(61):
            progress("tokenizing", second, 100)
            clock.now_s += 1
    assert file.getvalue().splitlines() == [
        *(f"tokenizing: {second} of 100 ({second} %)" for second in (3, 6, 12, 24, 48)),
        "tokenizing: 60 in 1m 01s",
    ]


@pytest.mark.parametrize(("width", "encoding"), [(100, "utf-8"), (12, "ascii"), (100, "ascii")])
def test_data_preparation_on_a_terminal_shows_its_phases(width: int, encoding: str) -> None:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding, errors="strict")
    with data_progress(Console(file=file, force_terminal=True, width=width)) as progress:
        progress("reading [x]", 10, None)
        progress("tokenizing é", 5, 10)
        progress("tokenizing é", 10, 10)
    file.flush()
    screen = buffer.getvalue().decode(encoding)
    assert "reading" in screen or width < 40
    assert width < 40 or "10/10" in screen
