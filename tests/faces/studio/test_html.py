"""What the page shows is escaped."""

from fixture_types import Captured
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.faces.studio.html import blocks_piece, own_file, problem_of, problem_piece, render
from brimful.report.views import Code, Paragraph


def test_texts_stay_texts(snapshot: SnapshotAssertion) -> None:
    assert problem_piece("<b>{{value}}</b> ${1 + 1} & 'so on'\x1b[2J\ud800") == snapshot
    assert "<script>" not in blocks_piece([Paragraph("<script>"), Code("<script>")])
    assert 'src="/report/a%22%3E%3Cscript%3E"' in render("frame.html.j2", name='a"><script>')


def test_an_unexpected_error_is_a_line_on_the_page_and_whole_on_the_terminal(
    capsys: Captured,
    snapshot: SnapshotAssertion,
) -> None:
    told = problem_of(KeyError("x" * 1000))

    assert told == snapshot
    assert len(told) < 400
    assert "KeyError: 'xxx" in capsys.readouterr().err
    assert problem_of(RequestError("that is none")) == "that is none"


def test_style_and_script_ask_for_nothing_from_elsewhere() -> None:
    files = own_file("studio.css") + own_file("studio.js") + own_file("page.html.j2")

    assert not {"url(", "@import", "http:", "https:", "innerHTML +="} & set(files.split())
    assert "//" not in own_file("page.html.j2").replace("://", "")
