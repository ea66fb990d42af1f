"""Every block in a terminal, none of which it obeys."""

from brimful.report.bars import Bar, Bars, Part
from brimful.report.chart import Chart
from brimful.report.table import Table
from brimful.report.terminal import told
from brimful.report.views import Code, Fold, Heading, Paragraph, SeenToken, Tokens

HOSTILE = "\x1b[2J\u202e"


def test_blocks_are_lines_in_their_order() -> None:
    bars = Bars("", "", (Bar("2 tokens", (Part("", 4, 1.0, "4", 0),), "4"),))
    blocks = (
        Paragraph("What was found", code="a=1"),
        Heading("More"),
        Fold("Two lines", (Paragraph("one"), Table(("", "n"), (("row", 2),)))),
        bars,
        Chart("a", "A", "about", "x", ()),
    )
    assert told(blocks).plain.splitlines() == [
        "What was found: a=1",
        "",
        "More",
        "Two lines:",
        "one",
        "     n",
        "row  2",
        f"                 2 tokens        4 {'#' * 40}",
    ]


def test_control_characters_are_written_out() -> None:
    token = SeenToken(1, HOSTILE, is_learned=True)
    row = Table(("a",), ((HOSTILE,),))
    blocks = [Paragraph(HOSTILE), Heading(HOSTILE), Code(HOSTILE), Fold(HOSTILE, ()), row]
    shown = told([*blocks, Tokens((token,))]).plain
    assert not {"\x1b", "\u202e"} & {*shown}
    assert shown.count("\\x1b") == 5
