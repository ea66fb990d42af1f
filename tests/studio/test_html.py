"""What the page shows is escaped, for HTML and for the templates of Gradio."""

import pytest

from brimful.base.errors import RequestError
from brimful.studio.html import problem, problem_of, render, style


def test_texts_stay_texts() -> None:
    shown = problem("<b>{{value}}</b> ${1 + 1} & 'so on'")

    assert "<b>" not in shown
    assert "{{" not in shown
    assert "${" not in shown
    assert "&lt;b&gt;&#123;&#123;value&#125;&#125;&lt;/b&gt; &#36;&#123;1 + 1&#125; &amp;" in shown
    assert 'role="alert"' in shown


def test_no_problem_is_nothing() -> None:
    assert problem("") == ""


def test_an_unexpected_error_is_a_line_on_the_page_and_whole_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = problem_of(KeyError("x" * 1000))

    assert "this failed unexpectedly (KeyError: " in shown
    assert len(shown) < 500
    assert "Traceback" not in shown
    assert "KeyError: 'xxx" in capsys.readouterr().err
    assert "unexpectedly" not in problem_of(RequestError("that is none"))


def test_a_report_in_a_frame_cannot_leave_it() -> None:
    shown = render(
        "frame.html.j2",
        title="Report of a",
        page='<p title="x">{1}</p></iframe><script>alert(1)</script>',
    )

    assert shown.count("<") == 2
    assert 'sandbox=""' in shown


def test_the_style_sheet_asks_for_nothing_from_elsewhere() -> None:
    assert "url(" not in style()
    assert "@import" not in style()
