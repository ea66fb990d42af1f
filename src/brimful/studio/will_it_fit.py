"""The tab "Will it fit?": controls for a recipe, and whether it fits, updated at every change."""

import math
import re
import time
from dataclasses import dataclass
from typing import Any

import gradio as gr

from brimful.base.errors import RequestError
from brimful.hardware import catalog
from brimful.planning.survey import Margin
from brimful.studio.fit import Fit, assess
from brimful.studio.fit_request import METHODS, FitRequest, known_models
from brimful.studio.fit_view import fit_view
from brimful.studio.html import problem_of, render
from brimful.studio.pasted import MOST_CHARACTERS
from brimful.studio.templates import Method

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
  const recipe = document.querySelector("#fit-recipe pre");
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


def request_of(
    model: str | None,
    pasted: str | None,
    method: Method,
    rank: str | None,
    length: str | None,
    batch: str | None,
    tokens: str | None,
    margin: str,
    devices: list[str] | None,
) -> FitRequest:
    """Return the request that the controls make.

    Raises:
        RequestError: a value that should be a number is not one.
    """
    return FitRequest(
        model=(pasted or "").strip() or (model or "").strip(),
        method=method,
        rank=number_of("rank", rank),
        sequence_length=number_of("sequence length", length),
        effective_batch=number_of("sequences a step", batch),
        tokens=number_of("tokens to train on", tokens),
        devices=tuple("here" if name == THIS_MACHINE else name for name in devices or ()),
        margin=MARGINS[margin],
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

    def note(self, request: gr.Request, *controls: Any) -> None:
        """A control has changed."""
        self._latest[str(request.session_hash)] = (time.monotonic(), controls)

    def settled(self, session: str, controls: Controls) -> Controls:
        """Wait until the controls have not changed for a moment, and return them; those of the
        request if no change was seen.
        """
        while (found := self._latest.get(session)) is not None and (
            wait_s := found[0] + SETTLED_S - time.monotonic()
        ) > 0:
            time.sleep(wait_s)
        return controls if found is None else found[1]

    def forget(self, request: gr.Request) -> None:
        """The session has ended."""
        self._latest.pop(str(request.session_hash), None)


@dataclass(frozen=True)
class FitTabState:
    """The state of a session.

    Attributes:
        controls: The last values that were assessed.
        fit: What was shown last.
        open_request: Its request if it does not surely fit, to look for remedies.
    """

    controls: Controls = ()
    fit: Fit | None = None
    open_request: FitRequest | None = None


class FitTab:
    """The callbacks of the tab."""

    def __init__(self, *, local_folders: bool) -> None:
        self._local_folders, self.typing = local_folders, LatestControls()

    def first(self, request: gr.Request, last: FitTabState, *values: Any) -> tuple[Any, ...]:
        """Return (view, problem, recipe, state). With a problem the view is the last one, marked as
        outdated.
        """
        controls = self.typing.settled(str(request.session_hash), values)
        if controls == last.controls:
            return gr.skip(), gr.skip(), gr.skip(), gr.skip()
        try:
            fit_request = request_of(*controls)
            fit = assess(fit_request, local_folders=self._local_folders)
        except Exception as error:
            shown = fit_view(last.fit, stale=True) if last.fit else ""
            return shown, problem_of(error), "", FitTabState(controls, last.fit)
        is_open = any(device.verdict in {"uncertain", "does not fit"} for device in fit.devices)
        return (
            fit_view(fit, looks_closely=is_open),
            "",
            render("recipe.html.j2", text=fit.recipe_yaml),
            FitTabState(controls, fit, fit_request if is_open else None),
        )

    def closer(self, last: FitTabState) -> tuple[Any, ...]:
        """Return the view with what would make it fit, and the state."""
        if last.open_request is None:
            return gr.skip(), gr.skip()
        try:
            fit: Fit | None = assess(
                last.open_request, with_remedies=True, local_folders=self._local_folders
            )
        except Exception as error:
            problem_of(error)
            fit = last.fit
        return fit_view(fit) if fit else "", FitTabState(last.controls, fit)


def build(page: gr.Blocks, *, local_folders: bool = True) -> None:
    """Lay the tab out, inside a page that is being built.

    Args:
        page: The page.
        local_folders: Whether a folder of this machine may be named.
    """
    answers, last = FitTab(local_folders=local_folders), gr.State(FitTabState())
    with gr.Row(elem_classes="split"):
        with gr.Column(scale=1, min_width=280):
            controls, wrong = _lay_out_controls(local_folders=local_folders)
        with gr.Column(scale=3, min_width=300):
            status = gr.HTML(f'<p class="quiet">{HINT}</p>', elem_id="fit-status")
            shown = gr.HTML(elem_id="fit-answer")
            recipe = gr.HTML(elem_id="fit-recipe")
            copy = gr.Button("Copy the recipe", elem_id="fit-copy")
    copy.click(None, js=COPY, api_visibility="private")
    common: dict[str, Any] = {
        "api_visibility": "private",
        "concurrency_limit": 1,
        "concurrency_id": "plan",
        "trigger_mode": "always_last",
    }
    progress: dict[str, Any] = {"show_progress": "minimal", "show_progress_on": status}
    changes, inputs, outputs = (
        [control.change for control in controls],
        [last, *controls],
        [shown, wrong, recipe, last],
    )
    gr.on(
        changes,
        answers.typing.note,
        controls,
        None,
        queue=False,
        trigger_mode="multiple",
        show_progress="hidden",
        api_visibility="private",
    )
    changed = gr.on(changes, answers.first, inputs, outputs, **progress, **common)
    loaded = page.load(answers.first, inputs, outputs, **progress, **common)
    for event in (changed, loaded):
        event.then(answers.closer, last, [shown, last], show_progress="hidden", **common)
    page.unload(answers.typing.forget)


def _lay_out_controls(*, local_folders: bool) -> tuple[list[Any], gr.HTML]:
    """Return the controls in the order of `request_of`, and the place for a problem."""
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
    return [model, pasted, method, rank, length, batch, tokens, margin, devices], wrong
