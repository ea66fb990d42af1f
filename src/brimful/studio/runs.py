"""The tab "Runs": how each stands, live while it is written, its report, and several side by
side.
"""

from typing import Any, Literal

import gradio as gr

from brimful.studio.html import problem_of
from brimful.studio.library import Library
from brimful.studio.run_view import MAX_RUNS, comparison_view, list_view, report_view, run_view

EVERY_S = 3.0
"""How often the shown run is looked at for something new."""
As = Literal["Overview", "Report"]
VIEWS = {"Overview": run_view, "Report": report_view}


class Runs:
    """What the tab does when something is chosen, and as time passes."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._shown: dict[str, tuple[str | None, As]] = {}

    def show(self, name: str | None, shown_as: As, request: gr.Request) -> tuple[str, str, str]:
        """(the run, the problem, how it was written last)."""
        self._shown[str(request.session_hash)] = (name, shown_as)
        return self._drawn(name, shown_as) if name else ("", "", "")

    def _drawn(self, name: str, shown_as: As) -> tuple[str, str, str]:
        state = self._state(name)
        try:
            return VIEWS[shown_as](self._library.path(name)), "", state
        except Exception as error:
            return "", problem_of(error), state

    def _state(self, name: str) -> str:
        """Also of a run that cannot be looked at, so that its error is told once."""
        try:
            return self._library.state(name)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def again(
        self, name: str | None, shown_as: As, seen: str, request: gr.Request
    ) -> tuple[Any, Any, Any]:
        """The same where something was written since; else the page stays as it is, as does a
        report that is being read.
        """
        as_it_is = gr.skip(), gr.skip(), gr.skip()
        if not name or shown_as == "Report" or self._state(name) == seen:
            return as_it_is
        shown, problem, state = self._drawn(name, shown_as)
        if self._shown.get(str(request.session_hash), (name, shown_as)) != (name, shown_as):
            return as_it_is  # something else was chosen meanwhile
        return gr.skip() if problem else shown, problem, state

    def leave(self, request: gr.Request) -> None:
        """The page is closed."""
        self._shown.pop(str(request.session_hash), None)

    def compare(self, names: list[str] | None) -> tuple[str, str]:
        """(the chosen runs side by side, the problem)."""
        if len(names or []) < 2:
            return "", ""
        try:
            return comparison_view([self._library.path(name) for name in names or []]), ""
        except Exception as error:
            return "", problem_of(error)

    def refresh(self, name: str | None, compared: list[str] | None) -> tuple[Any, Any, str]:
        """The lists as the folder stands now; what is chosen stays chosen where it is still
        there.
        """
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
    runs = Runs(library)
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
        runs.show,
        [run, shown_as],
        [shown, wrong, seen],
        trigger_mode="always_last",
        **hidden,
    )
    compared.change(
        runs.compare, compared, [beside, not_compared], trigger_mode="always_last", **hidden
    )
    for event in (page.load, refresh.click):
        event(runs.refresh, [run, compared], [run, compared, listed], **hidden)
    gr.Timer(EVERY_S).tick(
        runs.again, [run, shown_as, seen], [shown, wrong, seen], trigger_mode="once", **hidden
    )
    page.unload(runs.leave)
