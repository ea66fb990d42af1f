"""Pages that a process makes and the notebook shows: a view as HTML in a frame, and as text."""

import io
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from html import escape

from brimful.base.errors import BrimfulError
from brimful.notebook.job import run_command
from brimful.report.terminal import told_of
from brimful.report.views import View


@dataclass(frozen=True)
class Page:
    """What a cell shows: a page of HTML, and the same for what shows none."""

    html: str
    text: str


def page_of(view: View) -> Page:
    """Return a view as a page."""
    from brimful.report.page.html import render_view  # noqa: PLC0415 - brings jinja2

    return Page(render_view(view), told_of(view).plain)


def print_pages(make: Callable[[], Sequence[View]]) -> None:
    """Print pages as JSON; on an expected error a message, with the exit code of that error."""
    try:
        with redirect_stdout(io.StringIO()):
            pages = [asdict(page_of(view)) for view in make()]
    except BrimfulError as error:
        print(f"brimful: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(json.dumps(pages))


def pages_of(module: str, arguments: Sequence[str]) -> list[Page]:
    """Return the pages that a module prints.

    Raises:
        CommandFailed: it failed; with its message.
    """
    return [Page(**each) for each in json.loads(run_command(arguments, module=module))]


def framed(html: str, title: str, height: int) -> str:
    """Return the HTML of a frame (iframe) that keeps a page apart from the notebook's own styles
    and scripts; its height is in pixels.
    """
    return (
        f'<iframe title="{escape(title)}" sandbox="allow-scripts" srcdoc="{escape(html)}"'
        f' style="width:100%;height:{height}px;border:1px solid'
        ' rgba(128,128,128,.4);border-radius:8px;background:#fff"></iframe>'
    )
