"""Pieces of a view: fields flow into the width there is, small curves keep their shape, and nothing
is printed that the console cannot show.
"""

import io

import pytest
from rich.console import Console
from rich.text import Text
from syrupy.assertion import SnapshotAssertion

from brimful.report.live.panel import can_show, flow, header, printable, sparkline
from brimful.report.live.run_state import RunState


def console(encoding: str = "utf-8", width: int = 80) -> Console:
    return Console(
        file=io.TextIOWrapper(io.BytesIO(), encoding=encoding), force_terminal=True, width=width
    )


def test_fields_share_lines_as_far_as_they_fit(snapshot: SnapshotAssertion) -> None:
    fields = [("loss", "4.000", ""), ("lr", "1e-3", ""), ("", "no label", "")]
    assert [line.plain for line in flow(fields, console(), 20)] == [
        "loss 4.000   lr 1e-3",
        "no label",
    ]
    assert [line.plain for line in flow(fields, console(), 80)] == snapshot
    assert list(flow([], console(), 80)) == []


@pytest.mark.parametrize(
    ("values", "width", "told"),
    [
        ([], 8, ""),
        ([1.0], 8, "▁"),
        ([3.0, 3.0], 8, "▁▁"),
        ([8.0, 4.5, 1.0], 8, "█▅▁"),
        ([8.0, 8.0, 1.0, 1.0], 2, "█▁"),
        ([1.0, 2.0], 0, ""),
    ],
)
def test_a_sparkline_has_the_shape_of_its_values(
    values: list[float], width: int, told: str
) -> None:
    assert sparkline(values, width, console()) == told


def test_a_steep_beginning_leaves_the_rest_its_shape() -> None:
    assert (
        sparkline([1000.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 1.0], 10, console())
        == "██▇▆▅▄▃▂▁▁"
    )


def test_a_sparkline_of_many_values_is_as_wide_as_asked() -> None:
    assert len(sparkline([float(value) for value in range(1001)], 60, console())) == 60


def test_an_ascii_console_gets_ascii_curves_and_text() -> None:
    ascii_console = console("ascii")
    assert sparkline([1.0, 2.0], 8, ascii_console).isascii()
    assert printable("köln\x1b[2J", ascii_console) == "k?ln [2J"
    assert (can_show("é", ascii_console), can_show("é", console())) == (False, True)


@pytest.mark.parametrize("remaining", [True, False])
def test_the_header_tells_the_time_left_only_where_that_means_something(remaining: bool) -> None:
    state = RunState(lambda: 0.0)
    state.update({"kind": "start", "total_steps": 100, "run": "quickstart"})
    state.update({"kind": "step", "step": 50, "loss": 1.0, "step_time_s": 1.0})
    told = header(state, console(), 40, remaining=remaining)
    assert isinstance(told, Text)
    assert told.plain == f"quickstart 50/100 (50 %){'  50 s left' if remaining else ''}"
