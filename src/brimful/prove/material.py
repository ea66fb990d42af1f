"""Small data to train on, written beside the recipes, so that these can be run by hand as well."""

import csv
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from brimful.base.rundir import write_text_atomically
from brimful.data.builtin import python_code_rows, python_docs

DOCUMENTS_FILE, EXAMPLES_FILE = "documents.jsonl", "examples.jsonl"
FUNCTIONS_FILE, LABELLED_FILE = "functions.jsonl", "labelled.csv"
MAX_CHARACTERS = 1_000_000
NUM_ROWS = 400
_WORDS = ("parcel", "train", "letter", "dinner", "garden", "school", "music", "river")


def write_material(folder: Path) -> None:
    """Write documents, short and long examples and labelled texts into a folder, unless they are
    there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = {DOCUMENTS_FILE: _documents, EXAMPLES_FILE: _examples, FUNCTIONS_FILE: _functions}
    for name, make in rows.items():
        if not (folder / name).exists():
            _write_rows(folder / name, make())
    if not (folder / LABELLED_FILE).exists():
        with (folder / LABELLED_FILE).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *_labelled()])


def _write_rows(path: Path, rows: Iterator[Mapping[str, str]]) -> None:
    write_text_atomically(path, "".join(f"{json.dumps(row)}\n" for row in rows))


def _documents() -> Iterator[Mapping[str, str]]:
    """Yield documentation of Python's library, about a megabyte of it."""
    written = 0
    for text in python_docs():
        if written >= MAX_CHARACTERS:
            return
        written += len(text)
        yield {"text": text}


def _examples() -> Iterator[Mapping[str, str]]:
    for number, word in _numbered_words():
        what = f"{number} {word}" + "s" * (number != 1)
        yield {"prompt": f"Say after me: {what}", "completion": what}


def _functions() -> Iterator[Mapping[str, str]]:
    """Yield functions of Python's library with what is asked for, of many lengths."""
    for row in itertools.islice(python_code_rows(), NUM_ROWS):
        yield {name: str(row.columns[name]) for name in ("prompt", "completion")}


def _labelled() -> Iterator[tuple[str, str]]:
    for number, word in _numbered_words():
        if number % 2:
            yield f"win {number} times this {word} now", "advert"
        else:
            yield f"the {word} of day {number}", "message"


def _numbered_words() -> Iterator[tuple[int, str]]:
    return itertools.islice(enumerate(itertools.cycle(_WORDS), 1), NUM_ROWS)
