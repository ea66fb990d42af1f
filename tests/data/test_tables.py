"""Tables with and without a header, and broken rows by the line that broke."""

import io
import time

import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.data.rows import Row
from brimful.data.tables import csv_rows, tsv_rows


def lines(text: str) -> io.StringIO:
    return io.StringIO(text, newline="\n")


def csv(text: str, **options: bool) -> list[Row]:
    return list(csv_rows(lines(text), "a.csv", **options))


def tsv(text: str, **options: bool) -> list[Row]:
    return list(tsv_rows(lines(text), "a.tsv", **options))


def test_without_a_header_columns_are_called_by_their_numbers() -> None:
    """And the first row is data."""
    assert csv('x,1\n"y, z",0\n', has_header=False) == [
        Row({"0": "x", "1": "1"}, "a.csv:1"),
        Row({"0": "y, z", "1": "0"}, "a.csv:2"),
    ]
    assert tsv("ham\tx\n\nspam\ty\n", has_header=False) == [
        Row({"0": "ham", "1": "x"}, "a.tsv:1"),
        Row({"0": "spam", "1": "y"}, "a.tsv:3"),
    ]


def test_blank_lines_before_the_header_are_passed_over() -> None:
    """As they are between rows."""
    assert csv("\ntext,label\n\nx,1\n") == [Row({"text": "x", "label": "1"}, "a.csv:4")]


def test_a_row_over_several_lines_stands_where_it_begins() -> None:
    """So does the next one."""
    assert [row.where for row in csv('text,label\n"one\ntwo\nthree",1\nx,0\n')] == [
        "a.csv:2",
        "a.csv:5",
    ]


def test_columns_keep_their_order_and_a_repeated_name_goes_by_number() -> None:
    """The first has the name."""
    assert [list(row.columns.items()) for row in csv("b,a,b\n1,2,3\n")] == [
        [("b", "1"), ("a", "2"), ("2", "3")]
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "text,label\nx,1\ny\n",
            "a.csv:3: 1 fields, but the header names 2: text, label. The first field is 'y'.",
        ),
        ("text,label\nx,1\ny,0,\n", "a.csv:3: 3 fields, but the header names 2"),
        ("text,label\nx,1\na\0b,0\n", "a.csv:3: character 2 of the line is NUL"),
        (
            "text,label\rx,1\ry,0\r",
            "a.csv:1: a carriage return stands alone outside quotation marks.",
        ),
    ],
)
def test_a_broken_row_is_named_by_its_line(text: str, said: str) -> None:
    """With what it holds."""
    with pytest.raises(DataError) as caught:
        csv(text)
    assert str(caught.value).startswith(said)


def test_without_a_header_the_first_row_says_how_many_fields_there_are(
    refuses: Refuses,
) -> None:
    """A tab in a text, for example, makes one more."""
    with refuses(DataError, names=["a.tsv:2", "3 fields"]):
        tsv("ham\tx\nspam\ty\tz\n", has_header=False)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('text,label\nx,1\n"open,1\n' + "y,0\n" * 50, 3),
        ('text,label\nx,1\n"open,1\n' + "y,0\n" * 50 + '"fine",1\n' + "z,1\n" * 50, 3),
        ('text,label\n"two\nlines",1\nx,"open\n' + "y,0\n" * 50, 4),
        ('text,label\n"a ""quoted"" word",1\n"ends"too early,0\n', 3),
    ],
)
def test_a_quotation_mark_that_is_not_closed_is_named_by_the_line_that_opens_it(
    text: str, line: int
) -> None:
    """However many lines it swallows; rows before it are read."""
    rows = csv_rows(lines(text), "a.csv")
    with pytest.raises(
        DataError, match=rf"a\.csv:{line}: not valid CSV: .*the last one opens in line {line}[. ]"
    ):
        list(rows)


def test_a_row_that_swallowed_others_and_closed_by_chance_says_that_it_runs_over_lines(
    refuses: Refuses,
) -> None:
    """Its fields do not add up."""
    with refuses(DataError, names=["a.csv:2", "1 fields", "4 lines"]):
        csv('text,label\n"open,1\ny,0\nz,1\n"\n')


@pytest.mark.parametrize(
    "text",
    [
        "text\tlabel\nx\t1\n",
        "text;label\nx;1\n",
        "x,1\n",
    ],
)
def test_a_missing_column_says_what_else_the_first_line_may_be(text: str, refuses: Refuses) -> None:
    """Another separator, or no header."""
    with refuses(DataError):
        list(csv_rows(lines(text), "a.csv", "text", delimiter=","))


@pytest.mark.parametrize("read", [csv_rows, tsv_rows])
def test_one_line_of_ten_megabytes_is_read_quickly(read, refuses: Refuses) -> None:  # type: ignore[no-untyped-def]  # one of two functions
    """As a field, and as an endless row of fields."""
    separator = "," if read is csv_rows else "\t"
    started = time.process_time()
    (row,) = read(lines(f"label{separator}text\n1{separator}{'word ' * 2_000_000}\n"), "a")
    assert len(row.columns["text"]) == 10_000_000
    with refuses(DataError, names=["'text'"]):
        list(read(lines(separator * 200_000), "a", "text"))
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('a\tb\n1\t"x\ny"\n2\tz\n', [("1", "x\ny"), ("2", "z")]),
        ('a\tb\n"x\n\ny"\t1\n2\tz\n', [("x\n\ny", "1"), ("2", "z")]),
        ('a\tb\n1\t"say ""x""\nso"\n', [("1", 'say "x"\nso')]),
        ('a\tb\n1\t"lone\n2\tend"\n', [("1", '"lone'), ("2", 'end"')]),
        ('a\n"lone\nend"\n', [('"lone',), ('end"',)]),
    ],
)
def test_quoted_fields_of_a_tsv_may_run_over_lines(text: str, rows: list[tuple[str, ...]]) -> None:
    """Only where the lines make one row together, and none alone: lone marks stay text."""
    found = [*tsv_rows(io.StringIO(text), "f")]
    assert [tuple(row.columns.values()) for row in found] == rows
    assert found[-1].where == f"f:{text.count(chr(10)) - str(rows[-1]).count(chr(92) + 'n')}"


def test_a_tsv_row_that_stays_open_is_named_where_it_is_short(refuses: Refuses) -> None:
    with refuses(DataError, names=["f:3"]):
        list(tsv_rows(io.StringIO('a\tb\n1\t"open\nshort\n'), "f"))
