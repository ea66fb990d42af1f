"""Acts of the tabs "My data" and "Plan": what a model learns of the data, what a recipe takes on
each device, and a training of it.
"""

import math
import re
import shlex
import threading
from typing import cast

from brimful.base.errors import RequestError
from brimful.chains.base_model import source_at_hand
from brimful.faces.studio.asked import PageRequest
from brimful.faces.studio.fit import Fit
from brimful.faces.studio.fit_request import (
    METHODS,
    FitRecipe,
    FitRequest,
    in_a_shell,
    recipe_for,
    yaml_of,
)
from brimful.faces.studio.html import blocks_piece, problem_of, view_piece
from brimful.faces.studio.jobs import Jobs
from brimful.faces.studio.planners import Planners, Superseded
from brimful.faces.studio.templates import APPROACHES, Method
from brimful.planning.survey import Margin
from brimful.recipe import with_changes
from brimful.recipe.base import folder_name
from brimful.report.plan.fit_view import LOOKS
from brimful.report.views import Code, Command

THIS_MACHINE, AS_THE_RECIPE = "This machine", "as the recipe"
NAMED = {
    "rank": "rank",
    "sequence_length": "length",
    "effective_batch": "batch",
    "tokens": "tokens",
}
"""Numbers in a question that the page repeats while the answer is worked out."""
ROWS_SHOWN = 3
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_ONE_LOOK = threading.Lock()
"""Data are read for one page at a time."""


def request_of(asked: PageRequest) -> FitRequest:
    """Return the request that the controls make.

    Raises:
        RequestError: a value is none of its control.
    """
    method, margin = asked.text("method") or METHODS[0], asked.text("margin") or AS_THE_RECIPE
    return FitRequest(
        model=asked.text("pasted") or asked.text("model"),
        method=cast(Method, method),
        rank=number_of("rank", asked.text("rank")),
        sequence_length=number_of("sequence length", asked.text("length")),
        effective_batch=number_of("sequences a step", asked.text("batch")),
        tokens=number_of("tokens to train on", asked.text("tokens")),
        devices=tuple("here" if name == THIS_MACHINE else name for name in asked.texts("devices")),
        margin=None if margin == AS_THE_RECIPE else cast(Margin, margin),
        together=number_of("devices in one job", asked.text("together")) or 1,
        data=asked.text("data"),
        changes=tuple(word for text in asked.texts("changes") for word in _words_of(text)),
    )


def number_of(what: str, text: str) -> int | None:
    """Return `10M` or `2,048` as a whole number; None for an empty text.

    Raises:
        RequestError: it is not a whole number.
    """
    if not text:
        return None
    found = re.fullmatch(
        r"(\d+(?:\.\d+)?(?:e\d\d?)?)([kmbt]?)", re.sub(r"[\s,_]", "", text).lower()
    )
    value = float(found[1]) * _SCALES[found[2]] if found else 0.5
    if not (math.isfinite(value) and value == int(value)):
        raise RequestError(
            f"{what} {text!r} must be a whole number, such as 16, 2048 or 10M; empty: as the recipe"
            " has it."
        )
    return int(value)


def _words_of(text: str) -> list[str]:
    """Return the words of a command line.

    Raises:
        RequestError: a quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise RequestError(f"further keys {text!r}: {error}.") from None


def question_line(question: FitRequest) -> str:
    """Return what a question asks about in a line: `quickstart, lora, rank 8`."""
    model = question.model or "no model"
    if "\n" in model or model.startswith("{"):
        model = "the pasted text"
    words = [model, *(name for name in APPROACHES if name == question.method)]
    words += [
        f"{told} {value:,}" for name, told in NAMED.items() if (value := getattr(question, name))
    ]
    return ", ".join(words)


class PlanActs:
    """What these tabs do.

    Args:
        planners: Answer what a recipe takes.
        jobs: Start a training; None where the page starts none.
        local_folders: Whether a folder of this machine may be named.
    """

    def __init__(self, planners: Planners, jobs: Jobs | None, *, local_folders: bool) -> None:
        self._planners, self._jobs, self._local_folders = planners, jobs, local_folders

    def plan(self, asked: PageRequest) -> None:
        """What a recipe takes on each device; then the same with what would make it fit, if it does
        not. A page that leaves, or asks anew, ends the work.
        """
        question = request_of(asked)
        asked.show("plan-status", f"Working on {question_line(question)} ...")
        fit = self._answer(asked, question, with_remedies=False)
        asked.show("plan-answer", view_piece(fit.view))
        asked.show("plan-recipe", blocks_piece(_recipe_blocks(question, fit)))
        if fit.looks:
            asked.show("plan-status", LOOKS)
            try:
                fit = self._answer(asked, question, with_remedies=True)
            except Superseded:
                raise
            except Exception as error:
                problem_of(error)
            asked.show("plan-answer", view_piece(fit.view))

    def _answer(self, asked: PageRequest, question: FitRequest, *, with_remedies: bool) -> Fit:
        return self._planners.answer(
            asked, question, local_folders=self._local_folders, with_remedies=with_remedies
        )

    def _recipe(self, asked: PageRequest) -> FitRecipe:
        return recipe_for(request_of(asked), local_folders=self._local_folders)

    def data(self, asked: PageRequest) -> None:
        """What a model learns of the data: the first rows as tokens, and what is left out."""
        # They bring transformers and readers of files.
        from brimful.chains.data_view import view_data  # noqa: PLC0415
        from brimful.data.first_look import first_look  # noqa: PLC0415
        from brimful.report.data_view import page_view  # noqa: PLC0415

        found = self._recipe(asked)
        asked.show("data-status", f"Reading the data of {found.recipe.name} ...")
        with _ONE_LOOK:
            first_look(found.recipe)
            seen = view_data(found.recipe, source_at_hand(found.recipe), ROWS_SHOWN)
        command = in_a_shell("data", found.words)
        asked.show("data-answer", view_piece(page_view(seen)) + blocks_piece([command]))

    def start(self, asked: PageRequest) -> None:
        """Save the recipe and start `brimful run` of it."""
        recipe = self._recipe(asked).recipe
        name = asked.text("name") or recipe.run_name
        try:
            folder_name(name)
        except ValueError as error:
            raise RequestError(f"the run cannot be called {name!r}: {error}") from error
        recipe = with_changes(recipe, [f"run.name={name}", "run.folder=null"], recipe.name)
        if self._jobs is not None:
            self._jobs.start_run(name, yaml_of(recipe))
        asked.fill("runs-wanted", name)
        asked.go("runs")


def _recipe_blocks(question: FitRequest, fit: Fit) -> list[Code | Command]:
    names = [f"{question.together} x {name}" for name in question.devices]
    devices = ",".join(question.devices if question.together == 1 else names)
    return [in_a_shell("plan", fit.words, "--on", devices), Code(fit.recipe_yaml)]
