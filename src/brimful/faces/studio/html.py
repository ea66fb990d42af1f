"""Views and problems as pieces of the page. Every value is escaped; texts of runs and models stay
text.
"""

import traceback
from collections.abc import Sequence
from importlib import resources
from typing import Any

from brimful.base.errors import BrimfulError
from brimful.report.page.html import NOT_ON_A_PAGE, TEMPLATES, templates
from brimful.report.views import Block, View


def render(template: str, **values: Any) -> str:
    """A piece of the page by a template of this package."""
    shown = templates("faces/studio", TEMPLATES).get_template(template).render(values)
    return NOT_ON_A_PAGE.sub("\ufffd", shown).encode("utf-8", "replace").decode("utf-8")


def view_piece(view: View, keys: Sequence[str] | None = None) -> str:
    """A view, or only some of its sections in this order."""
    sections = view.sections
    if keys is not None:
        sections = tuple(each for key in keys for each in view.sections if each.key == key)
    return render("view.html.j2", view=view, sections=sections)


def blocks_piece(shown: Sequence[Block]) -> str:
    """Blocks without a headline."""
    return render("blocks_alone.html.j2", shown=shown)


def problem_piece(message: str) -> str:
    """What a request could not be served for, announced by screen readers."""
    return render("problem.html.j2", message=message)


def problem_of(error: Exception) -> str:
    """What the page says of an error; one that nobody expected is on the terminal in full."""
    if isinstance(error, BrimfulError):
        return str(error)
    traceback.print_exception(error)
    line = (str(error).splitlines() or [""])[0][:200]
    return (
        f"this failed unexpectedly ({type(error).__name__}: {line}). The terminal in which the"
        " studio runs has more."
    )


def own_file(name: str) -> str:
    """A file of the page that is not a template."""
    return resources.files("brimful.faces.studio").joinpath(name).read_text(encoding="utf-8")
