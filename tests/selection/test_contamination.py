"""Samples that repeat an evaluation question are found, and those that only look like one are
not.
"""

import gzip
import json
from pathlib import Path

import pytest

from brimful.selection.contamination import Contamination, EvaluationQuestions

LONG = (
    "Max bought stamps at the post office. Some of the stamps had a snowflake design, and some had"
    " a truck design. How many stamps did he buy?"
)
SHORT = "How many gram are there per 6 kg?"

QUESTIONS = EvaluationQuestions(
    [
        ("short", SHORT),
        ("long", LONG),
        ("tiny", "2 + 3?"),
        ("twin", SHORT.upper()),
        ("cold", "Convert -40 C to F"),
        ("empty", "?"),
    ]
)


@pytest.mark.parametrize(
    ("question", "completion", "found"),
    [
        (SHORT, "6 kg = 6000 g", Contamination("short", "exact")),
        ("how many GRAM  are there\nper 6 kg?", "", Contamination("short", "exact")),
        ("How many gram are there per 6 kg", "", Contamination("short", "words")),
        ("How many gram are there per 7 kg?", "", None),
        ("How many gram are there per 6.0 kg?", "", None),
        ("2 + 3?", "", Contamination("tiny", "exact")),
        ("What is 4?", "2 + 3?", None),
        ("What is 4?", f"It is 4.\n\nQuestion: {SHORT} 6000", Contamination("short", "piece")),
        ("Convert 40 C to F", "", None),
        ("Convert -40 C to F.", "", Contamination("cold", "words")),
        (LONG.replace("Max", "Bella").replace("he", "she"), "", Contamination("long", "piece")),
        ("Some of the stamps had a snowflake design, and some had a bus. How many?", "", None),
        ("!", "...", None),
        ("", "", None),
    ],
)
def test_repetitions_are_told_from_likeness(
    question: str, completion: str, found: Contamination | None
) -> None:
    assert QUESTIONS.find(question, completion) == found


def test_the_answers_of_one_question_are_judged_one_by_one() -> None:
    assert QUESTIONS.find("What is 5?", "five") is None
    assert QUESTIONS.find("What is 5?", SHORT) == Contamination("short", "piece")
    assert QUESTIONS.find("What is 5?", "five") is None


def test_no_evaluation_questions_contaminate_nothing() -> None:
    assert EvaluationQuestions([]).find(SHORT, LONG) is None


def test_the_wording_around_all_questions_is_no_repetition() -> None:
    asked = (
        "You are an expert Python programmer, and here is your task: Write a function to {} Your"
        " code should pass these tests: assert f({}) == 4"
    )
    numbers = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
    tasks = [
        "add two numbers.",
        "reverse a list in place.",
        "find the adverbs and their positions in a given sentence by using regex.",
    ]
    questions = EvaluationQuestions(
        (str(number), asked.format(task, numbers)) for number, task in enumerate(tasks)
    )

    assert questions.find(asked.format("divide one number by another.", numbers), "") is None
    assert questions.find(asked.format(tasks[0], numbers), "") == Contamination("0", "exact")
    assert (
        questions.find("Find the adverbs and their positions in a given sentence.", "") is None
    ), "a piece of nine words is no whole question"
    assert questions.find(f"Write code to {tasks[2]}", "") == Contamination("2", "piece")


def test_real_programming_tasks_in_one_wording_are_told_apart(shared_data: Path) -> None:
    """MBPP holds near twins on both sides of its split, the first repeated character among them; of
    the other tasks none is dropped for its wording.
    """
    asked = (
        "You are an expert Python programmer, and here is your task: {} Your code should pass these"
        " tests:\n\n{}"
    )
    rows = [
        json.loads(line) for line in (shared_data / "mbpp" / "mbpp.jsonl").read_text().splitlines()
    ]
    texts = {row["task_id"]: asked.format(row["text"], "\n".join(row["test_list"])) for row in rows}
    questions = EvaluationQuestions(
        (str(number), text) for number, text in texts.items() if 11 <= number <= 510
    )

    found = [questions.find(text, "") for number, text in texts.items() if number > 510]
    assert 20 < sum(contamination is not None for contamination in found) < 0.1 * len(found)


def test_real_training_questions_repeat_few_of_the_test(shared_data: Path) -> None:
    """GSM8K's training split holds no test question, and four pieces of some."""
    with gzip.open(shared_data / "gsm8k" / "train.jsonl.gz", "rt") as file:
        training = [json.loads(line)["question"] for line in file]
    test = [
        json.loads(line)["question"]
        for line in (shared_data / "gsm8k" / "test.jsonl").read_text().splitlines()
    ]
    questions = EvaluationQuestions((str(number), question) for number, question in enumerate(test))

    found = [questions.find(question, "") for question in training]
    assert [contamination.kind for contamination in found if contamination] == ["piece"] * 4
    assert all(
        questions.find(question, "") == Contamination(str(number), "exact")
        for number, question in enumerate(test[:100])
    )
