"""What the page shows is escaped, for HTML and for the templates of Gradio."""

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.studio.html import problem, problem_of, render, style


def test_texts_stay_texts(snapshot: SnapshotAssertion) -> None:
    shown = problem("<b>{{value}}</b> ${1 + 1} & 'so on'")

    assert shown == snapshot


def test_no_problem_is_nothing() -> None:
    assert problem("") == ""


def test_an_unexpected_error_is_a_line_on_the_page_and_whole_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    shown = problem_of(KeyError("x" * 1000))

    assert shown == snapshot
    assert len(shown) < 500
    assert "KeyError: 'xxx" in capsys.readouterr().err
    assert problem_of(RequestError("that is none")) == snapshot


def test_a_report_in_a_frame_cannot_leave_it() -> None:
    shown = render(
        "frame.html.j2",
        title="Report of a",
        page='<p title="x">{1}</p></iframe><script>alert(1)</script>',
    )

    assert shown.count("<") == 2
    assert 'sandbox="allow-scripts"' in shown


def test_the_style_sheet_asks_for_nothing_from_elsewhere() -> None:
    assert "url(" not in style()
    assert "@import" not in style()
