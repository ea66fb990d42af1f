"""What a finished run scored, and a few examples of what it makes of texts, as JSON: `python -m
brimful.notebook.answers RUN [TEXT]...`

A process of its own, because it loads the model.
"""

import io
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.base.errors import BrimfulError, RequestError, RunFolderError
from brimful.base.rundir import read_journal, read_json
from brimful.recipe import Recipe, load
from brimful.report.labels import known_cell, label_text, main_split
from brimful.report.tasks import cut
from brimful.report.text import evaluation_lines
from brimful.runs.files import STUDY_FILE
from brimful.runs.scores import read_scores
from brimful.runs.tasks import read_evaluations

if TYPE_CHECKING:
    from brimful.generation.load import LoadedRun

Json = dict[str, Any]
MOST_SHOWN = 3
BEFORE, AFTER = "before tuning", "after tuning"


def told(run_folder: Path, texts: Sequence[str]) -> Json:
    """`lines`: scores in words; `groups`: examples, each a prompt with one or more titled texts.

    Args:
        run_folder: A finished run, or the runs of a study.
        texts: What the model is asked; without any, what the run kept, or its recipe's own prompt
            where before and after are to be compared.

    Raises:
        BrimfulError: the run is not finished, or a text cannot be answered.
    """
    if (run_folder / STUDY_FILE).exists():
        return {"lines": [], "groups": _members(run_folder)}
    path = run_folder / "recipe.yaml"
    if not path.is_file():
        raise RunFolderError(
            f"{run_folder} is not a run folder: it has no recipe.yaml. Give the name of a run, or"
            " the path of its folder."
        )
    recipe = load(str(path))
    scores = read_json(run_folder / "scores.json") if (run_folder / "scores.json").exists() else {}
    kind = recipe.kind
    if kind.gives_labels:
        groups = ([_labelled(run_folder, texts)] if texts else []) + _mistakes(scores)
    elif kind.fills_masks:
        if texts:
            raise RequestError(
                f"{run_folder.name} is an encoder: it fills in masked words and answers no text."
                " Give none to see what it filled in."
            )
        groups = [_kept(run_folder, "What it fills in", "there")]
    elif kind.answers_prompts:
        groups = [_before_and_after(run_folder, recipe, texts or [recipe.sample.prompt])]
    else:
        groups = [_continued(run_folder, recipe, texts) if texts else _kept(run_folder)]
    tasks = read_evaluations(run_folder, recipe.evaluation.tasks).summaries
    return {
        "lines": evaluation_lines(
            scores | {"tasks": {name: dict(each.values) for name, each in tasks.items()}}
        ),
        "groups": groups,
    }


def _example(prompt: str, *texts: tuple[str, str]) -> Json:
    return {"prompt": prompt, "texts": [[title, cut(text)] for title, text in texts]}


def _kept(run_folder: Path, title: str = "What it writes", of_each: str = "goes on") -> Json:
    """The samples that the run drew at its end."""
    samples = list(read_journal(run_folder / "samples.jsonl"))[:MOST_SHOWN]
    return {
        "title": title,
        "examples": [
            _example(str(each["prompt"]), (of_each, str(each["completion"]))) for each in samples
        ],
    }


def _drawn(recipe: Recipe, loaded: "LoadedRun", texts: Sequence[str]) -> list[str]:
    """What a model writes, drawn as the recipe says."""
    from brimful.generation.answers import GenerationRequest  # noqa: PLC0415 - this and the next bring torch
    from brimful.generation.sampler import SamplingSettings  # noqa: PLC0415

    how = GenerationRequest(
        SamplingSettings.from_recipe(recipe.sample), recipe.sample.tokens, seed=recipe.seed
    )
    return [how.draw(loaded, text)[0].completion for text in texts]


def _continued(run_folder: Path, recipe: Recipe, texts: Sequence[str]) -> Json:
    import torch  # noqa: PLC0415

    from brimful.generation.load import load_run  # noqa: PLC0415
    from brimful.hardware.probe import probe, torch_device  # noqa: PLC0415

    loaded = load_run(run_folder, torch_device(probe("auto")), torch.float32)
    written = _drawn(recipe, loaded, texts)
    return {
        "title": "What it writes",
        "examples": [
            _example(text, ("goes on", each)) for text, each in zip(texts, written, strict=True)
        ],
    }


def _before_and_after(run_folder: Path, recipe: Recipe, texts: Sequence[str]) -> Json:
    from brimful.generation.answers import before_and_after  # noqa: PLC0415
    from brimful.hardware.probe import probe, torch_device  # noqa: PLC0415

    told = before_and_after(
        run_folder,
        torch_device(probe("auto")),
        lambda loaded: json.dumps(_drawn(recipe, loaded, texts)),
    )
    before, after = map(json.loads, told)
    examples = [
        _example(text, (BEFORE, earlier), (AFTER, later))
        for text, earlier, later in zip(texts, before, after, strict=True)
    ]
    return {"title": "The same question before and after tuning", "examples": examples}


def _labelled(run_folder: Path, texts: Sequence[str]) -> Json:
    """What the classifier says of texts."""
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
    return {
        "title": "What it says of texts",
        "examples": [
            _example(text, ("the model", each)) for text, each in zip(texts, said, strict=True)
        ],
    }


def _short(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _mistakes(scores: Json) -> list[Json]:
    """The most confident ones of the split that the classifier is judged by."""
    known = read_scores(scores)
    split = main_split(known)
    told_of = []
    for each in known.labels[split].mistakes[:MOST_SHOWN] if split is not None else ():
        probability = known_cell(each.probability, "{:.3f}".format)
        answer = f"the model says {label_text(each.predicted)} ({probability})"
        told_of.append(_example(each.text, (f"labelled {label_text(each.label)}", answer)))
    return (
        [{"title": f"Most confident mistakes of the {split} texts", "examples": told_of}]
        if told_of
        else []
    )


def _members(folder: Path) -> list[Json]:
    """Answers of the first and the last run of a study to the same questions."""
    known = read_json(folder / STUDY_FILE).get("comparison", {}).get("variants", [])
    names = [Path(str(run)).name for variant in known for run in variant.get("runs", [])]
    members = [folder / name for name in names if (folder / name / "evaluations").is_dir()]
    if len(members) < 2:
        return []
    first, last = (read_evaluations(each).answers for each in (members[0], members[-1]))
    groups = []
    for task, answers in last.items():
        earlier = {each.id: each.completion for each in first.get(task, ())}
        both = [each for each in answers if each.id in earlier]
        shown = [
            _example(
                each.prompt,
                (members[0].name, earlier[each.id]),
                (members[-1].name, each.completion),
            )
            for each in both[:MOST_SHOWN]
        ]
        groups.append({"title": f"Answers to {task}", "examples": shown})
    return groups


def main() -> None:
    """Print the JSON; an error on purpose is one message and its exit code, as of every command."""
    try:
        with redirect_stdout(io.StringIO()):
            made = told(Path(sys.argv[1]), sys.argv[2:])
    except BrimfulError as error:
        print(f"brimful: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(json.dumps(made))


if __name__ == "__main__":
    main()
