"""The journal of a drawing survives a kill, refuses what does not belong to it, and becomes the
files that others read.
"""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_journal, records_lost
from brimful.base.types import JsonDict
from brimful.data.formats import Message, examples_of
from brimful.data.readers import read_rows
from brimful.recipe import DataRecipe
from brimful.selection.choose import SelectionRules, prefix
from brimful.selection.draw import SampleDrawing
from brimful.selection.journal import (
    JOURNAL_FILE,
    SAMPLES_FILE,
    TRAINING_FILE,
    SampleJournal,
    is_sample,
    training_row,
    write_samples,
)
from brimful.selection.sample import JudgedSample, SampledPrompt

Written = Callable[[SampledPrompt, int], JudgedSample]

RULES = SelectionRules(samples_per_prompt=4, keep_per_prompt=2)
DECIDES: JsonDict = {
    "model": "a1b2",
    "verifier": "number",
    "sampling": {"temperature": 0.7, "top_k": None},
    "questions": ("x", "y"),
}


def test_what_was_appended_is_held_when_the_journal_is_opened_again(
    tmp_path: Path, sample: Any
) -> None:
    with SampleJournal(tmp_path, DECIDES) as journal:
        assert journal.held == []
        assert journal.append(sample(1))
        assert journal.append(sample(0, value=float("inf")))
        journal.sync()

    with SampleJournal(tmp_path, DECIDES) as journal:
        assert journal.held == [sample(1), sample(0, value=float("inf"))]


def test_what_wrote_the_samples_is_known_when_none_is_missing_any_more(
    tmp_path: Path, sample: Any
) -> None:
    with SampleJournal(tmp_path, DECIDES) as journal:
        journal.note_backend("the engine")
        journal.append(sample(0))
    with SampleJournal(tmp_path, DECIDES) as journal:
        assert (journal.backend, journal.held) == ("the engine", [sample(0)])
        journal.note_backend("the engine")
    records = list(read_journal(tmp_path / JOURNAL_FILE))
    assert list(map(is_sample, records)) == [False, False, True]


def test_of_twins_the_first_is_held(tmp_path: Path, sample: Any) -> None:
    with SampleJournal(tmp_path, DECIDES) as journal:
        assert journal.append(sample(0))
        assert not journal.append(sample(0, completion="another"))
    with SampleJournal(tmp_path, DECIDES) as journal:
        assert not journal.append(sample(0, completion="another"))
    lines = (tmp_path / JOURNAL_FILE).read_text().splitlines()
    assert len(lines) == 2

    (tmp_path / JOURNAL_FILE).write_text(
        "\n".join([*lines, json.dumps(sample(0, completion="another").to_json())]) + "\n"
    )
    with SampleJournal(tmp_path, DECIDES) as journal:
        assert journal.held == [sample(0)]


def test_cut_off_after_any_byte_the_journal_holds_its_whole_samples_and_goes_on(
    tmp_path: Path, sample: Any
) -> None:
    path = tmp_path / JOURNAL_FILE
    with SampleJournal(tmp_path, DECIDES) as journal:
        for number in range(3):
            journal.append(sample(number))
    whole = path.read_bytes()
    ends = [place for place, byte in enumerate(whole, start=1) if byte == ord("\n")]

    for cut in [*range(0, len(whole), 37), *ends, *(end - 1 for end in ends)]:
        path.write_bytes(whole[:cut])
        with SampleJournal(tmp_path, DECIDES) as journal:
            assert journal.held == [
                sample(number) for number in range(sum(end <= cut for end in ends) - 1)
            ]
            journal.append(sample(9))
        with SampleJournal(tmp_path, DECIDES) as journal:
            assert journal.held[-1] == sample(9)


def test_a_damaged_sample_is_dropped_for_good_and_drawn_again(tmp_path: Path, sample: Any) -> None:
    with SampleJournal(tmp_path, DECIDES) as journal:
        for number in range(3):
            journal.append(sample(number))
    path = tmp_path / JOURNAL_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\0" * 9 + b"\n", *lines[3:]]))
    assert records_lost(path) == 1

    with SampleJournal(tmp_path, DECIDES) as journal:
        assert journal.held == [sample(0), sample(2)]
        assert journal.append(sample(1))
    assert records_lost(path, num_written=4) == 0


def test_samples_of_an_earlier_version_go_on_though_it_hashed_the_weights_alone(
    tmp_path: Path, sample: Any
) -> None:
    weights, others = "0" * 32, "1" * 32
    with SampleJournal(tmp_path, DECIDES | {"author": f"{weights}, shown 2"}) as journal:
        journal.append(sample(0))
    with SampleJournal(tmp_path, DECIDES | {"author": f"{weights}+{others}, shown 2"}) as journal:
        assert journal.held == [sample(0)]


def test_samples_drawn_with_something_else_are_not_mixed_in(
    tmp_path: Path, sample: Any, snapshot: SnapshotAssertion
) -> None:
    with SampleJournal(tmp_path, DECIDES) as journal:
        journal.append(sample(0))

    with pytest.raises(RunFolderError) as refused:
        SampleJournal(
            tmp_path,
            {
                **DECIDES,
                "verifier": "exact",
                "sampling": {"temperature": 1.0, "top_k": None},
                "template": "chat",
            },
        )
    told = str(refused.value)
    assert told == snapshot
    assert "model" not in told
    with SampleJournal(tmp_path, DECIDES) as journal:
        assert journal.held == [sample(0)], "nothing is lost by the refusal"


def test_a_file_that_is_no_journal_is_refused_and_left_alone(
    tmp_path: Path, sample: Any, refuses: Refuses
) -> None:
    path = tmp_path / JOURNAL_FILE
    path.write_text(json.dumps(sample(0).to_json()) + "\n")
    with refuses(RunFolderError):
        SampleJournal(tmp_path, DECIDES)

    path.write_text(json.dumps({"decides": {}}) + '\n{"question": "q"}\n')
    with refuses(RunFolderError):
        SampleJournal(tmp_path, {})
    assert path.read_text().endswith('{"question": "q"}\n')


def _lines(path: Path) -> list[JsonDict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_files_hold_the_samples_that_count_in_order_with_their_fates(
    tmp_path: Path, questions: list[SampledPrompt], written: Written
) -> None:
    drawn = [written(question, number) for question in questions for number in range(4)]
    random.Random(1).shuffle(drawn)

    counted = write_samples(tmp_path, questions, drawn, RULES)

    assert [(sample.question, sample.number) for sample in counted] == [
        (question.id, number) for question in questions for number in range(4)
    ]
    assert counted == [
        chosen
        for question in questions
        for chosen in prefix([sample for sample in drawn if sample.question == question.id], RULES)
    ]
    lines = _lines(tmp_path / SAMPLES_FILE)
    texts = {question.id: question.text for question in questions}
    assert [(line["id"], line["number"], line["fate"], line["completion"]) for line in lines] == [
        (sample.question, sample.number, sample.fate, sample.completion) for sample in counted
    ]
    assert all(line["question"] == texts[line["id"]] and "reference" in line for line in lines)


def test_kept_samples_are_examples_that_fine_tuning_reads(
    tmp_path: Path, questions: list[SampledPrompt], written: Written
) -> None:
    counted = write_samples(
        tmp_path,
        questions,
        [written(question, number) for question in questions for number in range(4)],
        RULES,
    )

    texts = {question.id: question.text for question in questions}
    examples = list(
        examples_of(
            read_rows(tmp_path / TRAINING_FILE), DataRecipe(path=str(tmp_path / TRAINING_FILE))
        )
    )
    assert [(example.prompt, example.completion) for example in examples] == [
        ((Message("user", texts[sample.question]),), sample.completion)
        for sample in counted
        if sample.fate == "kept"
    ]
    assert examples


def test_where_nothing_is_kept_there_is_no_file_to_train_on(
    tmp_path: Path, questions: list[SampledPrompt], sample: Any
) -> None:
    write_samples(tmp_path, questions, [sample(0, question="q0")], RULES)
    assert (tmp_path / TRAINING_FILE).exists()

    write_samples(
        tmp_path,
        questions,
        [sample(0, question="q0", status="wrong"), sample(0, question="a stranger")],
        RULES,
    )
    assert not (tmp_path / TRAINING_FILE).exists()
    assert [line["fate"] for line in _lines(tmp_path / SAMPLES_FILE)] == ["wrong"]


@pytest.mark.parametrize("stop_early", [False, True])
def test_killed_and_resumed_through_the_journal_the_files_are_equal_byte_for_byte(
    tmp_path: Path, questions: list[SampledPrompt], written: Written, stop_early: bool
) -> None:
    rules = replace(RULES, samples_per_prompt=8, stop_early=stop_early)

    def draw(folder: Path, seed: int, kill_after: int | None) -> None:
        order = random.Random(seed)
        with SampleJournal(folder, DECIDES) as journal:
            drawing = SampleDrawing(questions, rules, 7, 64, journal.held)
            requests, rows = drawing.requests(), []
            for _ in range(1000 if kill_after is None else kill_after):
                rows += islice(requests, order.randint(0, 9))
                if rows:
                    sample = written(*drawing.origin(rows.pop(order.randrange(len(rows)))))
                    assert journal.append(sample) is drawing.take(sample) is True
        if kill_after is None:
            write_samples(folder, questions, drawing.samples, rules)
        else:
            with open(folder / JOURNAL_FILE, "r+b") as file:
                file.truncate(max(0, file.seek(0, 2) - order.randint(0, 50)))

    (tmp_path / "whole").mkdir()
    draw(tmp_path / "whole", 0, None)
    for seed in range(1, 5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        for kill_after in random.Random(seed).sample(range(40), 3):
            draw(folder, seed, kill_after)
        draw(folder, seed, None)
        for name in (SAMPLES_FILE, TRAINING_FILE):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_prompt_that_is_text_is_trained_on_as_text() -> None:
    """As the student will be asked; messages stay messages."""
    assert training_row("What is 1?", "1") == {"prompt": "What is 1?", "completion": "1"}
    assert training_row((Message("user", "What is 1?"),), "1")["prompt"] == [
        {"role": "user", "content": "What is 1?"}
    ]
