"""Print the scores of a finished run and a few outputs of its model as a page: `python -m
brimful.notebook.answers RUN [TEXT]...`

It is a process of its own because it loads the model.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.rundir import read_journal, read_json
from brimful.notebook.pages import print_pages
from brimful.recipe import Recipe
from brimful.report.tasks import cut
from brimful.report.text import evaluation_lines
from brimful.report.views import AuthoredAnswer, Chapter, Code, Prompted, View, section
from brimful.runs.bookkeeping import StudyRecord, json_or_none
from brimful.runs.deciding import recipe_of_run
from brimful.runs.files import EVALUATIONS_FOLDER, RECIPE_FILE, SCORES_FILE, STUDY_FILE
from brimful.runs.folder import RunFolder, read_run
from brimful.runs.parsing import parse
from brimful.runs.tasks import read_evaluations

if TYPE_CHECKING:
    from brimful.generation.load import LoadedRun

MOST_SHOWN = 3
BEFORE, AFTER = "before tuning", "after tuning"


def scores_and_examples(run_folder: Path, texts: Sequence[str]) -> View:
    """Return scores and examples of a run.

    Args:
        run_folder: A finished run, or the runs of a study.
        texts: Prompts for the model. Without any: the samples of the run, or the prompt of its
            recipe where outputs before and after tuning are compared.

    Raises:
        BrimfulError: the run is not finished, or a text cannot be answered.
    """
    if (run_folder / STUDY_FILE).exists():
        return _view(run_folder, _members(run_folder))
    path = run_folder / RECIPE_FILE
    if not path.is_file():
        raise RunFolderError(
            f"{run_folder} is not a run folder: it has no recipe.yaml. Give the name of a run, or"
            " the path of its folder."
        )
    recipe, run = recipe_of_run(run_folder), read_run(run_folder)
    scores = json_or_none(run_folder / SCORES_FILE) or {}
    tasks = {name: dict(each.values) for name, each in run.tasks.summaries.items()}
    lines = evaluation_lines(scores | {"tasks": tasks})
    scored = section("scores", "Scores", Code("\n".join(lines)))
    return _view(run_folder, [scored] * bool(lines) + _groups(run, recipe, texts))


def _view(run_folder: Path, sections: Sequence[Chapter]) -> View:
    return View(run_folder.name, "scores and examples", "", (), tuple(sections))


def _groups(run: RunFolder, recipe: Recipe, texts: Sequence[str]) -> list[Chapter]:
    kind = recipe.kind
    if kind.gives_labels:
        return [_labelled(run.folder, texts)] if texts else []
    if recipe.tunes_a_writer:
        return [_before_and_after(run.folder, recipe, texts or [recipe.sample.prompt])]
    if kind.writes_text:
        return [_continued(run.folder, recipe, texts) if texts else _samples(run)]
    if texts:
        raise RequestError(
            f"{run.folder.name} is an encoder: it fills in masked words and answers no text."
            " Give none to see what it filled in."
        )
    return [_samples(run, "What it fills in", "there")]


def _group(title: str, prompts: Sequence[str], *answers: tuple[str, Sequence[str]]) -> Chapter:
    """Return examples of one kind.

    Args:
        answers: (title, an answer to each prompt).
    """
    return section(
        "examples",
        title,
        *(
            Prompted(
                prompt,
                answers=tuple(AuthoredAnswer(of, cut(each[place])) for of, each in answers),
            )
            for place, prompt in enumerate(prompts)
        ),
    )


def _samples(run: RunFolder, title: str = "What it writes", of_each: str = "goes on") -> Chapter:
    """Return the samples that the run drew at its end."""
    samples = run.samples[:MOST_SHOWN]
    prompts = [each.prompt for each in samples]
    return _group(title, prompts, (of_each, [each.completion for each in samples]))


def _drawn(recipe: Recipe, loaded: "LoadedRun", texts: Sequence[str]) -> list[str]:
    """Return what a model writes for each text, sampled as the recipe says."""
    from brimful.generation.answers import GenerationRequest  # noqa: PLC0415 - this and the next bring torch
    from brimful.generation.sampler import SamplingSettings  # noqa: PLC0415

    how = GenerationRequest(
        SamplingSettings.from_recipe(recipe.sample), recipe.sample.tokens, seed=recipe.seed
    )
    return [how.draw(loaded, text)[0].completion for text in texts]


def _continued(run_folder: Path, recipe: Recipe, texts: Sequence[str]) -> Chapter:
    import torch  # noqa: PLC0415

    from brimful.generation.load import load_run  # noqa: PLC0415
    from brimful.hardware.probe import probe, torch_device  # noqa: PLC0415

    loaded = load_run(run_folder, torch_device(probe("auto")), torch.float32)
    return _group("What it writes", texts, ("goes on", _drawn(recipe, loaded, texts)))


def _before_and_after(run_folder: Path, recipe: Recipe, texts: Sequence[str]) -> Chapter:
    from brimful.generation.answers import before_and_after  # noqa: PLC0415
    from brimful.hardware.probe import probe, torch_device  # noqa: PLC0415

    outputs = before_and_after(
        run_folder,
        torch_device(probe("auto")),
        lambda loaded: json.dumps(_drawn(recipe, loaded, texts)),
    )
    before, after = map(json.loads, outputs)
    title = "The same question before and after tuning"
    return _group(title, texts, (BEFORE, before), (AFTER, after))


def _labelled(run_folder: Path, texts: Sequence[str]) -> Chapter:
    """Return the labels and probabilities that the classifier gives texts."""
    from brimful.classification.predict import PredictionRequest, predict  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "texts.jsonl", Path(folder) / "labels.jsonl"
        source.write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8"
        )
        predict(
            run_folder,
            PredictionRequest(str(source), ("data.text_column=text",), output, "jsonl"),
            tell=lambda note: None,
        )
        rows = list(read_journal(output))
    said = [
        ", ".join(f"{name} {_short(value)}" for name, value in row.items() if name != "text")
        for row in rows
    ]
    return _group("What it says of texts", texts, ("the model", said))


def _short(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _members(folder: Path) -> list[Chapter]:
    """Return answers of the first and the last run of a study to the same questions."""
    study = parse(StudyRecord, read_json(folder / STUDY_FILE))
    names = [Path(run).name for run in study.compared_runs]
    members = [folder / name for name in names if (folder / name / EVALUATIONS_FOLDER).is_dir()]
    if len(members) < 2:
        return []
    first, last = (read_evaluations(each).answers for each in (members[0], members[-1]))
    groups = []
    for task, answers in last.items():
        earlier = {each.id: each.completion for each in first.get(task, ())}
        both = [each for each in answers if each.id in earlier][:MOST_SHOWN]
        before = (members[0].name, [earlier[each.id] for each in both])
        after = (members[-1].name, [each.completion for each in both])
        prompts = [each.prompt for each in both]
        groups.append(_group(f"Answers to {task}", prompts, before, after))
    return groups


if __name__ == "__main__":
    print_pages(lambda: [scores_and_examples(Path(sys.argv[1]), sys.argv[2:])])
