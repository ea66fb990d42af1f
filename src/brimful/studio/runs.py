"""The tab "Runs": how each stands, live while it is written, its report, and several side by
side.
"""

from typing import Any, Literal

import gradio as gr

from brimful.studio.html import problem_of
from brimful.studio.library import Library
from brimful.studio.run_view import MAX_RUNS, comparison_view, list_view, report_view, run_view

EVERY_S = 3.0
"""How often the files of the shown run are checked."""
As = Literal["Overview", "Report"]
VIEWS = {"Overview": run_view, "Report": report_view}


class RunsTab:
    """The callbacks of the tab."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._shown: dict[str, tuple[str | None, As]] = {}

    def show(self, name: str | None, shown_as: As, request: gr.Request) -> tuple[str, str, str]:
        """Return (view of the run, problem, state of its files)."""
        self._shown[str(request.session_hash)] = (name, shown_as)
        return self._drawn(name, shown_as) if name else ("", "", "")

    def _drawn(self, name: str, shown_as: As) -> tuple[str, str, str]:
        state = self._state(name)
        try:
            return VIEWS[shown_as](self._library.path(name)), "", state
        except Exception as error:
            return "", problem_of(error), state

    def _state(self, name: str) -> str:
        """Return the state of the files, or the error, so that an error is shown once only."""
        try:
            return self._library.state(name)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def again(
        self, name: str | None, shown_as: As, seen: str, request: gr.Request
    ) -> tuple[Any, Any, Any]:
        """Return the same if the run was written to since. A report that is being read stays as it
        is.
        """
        as_it_is = gr.skip(), gr.skip(), gr.skip()
        if not name or shown_as == "Report" or self._state(name) == seen:
            return as_it_is
        shown, problem, state = self._drawn(name, shown_as)
        if self._shown.get(str(request.session_hash), (name, shown_as)) != (name, shown_as):
            # Another run was chosen meanwhile.
            return as_it_is
        return gr.skip() if problem else shown, problem, state

    def leave(self, request: gr.Request) -> None:
        """Let go of the session: its page is closed."""
        self._shown.pop(str(request.session_hash), None)

    def compare(self, names: list[str] | None) -> tuple[str, str]:
        """Return (the chosen runs side by side, problem)."""
        if len(names or []) < 2:
            return "", ""
        try:
            return comparison_view([self._library.path(name) for name in names or []]), ""
        except Exception as error:
            return "", problem_of(error)

    def refresh(self, name: str | None, compared: list[str] | None) -> tuple[Any, Any, str]:
        """Return the lists of runs in the folder now; a choice stays if the run still exists."""
        listed = self._library.listed()
        names = [each.name for each in listed]
        kept = [each for each in compared or [] if each in names]
        chosen = name if name in names else next(iter(names), None)
        return (
            gr.update(choices=names, value=chosen),
            gr.update(choices=names, value=kept),
            list_view(listed, self._library.folder),
        )


def build(page: gr.Blocks, library: Library) -> None:
    """Lay the tab out, inside a page that is being built."""
    tab = RunsTab(library)
    seen = gr.State("")
    with gr.Row(elem_classes="split"):
        with gr.Column(scale=1, min_width=260):
            run = gr.Dropdown(
                [],
                value=None,
                label="Run",
                info="What was written to last comes first.",
                elem_id="runs-run",
            )
            shown_as = gr.Radio(list(VIEWS), value="Overview", label="Shown as", elem_id="runs-as")
            compared = gr.Dropdown(
                [],
                value=[],
                multiselect=True,
                max_choices=MAX_RUNS,
                label="Compare",
                info="Two runs or more.",
                elem_id="runs-compare",
            )
            refresh = gr.Button("Look for new runs", elem_id="runs-refresh")
        with gr.Column(scale=3, min_width=300):
            wrong = gr.HTML(elem_id="runs-problem")
            not_compared = gr.HTML(elem_id="runs-not-compared")
            beside = gr.HTML(elem_id="runs-comparison")
            shown = gr.HTML(elem_id="runs-view")
            listed = gr.HTML(elem_id="runs-list")
    hidden: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    gr.on(
        [run.change, shown_as.change],
        tab.show,
        [run, shown_as],
        [shown, wrong, seen],
        trigger_mode="always_last",
        **hidden,
    )
    compared.change(
        tab.compare, compared, [beside, not_compared], trigger_mode="always_last", **hidden
    )
    for event in (page.load, refresh.click):
        event(tab.refresh, [run, compared], [run, compared, listed], **hidden)
    gr.Timer(EVERY_S).tick(
        tab.again, [run, shown_as, seen], [shown, wrong, seen], trigger_mode="once", **hidden
    )
    page.unload(tab.leave)
