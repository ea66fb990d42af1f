"""The tab "Will it fit?": controls for a recipe, and whether it fits, updated at every change."""

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gradio as gr

from brimful.base.errors import RequestError
from brimful.hardware import catalog
from brimful.planning.survey import Margin
from brimful.studio.fit import Fit
from brimful.studio.fit_request import METHODS, TOGETHER, FitRequest, known_models
from brimful.studio.fit_view import fit_view
from brimful.studio.html import problem_of, render
from brimful.studio.pasted import MOST_CHARACTERS
from brimful.studio.planners import Planners, Superseded
from brimful.studio.templates import APPROACHES, Method

Controls = tuple[Any, ...]

FIRST_MODEL = "quickstart"
THIS_MACHINE = "This machine"
MARGINS: dict[str, Margin | None] = {
    "as the recipe": None,
    "Balanced": "balanced",
    "Conservative": "conservative",
    "Tight": "tight",
}
HINT = (
    "Answers follow every change. The first for a model and a method takes longer: its training"
    " step is traced, layer by layer."
)
COPY = """() => {
  const recipe = document.querySelector("#fit-recipe article:not(.stale) pre");
  if (!recipe) return;
  getSelection().selectAllChildren(recipe);
  navigator.clipboard ? navigator.clipboard.writeText(recipe.textContent) : document.execCommand("copy");
}"""
"""Selects the recipe, which shows what was copied; pages that are not from this machine have no
clipboard but by that.
"""
SETTLED_S = 0.25
"""Changes that follow each other more quickly are one request."""
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


class FitControls(NamedTuple):
    """The values of the controls, in their order on the page."""

    model: str | None = None
    pasted: str | None = None
    method: Method = METHODS[0]
    rank: str | None = None
    length: str | None = None
    batch: str | None = None
    tokens: str | None = None
    margin: str = "as the recipe"
    devices: Sequence[str] | None = None
    together: int = 1


def request_of(controls: FitControls) -> FitRequest:
    """Return the request that the controls make.

    Raises:
        RequestError: a value that should be a number is not one.
    """
    chosen = controls.devices or ()
    return FitRequest(
        model=(controls.pasted or "").strip() or (controls.model or "").strip(),
        method=controls.method,
        rank=number_of("rank", controls.rank),
        sequence_length=number_of("sequence length", controls.length),
        effective_batch=number_of("sequences a step", controls.batch),
        tokens=number_of("tokens to train on", controls.tokens),
        devices=tuple("here" if name == THIS_MACHINE else name for name in chosen),
        margin=MARGINS[controls.margin],
        together=controls.together,
    )


def number_of(what: str, text: str | None) -> int | None:
    """Return `10M` or `2,048` as a whole number; None for an empty text.

    Raises:
        RequestError: it is not a whole number.
    """
    if not (text or "").strip():
        return None
    found = re.fullmatch(
        r"(\d+(?:\.\d+)?(?:e\d\d?)?)([kmbt]?)", re.sub(r"[\s,_]", "", str(text)).lower()
    )
    value = float(found[1]) * _SCALES[found[2]] if found else 0.5
    if not (math.isfinite(value) and value == int(value)):
        raise RequestError(
            f"{what} {text!r} must be a whole number, such as 16, 2048 or 10M; empty: as the recipe"
            " has it."
        )
    return int(value)


class LatestControls:
    """The latest values of the controls in each session: a request holds only the values at the
    time it was made.
    """

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, Controls]] = {}

    def note(self, session: str, controls: Controls) -> None:
        """A control has changed."""
        self._latest[session] = (time.monotonic(), controls)

    def settled(self, session: str, controls: Controls) -> Controls:
        """Wait until the controls have not changed for a moment, and return them; those of the
        request if no change was seen.
        """
        while (found := self._latest.get(session)) is not None and (
            wait_s := found[0] + SETTLED_S - time.monotonic()
        ) > 0:
            time.sleep(wait_s)
        return controls if found is None else found[1]

    def forget(self, session: str) -> None:
        """The session has ended."""
        self._latest.pop(session, None)


@dataclass(frozen=True)
class FitTabState:
    """The state of a session.

    Attributes:
        controls: The values that `fit` answers; empty where the last ones had no answer.
        fit: The last answer.
    """

    controls: Controls = ()
    fit: Fit | None = None


class FitUpdate(NamedTuple):
    """New values of the tab's outputs."""

    status: str
    shown: str
    problem: str
    recipe: str
    state: FitTabState


class FitTab:
    """The callbacks of the tab.

    Args:
        planners: What answers.
        local_folders: Whether a folder of this machine may be named.
    """

    def __init__(self, planners: Planners, *, local_folders: bool) -> None:
        self._planners, self._local_folders = planners, local_folders
        self._typing = LatestControls()
        self._working: dict[str, Controls] = {}

    def changed(self, request: gr.Request, *controls: Any) -> None:
        """A control has changed: what the session waits for is given up."""
        session = str(request.session_hash)
        self._typing.note(session, controls)
        if self._working.get(session) != controls:
            self._planners.give_up(session)

    def left(self, request: gr.Request) -> None:
        """Cancel the question of a page that was closed."""
        session = str(request.session_hash)
        self._typing.forget(session)
        self._planners.give_up(session)

    def answer(self, request: gr.Request, last: FitTabState, *values: Any) -> Iterator[FitUpdate]:
        """Yield the last answer, marked as old, while the question is worked on; then the answer;
        then the same with what would make it fit, if it does not.
        """
        session = str(request.session_hash)
        yield _waiting(last, "Reading the controls ...")
        controls = self._typing.settled(session, values)
        if controls == last.controls and last.fit is not None:
            yield _answered(last.fit, last.controls)
            return
        try:
            self._working[session] = controls
            question = request_of(FitControls(*controls))
            yield _waiting(last, f"Working on {question_line(question)} ...")
            fit = self._asked(session, question)
            looks_closely = any(
                device.verdict in {"uncertain", "does not fit"} for device in fit.devices
            )
            yield _answered(fit, controls, looks_closely=looks_closely)
            if looks_closely:
                yield _answered(self._with_remedies(session, question, fit), controls)
        except Superseded:
            return
        except Exception as error:
            yield _unanswered(last, error)
        finally:
            self._working.pop(session, None)

    def _asked(self, session: str, question: FitRequest, **settings: Any) -> Fit:
        return self._planners.answer(
            session, question, local_folders=self._local_folders, **settings
        )

    def _with_remedies(self, session: str, question: FitRequest, fit: Fit) -> Fit:
        """Return the answer with what would make it fit; as it is if that cannot be found."""
        try:
            return self._asked(session, question, with_remedies=True)
        except Superseded:
            raise
        except Exception as error:
            problem_of(error)
            return fit


def question_line(question: FitRequest) -> str:
    """Return what a question asks about in a line: `quickstart, lora, rank 8`."""
    model = question.model
    if "\n" in model or model.startswith("{"):
        model = "the pasted text"
    changes = {
        "rank": question.rank,
        "length": question.sequence_length,
        "sequences a step": question.effective_batch,
        "tokens": question.tokens,
        "devices in one job": question.together if question.together > 1 else None,
    }
    words = [model or "no model", *(name for name in APPROACHES if name == question.method)]
    words += [f"{name} {value:,}" for name, value in changes.items() if value is not None]
    return ", ".join(words)


def _waiting(last: FitTabState, status: str) -> FitUpdate:
    """Return the page while it works: the last answer is grey and named as such."""
    shown = fit_view(last.fit, stale=True) if last.fit else ""
    return FitUpdate(_status(status, busy=True), shown, "", _recipe(last.fit, stale=True), last)


def _answered(fit: Fit, controls: Controls, *, looks_closely: bool = False) -> FitUpdate:
    status = _status("Looking for what would make it fit ...", busy=True) if looks_closely else ""
    return FitUpdate(
        status or _status(HINT),
        fit_view(fit, looks_closely=looks_closely),
        "",
        _recipe(fit),
        FitTabState(controls, fit),
    )


def _unanswered(last: FitTabState, error: Exception) -> FitUpdate:
    """Return the page with a problem; the last answer stays, grey and named as such."""
    shown = fit_view(last.fit, stale=True) if last.fit else ""
    state = FitTabState((), last.fit)
    return FitUpdate(_status(HINT), shown, problem_of(error), _recipe(last.fit, stale=True), state)


def _recipe(fit: Fit | None, *, stale: bool = False) -> str:
    text = "" if fit is None else fit.recipe_yaml
    return render("recipe.html.j2", text=text, stale=stale)


def _status(text: str, *, busy: bool = False) -> str:
    return render("status.html.j2", text=text, busy=busy)


def build(page: gr.Blocks, planners: Planners, *, local_folders: bool = True) -> None:
    """Lay the tab out, inside a page that is being built.

    Args:
        page: The page.
        planners: What answers.
        local_folders: Whether a folder of this machine may be named.
    """
    tab, last = FitTab(planners, local_folders=local_folders), gr.State(FitTabState())
    with gr.Row(elem_classes="split"):
        with gr.Column(scale=1, min_width=280):
            controls, wrong = _lay_out_controls(local_folders=local_folders)
        with gr.Column(scale=3, min_width=300):
            status = gr.HTML(_status(HINT), elem_id="fit-status")
            shown = gr.HTML(elem_id="fit-answer")
            recipe = gr.HTML(elem_id="fit-recipe")
            copy = gr.Button("Copy the recipe", elem_id="fit-copy")
    copy.click(None, js=COPY, api_visibility="private")
    hidden: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    changes = [control.change for control in controls]
    gr.on(changes, tab.changed, controls, None, queue=False, trigger_mode="multiple", **hidden)
    gr.on(
        [page.load, *changes],
        tab.answer,
        [last, *controls],
        [status, shown, wrong, recipe, last],
        trigger_mode="always_last",
        concurrency_limit=None,
        **hidden,
    )
    page.unload(tab.left)


def _lay_out_controls(*, local_folders: bool) -> tuple[list[Any], gr.HTML]:
    """Return the controls in the order of `FitControls`, and the place for a problem."""
    (recipes, models), own = known_models(), "as the recipe"
    model = gr.Dropdown(
        [*recipes, *models],
        value=FIRST_MODEL,
        allow_custom_value=True,
        label="Model or recipe",
        elem_id="fit-model",
        info=(
            "A shipped recipe, a hub id, or a folder with a config.json."
            if local_folders
            else "A shipped recipe or a hub id."
        ),
    )
    wrong = gr.HTML(elem_id="fit-problem")
    with gr.Accordion("Paste a recipe or a config.json", open=False, elem_id="fit-paste"):
        pasted = gr.Textbox(
            label="Recipe (YAML) or config.json",
            info="Used in place of the model above; read, never run.",
            lines=8,
            max_lines=16,
            max_length=MOST_CHARACTERS,
            elem_id="fit-pasted",
        )
    number: dict[str, Any] = {"max_lines": 1, "max_length": 32, "min_width": 110}
    with gr.Row():
        method = gr.Dropdown(
            list(METHODS),
            value=METHODS[0],
            filterable=False,
            label="Method",
            min_width=110,
            elem_id="fit-method",
        )
        rank = gr.Textbox("", label="Rank", placeholder=own, elem_id="fit-rank", **number)
    with gr.Row():
        length = gr.Textbox(
            "", label="Sequence length", placeholder=own, elem_id="fit-length", **number
        )
        batch = gr.Textbox(
            "", label="Sequences a step", placeholder=own, elem_id="fit-batch", **number
        )
    with gr.Row():
        tokens = gr.Textbox(
            "", label="Tokens to train on", placeholder=own, elem_id="fit-tokens", **number
        )
        margin = gr.Dropdown(
            list(MARGINS),
            value=own,
            filterable=False,
            label="Margin",
            min_width=110,
            elem_id="fit-margin",
        )
    devices = gr.Dropdown(
        [THIS_MACHINE, *catalog.names()],
        value=list(FitRequest("").devices),
        multiselect=True,
        label="Devices",
        elem_id="fit-devices",
    )
    together = gr.Dropdown(
        list(TOGETHER),
        value=TOGETHER[0],
        filterable=False,
        label="Devices in one job",
        info="How many of each share the work.",
        elem_id="fit-together",
    )
    controls = [model, pasted, method, rank, length, batch, tokens, margin, devices, together]
    return controls, wrong
