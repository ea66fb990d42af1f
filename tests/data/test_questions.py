"""Questions with answers to verify."""

import json
from pathlib import Path
from typing import Any

from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.data.questions import QuestionSet, read_questions
from brimful.recipe import QuestionsRecipe


def read(folder: Path, rows: list[Any], **choices: Any) -> QuestionSet:
    """Of a file with these rows."""
    path = folder / "questions.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return read_questions(QuestionsRecipe(path=str(path), **choices))


def test_the_guides_lists_are_questions(tmp_path: Path) -> None:
    """With and without reasoning, which is not what an answer is held against."""
    questions = read(tmp_path, [["a?", 120.0], ["b?", 2.5, "because <answer>3</answer>"]])
    assert [(one.text, one.reference) for one in questions.asked] == [("a?", "120"), ("b?", "2.5")]


def test_without_a_column_answer_the_rows_own_answer_counts(tmp_path: Path) -> None:
    """Such as that of a conversation."""
    (question,) = read(
        tmp_path, [{"prompt": "a?", "completion": "It is <answer>3</answer>", "kind": "sums"}]
    ).asked
    assert (question.reference, question.kind, question.row["prompt"]) == (
        "It is <answer>3</answer>",
        "sums",
        "a?",
    )
    assert question.prompt == "a?"


def test_a_question_that_stands_there_twice_is_asked_once(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """It would get twice the samples of others."""
    questions = read(tmp_path, [["a?", 1], ["b?", 2], ["a?", 1.0]])
    assert [one.text for one in questions.asked] == ["a?", "b?"]
    assert questions.notes == snapshot


def test_one_question_with_two_answers_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    """One of them is wrong, and what it accepts would be trained on."""
    with refuses(DataError, names=["row 2", "row 1"]):
        read(tmp_path, [["a?", 1], ["a?", 2]])


def test_some_of_the_questions_are_spread_evenly(tmp_path: Path) -> None:
    """Names stay the same, so that what was drawn for them is found again."""
    rows = [[f"{number}?", number] for number in range(10)]
    some, everything = read(tmp_path, rows, max_questions=3), read(tmp_path, rows)
    assert [one.text for one in some.asked] == ["0?", "3?", "6?"]
    assert {one.id for one in some.asked} < {one.id for one in everything.asked}


def test_a_corrected_answer_makes_another_question(tmp_path: Path) -> None:
    """What was judged by the old one does not count for it."""
    (before,), (after,) = read(tmp_path, [["a?", 1]]).asked, read(tmp_path, [["a?", 2]]).asked
    assert before.id != after.id


def test_a_split_that_is_not_there_is_named(tmp_path: Path, refuses: Refuses) -> None:
    """And those that are."""
    with refuses(DataError, names=["'test'"]):
        read(tmp_path, [["a?", 1]], split="test")


def test_texts_without_questions_are_refused(tmp_path: Path, refuses: Refuses) -> None:
    """Nothing could be asked."""
    with refuses(DataError):
        read(tmp_path, [{"text": "a"}])
