"""Pieces of the studio's page from the templates of this package. Every value is escaped; texts of
runs and models stay text.
"""

import traceback
from importlib import resources
from typing import Any

from brimful.base.errors import BrimfulError
from brimful.report.page.html import TEMPLATES, asset, templates

BRACES = str.maketrans({"{": "&#123;", "}": "&#125;", "$": "&#36;"})
"""Gradio fills templates of its own in what it shows; signs of such a template are written so that
it sees none.
"""


def render(template: str, **values: Any) -> str:
    """A piece of the page by a template of this package, fit for Gradio's HTML component."""
    shown = templates("studio", TEMPLATES).get_template(template).render(values)
    return shown.translate(BRACES)


def problem(message: str) -> str:
    """What a request could not be served for, announced by screen readers."""
    return render("problem.html.j2", message=message) if message else ""


def problem_of(error: Exception) -> str:
    """What the page says of an error; one that nobody expected is on the terminal in full."""
    if isinstance(error, BrimfulError):
        return problem(str(error))
    traceback.print_exception(error)
    line = (str(error).splitlines() or [""])[0][:200]
    return problem(
        f"this failed unexpectedly ({type(error).__name__}: {line}). The terminal in which the"
        " studio runs has more."
    )


def style() -> str:
    """The style sheet of the page."""
    own = resources.files("brimful.studio").joinpath("studio.css").read_text(encoding="utf-8")
    return f"{asset('blocks.css')}\n{own}"
