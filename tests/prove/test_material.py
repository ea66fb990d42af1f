"""The data of a proof are small, written once, and as different as kinds of run need them."""

import csv
import json
from pathlib import Path

from brimful.prove.material import (
    DOCUMENTS_FILE,
    EXAMPLES_FILE,
    LABELLED_FILE,
    MAX_CHARACTERS,
    NUM_ROWS,
    write_material,
)


def test_documents_examples_and_labelled_texts_are_written(tmp_path: Path) -> None:
    write_material(tmp_path)

    documents = [json.loads(line) for line in (tmp_path / DOCUMENTS_FILE).read_text().splitlines()]
    assert 0.5 * MAX_CHARACTERS < sum(len(each["text"]) for each in documents) < 2 * MAX_CHARACTERS
    examples = [json.loads(line) for line in (tmp_path / EXAMPLES_FILE).read_text().splitlines()]
    assert len({each["prompt"] for each in examples}) == NUM_ROWS
    assert all(each["prompt"].endswith(each["completion"]) for each in examples)
    with (tmp_path / LABELLED_FILE).open(newline="") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    assert labels.count("advert") == labels.count("message") == NUM_ROWS // 2


def test_files_that_are_there_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / EXAMPLES_FILE).write_text("mine")

    write_material(tmp_path)

    assert (tmp_path / EXAMPLES_FILE).read_text() == "mine"
