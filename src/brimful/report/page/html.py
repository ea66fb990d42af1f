"""Views as pages: one file that opens offline, reads on a phone, prints, and asks nobody for
anything. `report.html` of a run is one.
"""

import base64
import functools
import hashlib
import json
import re
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

from brimful.base.rundir import write_text_atomically
from brimful.report.page.run_page import run_view
from brimful.report.table import text_of
from brimful.report.views import View, as_json
from brimful.runs.folder import read_run

FILE_NAME, TEMPLATES = "report.html", "report/templates"
NOT_ON_A_PAGE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters other than tab and line feed."""


def write_report(run_folder: Path) -> Path:
    """Write `run_folder/report.html` from what the run folder holds, finished or not.

    Returns:
        The path of the report.

    Raises:
        RunFolderError: not a run folder, or the report cannot be written there.
    """
    return write_view(run_view(read_run(run_folder)), run_folder / FILE_NAME)


def write_view(view: View, path: Path) -> Path:
    """Write a view as a page; an earlier one is replaced.

    Returns:
        `path`.

    Raises:
        RunFolderError: it cannot be written there.
    """
    write_text_atomically(path, render_view(view))
    return path


def render_view(view: View) -> str:
    """Return a view as a page. Every text in it is escaped; control characters and lone surrogates
    become the replacement character.
    """
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    # The script is this package's own, and the page runs no other: the policy names its hash.
    values = {"view": view, "script": Markup(script()), "script_digest": digest}  # noqa: S704
    text = templates(TEMPLATES).get_template("page.html.j2").render(values)
    return NOT_ON_A_PAGE.sub("\ufffd", text).encode("utf-8", "replace").decode("utf-8")


def script() -> str:
    """The script that draws charts and sorts tables."""
    return asset("page.js")


def asset(name: str) -> str:
    """A file that belongs to every page."""
    return (resources.files("brimful") / TEMPLATES / name).read_text(encoding="utf-8")


@functools.cache
def templates(*folders: str) -> jinja2.Environment:
    """The templates in folders of this package; they escape what they show, and know the blocks of
    a view.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader("brimful", each) for each in folders]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"text": text_of, "class": _class_of, "json": _json}
    return environment


def _class_of(value: object) -> str:
    return type(value).__name__


def _json(value: object) -> str:
    """A part of a view as one line of JSON."""
    return json.dumps(as_json(value), separators=(",", ":"))
