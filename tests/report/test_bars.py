"""Parts of a whole add up to it, on a page and in a file."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from syrupy.assertion import SnapshotAssertion

from brimful.report.bars import MOST_PARTS, bar_drawing, parts, widths


def test_parts_have_their_share_their_text_and_their_colour() -> None:
    found = parts([("Compute", 90.0), ("Evaluation", 9.0), ("Idle", 0.05)], "time_s")
    assert [part.text for part in found] == ["1m 30s", "9.0 s", "50 ms"]
    assert sum(part.share for part in found) == pytest.approx(1)
    assert [part.share_text for part in found] == ["91 %", "9 %", "0.1 %"]
    assert found[1].style == "--c: var(--s2)"


def test_what_is_beyond_the_colours_is_one_part() -> None:
    found = parts([(f"part {number}", 1.0) for number in range(MOST_PARTS + 4)], "bytes")
    assert len(found) == MOST_PARTS
    assert (found[-1].name, found[-1].size) == ("Everything else", 5.0)


def test_colours_can_be_given_so_that_two_bars_agree() -> None:
    assert [part.place for part in parts([("a", 1.0), ("b", 2.0)], "time_s", [4, 2])] == [4, 2]


def test_nothing_has_no_parts() -> None:
    assert parts([], "bytes") == []
    assert parts([("a", 0.0)], "bytes") == []


def test_a_figure_of_two_bars_names_every_part(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    rows = [
        (name, parts([("Compute", seconds), ("Idle", 1.0)], "time_s"))
        for name, seconds in (("predicted", 9.0), ("measured", 19.0))
    ]
    drawing = bar_drawing("time", "Where the time went", rows)
    assert drawing.description == snapshot
    assert [text for _, text in drawing.legend] == ["Compute", "Idle"]
    assert all(path.stat().st_size > 1000 for path in drawing.save(tmp_path))


def test_bars_are_drawn_on_one_scale() -> None:
    rows = [parts([("Compute", seconds)], "time_s") for seconds in (5.0, 20.0)]
    assert widths(rows) == ["25.00%", "100.00%"]
    figure = Figure()
    bar_drawing("time", "Time", [*zip(("predicted", "measured"), rows, strict=True)]).draw(figure)
    axes = figure.axes[0]
    ends = [patch.get_x() + patch.get_width() for patch in axes.patches]
    assert sorted(ends) == [5.0, 20.0]
    assert axes.get_xlim() == (0, 20.0)
