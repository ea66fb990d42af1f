"""The notebook that a helper is called from: HTML in it, and one output that is replaced in
place.
"""

import time
import uuid
from collections.abc import Callable
from typing import Any

from brimful.base.errors import RequestError

Clock = Callable[[], float]
Display = Callable[..., Any]

OFTEN_S, SELDOM_S = 1.0, 5.0
OFTEN_FOR_S = 600.0
"""A tab that is closed leaves all updates waiting in the server: after ten minutes they come
seldom.
"""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook (Jupyter, Colab, Kaggle, VS Code)."""
    shell = _shell()
    return shell is not None and getattr(shell, "kernel", None) is not None


def require_notebook() -> None:
    """Raises RequestError outside a notebook, with what to do in a terminal."""
    if not in_notebook():
        raise RequestError(
            "brimful.notebook shows things in a notebook (Jupyter, Colab, Kaggle), and this is"
            " none. In a terminal: brimful plan RECIPE, brimful run RECIPE, brimful watch RUN,"
            " brimful report RUN."
        )


def is_shutting_down() -> bool:
    """Whether the kernel was told to end or to restart; it is interrupted just before."""
    return bool(getattr(_shell(), "exit_now", False))


def show(html: str, text: str, *, markdown: str = "") -> None:
    """An output of the cell: HTML, or Markdown, and plain text for what shows neither.

    Raises:
        RequestError: outside a notebook.
    """
    kinds = {"text/html": html, "text/markdown": markdown, "text/plain": text}
    _display()({kind: value for kind, value in kinds.items() if value}, raw=True)


class Board:
    """One output of the cell that is replaced in place, as often as it helps and no more. It needs
    no widgets.

    Args:
        clock: Seconds, rising; replaced in tests.
        display: IPython's `display`; replaced in tests.

    Raises:
        RequestError: outside a notebook.
    """

    def __init__(self, clock: Clock = time.monotonic, display: Display | None = None) -> None:
        self._clock, self._display = clock, display or _display()
        self._began_s = clock()
        self._shown: tuple[str, str] | None = None
        self._shown_at_s = 0.0
        self._handle: Any = None
        self._id = uuid.uuid4().hex
        """Chosen before anything is shown: a cell that is interrupted while it shows its first page
        goes on with the same output.
        """

    def show(self, html: str, text: str, *, now: bool = False) -> None:
        """Replace what is shown; nothing where it is the same, or where the last change is too
        fresh and `now` does not hurry.
        """
        age_s = self._clock() - self._shown_at_s
        is_due = age_s >= (OFTEN_S if self._clock() - self._began_s < OFTEN_FOR_S else SELDOM_S)
        if (html, text) == self._shown or not (now or is_due or self._handle is None):
            return
        data = {"text/html": html, "text/plain": text}
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=self._id)
        else:
            self._handle.update(data, raw=True)
        self._shown, self._shown_at_s = (html, text), self._clock()


def _display() -> Display:
    require_notebook()
    from IPython.display import display  # noqa: PLC0415 - there only in notebooks

    found: Display = display
    return found


def _shell() -> Any:
    try:
        from IPython.core.getipython import get_ipython  # noqa: PLC0415 - there only in notebooks
    except ImportError:
        return None
    return get_ipython()
