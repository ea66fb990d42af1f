"""The examples of a task: rows of the hub, of a file, of a built-in corpus, or held out by the run
itself.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from brimful.base.errors import DataError, RequestError
from brimful.base.text import clause, reason_of
from brimful.base.types import Json, JsonDict, Texts
from brimful.data.builtin import SPLIT_ROWS
from brimful.data.formats import Example, Prompt, as_columns, text_of_prompt
from brimful.data.readers import SUFFIXES, format_of, read_rows
from brimful.data.rows import Row
from brimful.evaluation.task import Task, holds, load_task, render, short_hash, task_names
from brimful.recipe import Recipe

SHOT_CANDIDATES = 1000
"""So many of the run's first training examples are looked through for solved examples."""


@dataclass(frozen=True)
class TaskExample:
    """One question.

    Attributes:
        id: Unique in the task.
        row: Its columns.
        reference: What would have been right.
        own_prompt: The prompt of one of the run's own examples; None elsewhere.
        where: Place of the example, for errors.
        kind: What type of question it is; empty where the task has no types.
    """

    id: str
    row: Json
    reference: str
    own_prompt: Prompt | None
    where: str
    kind: str = ""


@dataclass(frozen=True)
class TaskExamples:
    """What a task is scored on.

    Attributes:
        scored: The questions, in the data's order.
        shots: Columns of solved examples; none of them is scored.
        notes: What was left out.
        source: Where they come from.
    """

    scored: list[TaskExample]
    shots: list[Json]
    notes: list[str]
    source: str


def load_examples(
    task: Task,
    *,
    paths: Texts,
    own: Mapping[str, Sequence[Example]],
    max_examples: int | None = None,
) -> TaskExamples:
    """Find a task's data.

    Args:
        task: Which.
        paths: `evaluation.data`: by task, a file with the questions, or a folder with a file for
            each split of the task's data.
        own: The run's examples by split; shots come from `train`.
        max_examples: Most examples that are taken, evenly spread.

    Raises:
        DataError: no file, the hub cannot be reached, a row lacks columns, two rows have one id.
        RequestError: the run has no examples of its own, or nothing is left to score.
    """
    if task.data.run:
        examples = _own_examples(task, own)
    else:
        examples = _rows_examples(task, paths.get(task.name, paths.get(task.same_data_as or "")))
    if not examples.scored:
        remedy = " The tasks bleu, chrf, rouge-l and exact-match score answers of any kind."
        raise RequestError(
            f"task {task.name}: no example is left to score."
            f" {'. '.join([*examples.notes, ''])}{clause(task.data.run, remedy)}".rstrip()
        )
    count = len(examples.scored)
    if max_examples is None or max_examples >= count:
        return examples
    if max_examples < 1:
        raise RequestError(f"max_examples must be at least 1, got {max_examples}.")
    # Sorted by type first: otherwise a step that is a multiple of the number of types would take
    # examples of one type only.
    by_kind = sorted(range(count), key=lambda place: examples.scored[place].kind)
    chosen = sorted(by_kind[number * count // max_examples] for number in range(max_examples))
    return replace(
        examples,
        scored=[examples.scored[place] for place in chosen],
        notes=[*examples.notes, f"{max_examples} of {count} examples, evenly spread"],
    )


def _rows_examples(task: Task, path: str | None) -> TaskExamples:
    rows, shot_rows, source = _rows(task, path)
    scored: dict[str, TaskExample] = {}
    shots: list[Json] = []
    for number, (values, where, _) in enumerate(rows, start=1):
        row = _columns(task, values, where, number)
        if holds(task.data.scored, row, where):
            example = _example(task, row, where, None)
            if example.id in scored:
                raise DataError(
                    f"{where}: {example.id} was there before, in {scored[example.id].where}. Every"
                    " example of a task needs an id of its own."
                )
            scored[example.id] = example
        elif holds(task.data.shots, row, where):
            shots.append(row)
    shots += [
        _columns(task, values, where, number)
        for number, (values, where, _) in enumerate(islice(shot_rows, task.plain.shots), start=1)
    ]
    return TaskExamples([*scored.values()], shots, [], source)


def _columns(task: Task, values: object, where: str, number: int) -> JsonDict:
    """A row's columns, those under other names too, and its place."""
    columns = as_columns(values, where)
    renamed = {
        name: columns[column] for name, column in task.data.columns.items() if column in columns
    }
    return columns | renamed | {"row_number": number}


def _example(task: Task, row: Json, where: str, own_prompt: Prompt | None) -> TaskExample:
    id_, reference = render(task.id, row, where), render(task.reference, row, where)
    return TaskExample(id_, row, reference, own_prompt, where, render(task.kind or "", row, where))


def _rows(task: Task, path: str | None) -> tuple[Iterator[Row], Iterator[Row], str]:
    """Rows to score (with solved examples among them where the task says so), rows of solved
    examples, and where they come from.
    """
    data = task.data
    if path is not None and Path(path).is_dir():
        return (
            _folder_rows(task, Path(path), data.splits),
            _folder_rows(task, Path(path), data.shot_splits),
            path,
        )
    if path is not None:
        return _file_rows(task, Path(path)), _builtin_rows(data.builtin, data.shot_splits), path
    if data.file is not None:
        raise DataError(
            f"task {task.name} needs {data.file}:"
            f" evaluation.data='{{{task.same_data_as or task.name}: FILE}}'."
        )
    if data.builtin is not None:
        source = f"built-in {data.builtin}, split {' and '.join(data.splits)}"
        return (
            _builtin_rows(data.builtin, data.splits),
            _builtin_rows(data.builtin, data.shot_splits),
            source,
        )
    return (
        _hub_rows(task, data.splits),
        _hub_rows(task, data.shot_splits),
        f"{data.hub} from the Hugging Face hub",
    )


def _builtin_rows(name: str | None, splits: Sequence[str]) -> Iterator[Row]:
    if name is not None:
        for split in splits:
            yield from SPLIT_ROWS[name](split)


def _folder_rows(task: Task, folder: Path, splits: Sequence[str]) -> Iterator[Row]:
    for split in splits:
        files = [
            path
            for path in sorted(folder.iterdir())
            if path.name.partition(".")[0] == split and format_of(path) is not None
        ]
        if len(files) != 1:
            found = "none"
            if files:
                found = f"{len(files)} of them ({', '.join(path.name for path in files)})"
            raise DataError(
                f"evaluation.data: task {task.name} reads one file {split}.jsonl (or"
                f" {', '.join(SUFFIXES)}; .gz too) of the folder {folder}; there is {found}. Give a"
                " folder with one, or the file with the questions itself."
            )
        yield from read_rows(files[0])


def _file_rows(task: Task, path: Path) -> Iterator[Row]:
    if not path.is_file():
        elsewhere = {
            task.data.hub: f"{task.data.hub} from the hub",
            task.data.builtin: "the built-in questions",
        }
        remedy = next(
            (f" Leave it out to use {text}." for place, text in elsewhere.items() if place), ""
        )
        raise DataError(f"evaluation.data: no file {path} for task {task.name}.{remedy}")
    if format_of(path) is None:
        raise DataError(
            f"evaluation.data: {path} is no file that brimful reads ({', '.join(SUFFIXES)}; .gz"
            " too)."
        )
    yield from read_rows(path)


def _hub_rows(task: Task, splits: Sequence[str]) -> Iterator[Row]:
    import datasets  # noqa: PLC0415 - takes a second to import and only hub data need it

    data = task.data
    try:
        tables = [datasets.load_dataset(data.hub, data.config, split=split) for split in splits]
    except (
        Exception
    ) as error:  # the library raises whatever its network, parsing and file layers raise
        reason = reason_of(error)
        raise DataError(
            f"task {task.name}: loading {data.hub} from the Hugging Face hub failed: {reason}. "
            f"A local file works too: evaluation.data='{{{task.name}: FILE}}'."
        ) from error
    for split, table in zip(splits, tables, strict=True):
        yield from (
            Row(row, f"{data.hub}, split {split}, row {number}")
            for number, row in enumerate(table, start=1)
        )


def _own_examples(task: Task, own: Mapping[str, Sequence[Example]]) -> TaskExamples:
    split = str(task.data.run)
    if not own.get(split):
        raise RequestError(
            f"task {task.name} asks the run's own {split} examples, and there are none: it belongs"
            " to runs of method sft."
        )
    rows = [
        (_own_row(number, example), example)
        for number, example in enumerate(own[split])
        if example.prompt is not None
    ]
    scored = [
        _example(task, row, example.where, example.prompt)
        for row, example in rows
        if holds(task.data.scored, row, example.where)
    ]
    notes = []
    if left_out := len(own[split]) - len(scored):
        notes.append(
            f"{left_out} of {len(own[split])} {split} examples are left out (scored:"
            f" {task.data.scored})"
        )
    taken = {row["prompt"] for row, _ in rows}
    return TaskExamples(
        scored,
        _typical_shots(task, own.get("train", ()), taken),
        notes,
        f"the run's {split} examples",
    )


def _own_row(number: int, example: Example) -> JsonDict:
    prompt = text_of_prompt(example)
    content = short_hash(f"{prompt}\0{example.completion}")
    return {"id": f"{number}-{content}", "prompt": prompt, "completion": example.completion}


def _typical_shots(task: Task, train: Iterable[Example], taken: set[str]) -> list[Json]:
    """Training examples of about median length: they show the form and leave room for the
    question.
    """
    candidates = [
        (_own_row(number, example), example)
        for number, example in zip(range(SHOT_CANDIDATES), train, strict=False)
        if example.prompt
    ]
    rows = [
        row
        for row, example in candidates
        if row["prompt"] not in taken and holds(task.data.scored, row, example.where)
    ]
    if not rows:
        return []
    lengths = [len(row["prompt"]) + len(row["completion"]) for row in rows]
    middle = statistics.median(lengths)
    nearest = sorted(range(len(rows)), key=lambda number: abs(lengths[number] - middle))
    return [rows[number] for number in nearest[: task.plain.shots]]


def scored_questions(recipe: Recipe) -> list[tuple[str, str]]:
    """Return (name, text) of every question that the recipe's tasks ask; none may be trained on.

    Raises:
        DataError: a task's data cannot be read.
    """
    questions: list[tuple[str, str]] = []
    for name in recipe.evaluation.tasks:
        task = load_task(name) if name in task_names() else None
        if task is None or task.data.run is not None:
            continue
        for example in load_examples(task, paths=recipe.evaluation.data, own={}).scored:
            text = render(str(task.template.text), example.row, example.where)
            questions.append((f"{task.name} {example.id}", text))
    return questions
