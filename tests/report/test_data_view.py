"""What is learned of data, as the console, a page and JSON show it."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from brimful.report.data_view import (
    DataView,
    SeenExample,
    SeenRow,
    SeenSplit,
    render,
    write_page,
)
from brimful.report.views import SeenToken

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"


def view_of(*tokens: SeenToken, columns: object = None) -> DataView:
    """A view of one row that became one example of these tokens."""
    example = SeenExample("train", len(tokens), tokens)
    return DataView(
        recipe="tuned",
        method="sft",
        read="all rows",
        rows=[SeenRow(f"rows.jsonl:1{HOSTILE}", columns, [example])],
        splits={"train": SeenSplit(2, 10, 4, [(3, 5, 1), (6, 7, 1)])},
        notes=[f"B220: columns not used: {HOSTILE}"],
        not_learned=[{"kind": "columns", "count": 1}],
        bad_rows=[],
        weights={"spam": 2.0},
    )


def shown(view: DataView, *, is_terminal: bool = False) -> str:
    colours = "256" if is_terminal else None
    console = Console(width=200, force_terminal=is_terminal, color_system=colours)
    with console.capture() as captured:
        console.print(render(view), soft_wrap=True)
    return captured.get()


def test_what_is_learned_stands_between_brackets_and_shares_are_told() -> None:
    view = view_of(SeenToken(1, "2 + 2 = ", False), SeenToken(2, "4", True))
    text = shown(view)
    assert "2 + 2 = \N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}4" in text
    assert "4 (40%) are learned" in text
    assert "weight of label spam: 2" in text


def test_a_special_token_differs_from_text_that_spells_it(tmp_path: Path) -> None:
    view = view_of(SeenToken(1, "<|end|>", False), SeenToken(2, "<|end|>", False, is_special=True))
    _, spelled, special = shown(view, is_terminal=True).rsplit("<|end|>", 2)[0].rpartition("\x1b")
    assert spelled
    assert "7" not in special
    assert "7" in shown(view, is_terminal=True).rsplit("<|end|>", 1)[0].rpartition("\x1b")[2]
    write_page(view, tmp_path / "data.html")
    page = (tmp_path / "data.html").read_text()
    assert '<i title="1">' in page
    assert '<i title="2" class=special>' in page


def test_a_terminal_is_not_obeyed_and_gets_colours_of_ours_only() -> None:
    view = view_of(SeenToken(1, HOSTILE, True), columns={"prompt": HOSTILE})
    assert not {"\x1b", "\u202e"} & {*shown(view)}
    coloured = shown(view, is_terminal=True)
    assert "\\x1b[31m" in coloured
    assert "\x1b[32m" in coloured  # green: learned
    assert "\x1b[31m" not in coloured


def test_brackets_of_a_text_are_no_markup() -> None:
    assert "[bold]x[/bold] :smile:" in shown(view_of(SeenToken(1, "[bold]x[/bold] :smile:", True)))


def test_the_middle_of_a_long_stretch_is_counted_not_shown() -> None:
    text = shown(view_of(*(SeenToken(n, f"<{n}>", False) for n in range(500))))
    assert "<59> ... 380 tokens ... <440>" in text


def test_a_page_holds_no_markup_of_the_data(tmp_path: Path) -> None:
    view = view_of(SeenToken(1, HOSTILE, True), columns={"</pre><img src=x>": HOSTILE})
    write_page(view, tmp_path / "data.html")
    page = (tmp_path / "data.html").read_text()
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in page


@pytest.mark.parametrize("columns", [{"text": "a\ud800"}, {"when": Path("x")}, ["a", 1], None])
def test_any_value_of_a_row_can_be_shown(columns: object, tmp_path: Path) -> None:
    view = view_of(SeenToken(1, "a", True), columns=columns)
    assert "rows.jsonl:1" in shown(view)
    write_page(view, tmp_path / "data.html")
    json.dumps(view.to_json())


def test_a_row_that_is_left_out_says_why(tmp_path: Path) -> None:
    view = view_of()
    left_out = DataView(
        **{**vars(view), "rows": [SeenRow("rows.jsonl:2", {}, [], "the answer is empty.")]}
    )
    assert "left out: the answer is empty." in shown(left_out)
    write_page(left_out, tmp_path / "data.html")
    assert "left out: the answer is empty." in (tmp_path / "data.html").read_text()


def test_the_json_has_these_keys() -> None:
    values = view_of(SeenToken(7, "a", True), columns={"text": "a"}).to_json()
    assert [*values] == [
        "recipe",
        "method",
        "read",
        "rows",
        "splits",
        "notes",
        "not_learned",
        "bad_rows",
        "weights",
    ]
    (row,) = values["rows"]
    assert [*row] == ["where", "columns", "examples", "reason"]
    assert row["examples"] == [
        {"split": "train", "num_tokens": 1, "tokens": (SeenToken(7, "a", True),), "text": "a"}
    ]
    assert values["splits"]["train"] == {
        "items": 2,
        "tokens": 10,
        "learned_tokens": 4,
        "lengths": [(3, 5, 1), (6, 7, 1)],
        "unit": "example",
        "share_learned": 0.4,
    }
