"""The tab "Will it fit?": controls that make a question, and its answer, which follows every
change.
"""

import math
import re
import time
from dataclasses import dataclass
from typing import Any

import gradio as gr

from brimful.base.errors import RequestError
from brimful.hardware import catalog
from brimful.planning.survey import Margin
from brimful.studio.fit import Fit, answer
from brimful.studio.fit_view import fit_view
from brimful.studio.html import render, told
from brimful.studio.pasted import MOST_CHARACTERS
from brimful.studio.question import METHODS, Question, known_models
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
"""Changes that follow each other more quickly are one question."""
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def question_of(
    model: str | None,
    pasted: str | None,
    method: Method,
    rank: str | None,
    length: str | None,
    batch: str | None,
    tokens: str | None,
    margin: str,
    devices: list[str] | None,
) -> Question:
    """What the controls say.

    Raises:
        RequestError: something that should be a number is none.
    """
    return Question(
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
    """`10M` or `2,048` as a whole number; None for nothing.

    Raises:
        RequestError: it is none.
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


class Typing:
    """What the controls of each session say by now: a request knows only what they said when it was
    made.
    """

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, Controls]] = {}

    def note(self, request: gr.Request, *controls: Any) -> None:
        """A control has changed."""
        self._latest[str(request.session_hash)] = (time.monotonic(), controls)

    def settled(self, session: str, controls: Controls) -> Controls:
        """The controls once nobody has changed them for a moment; those of the request where no
        change was seen.
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
class Answered:
    """The last controls that were looked at, the last answer, and its question where more is to be
    found out.
    """

    controls: Controls = ()
    fit: Fit | None = None
    open_question: Question | None = None


class Answers:
    """What the tab does when a control changes."""

    def __init__(self, *, local_folders: bool) -> None:
        self._local_folders, self.typing = local_folders, Typing()

    def first(self, request: gr.Request, last: Answered, *asked: Any) -> tuple[Any, ...]:
        """Answer, or the problem beside the last answer, marked as such: (answer, problem, recipe,
        what was answered).
        """
        controls = self.typing.settled(str(request.session_hash), asked)
        if controls == last.controls:
            return gr.skip(), gr.skip(), gr.skip(), gr.skip()
        try:
            question = question_of(*controls)
            fit = answer(question, local_folders=self._local_folders)
        except Exception as error:
            shown = fit_view(last.fit, stale=True) if last.fit else ""
            return shown, told(error), "", Answered(controls, last.fit)
        is_open = any(device.verdict in {"uncertain", "does not fit"} for device in fit.devices)
        return (
            fit_view(fit, looks_closely=is_open),
            "",
            render("recipe.html.j2", text=fit.recipe_yaml),
            Answered(controls, fit, question if is_open else None),
        )

    def closer(self, last: Answered) -> tuple[Any, ...]:
        """What would make it fit, where it does not."""
        if last.open_question is None:
            return gr.skip(), gr.skip()
        try:
            fit: Fit | None = answer(
                last.open_question, closely=True, local_folders=self._local_folders
            )
        except Exception as error:
            told(error)
            fit = last.fit
        return fit_view(fit) if fit else "", Answered(last.controls, fit)


def build(page: gr.Blocks, *, local_folders: bool = True) -> None:
    """Lay the tab out, inside a page that is being built.

    Args:
        page: The page.
        local_folders: Whether a folder of this machine may be named.
    """
    answers, last = Answers(local_folders=local_folders), gr.State(Answered())
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
    """The controls in the order of `question_of`, and where a problem is told."""
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
        value=list(Question("").devices),
        multiselect=True,
        label="Devices",
        elem_id="fit-devices",
    )
    return [model, pasted, method, rank, length, batch, tokens, margin, devices], wrong
