"""Where models say their results."""

import pytest

from brimful.verify.answers import (
    MAX_FINAL_CHARACTERS,
    MAX_READ_CHARACTERS,
    final_or_whole,
    find_final_answer,
)


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        ("2 h = 120 min <answer>120</answer>", "120"),
        ("<ANSWER>\n 120 \n</Answer >", "120"),
        ("< answer >120< / answer >", "120"),
        ("9 * 2 = 18\n#### 18\n", "18"),
        ("  #### 1,234", "1,234"),
        ("so \\boxed{\\frac{1}{2}} it is", "\\frac{1}{2}"),
        ("\\boxed {\\{1, 2\\}}", "\\{1, 2\\}"),
        ("The answer is 5.5. That is it.", "5.5"),
        ("the final answer is: Paris", "Paris"),
        ("The answer is 4. No, the answer is 5.", "5"),
    ],
)
def test_every_style_of_mark_is_read(answer: str, final: str) -> None:
    assert find_final_answer(answer).text == final


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        ("<answer>1</answer> or <answer>2</answer>", "2"),
        ("<answer>1</answer>\n#### 2", "2"),
        ("#### 1\n\\boxed{2}", "2"),
        ("<answer>\\boxed{2}</answer>", "2"),
        ("\\boxed{\\boxed{2}}", "2"),
        ("#### \\boxed{2}", "2"),
        ("<answer>1 <answer>2</answer>", "2"),
        ("The answer is 1. <answer>2</answer> The answer is 3.", "2"),
    ],
)
def test_of_several_marks_the_one_that_begins_last_counts(answer: str, final: str) -> None:
    assert find_final_answer(answer).text == final


def test_a_mark_in_a_question_that_is_repeated_does_not_stand_for_the_answer_behind_it() -> None:
    question = "Give it as <answer>NUMBER</answer>, for example <answer>7</answer>. What is 2 + 3?"
    assert find_final_answer(f"{question} It is <answer>5</answer>").text == "5"
    assert find_final_answer(f"{question} It is <answer>5").text is None


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "no final answer"),
        ("It is 5.", "no final answer"),
        ("5</answer>", "no final answer"),
        ("a #### 5", "no final answer"),
        ("##### 5", "no final answer"),
        ("<answer></answer>", "empty final answer"),
        ("#### \n5", "empty final answer"),
        ("\\boxed{ }", "empty final answer"),
        ("<answer>5", "final answer not closed"),
        ("<answer>5</answer> or <answer>6", "final answer not closed"),
        ("\\boxed{\\frac{1}{2}", "final answer not closed"),
        ("\\boxed{5\\}", "final answer not closed"),
        (f"<answer>{'5' * (MAX_FINAL_CHARACTERS + 1)}</answer>", "final answer too long"),
    ],
)
def test_what_says_nothing_is_told_with_its_reason(answer: str, problem: str) -> None:
    final = find_final_answer(answer)
    assert (final.text, final.problem) == (None, problem)


def test_only_the_end_of_a_very_long_answer_is_read() -> None:
    filler = "x" * MAX_READ_CHARACTERS
    assert find_final_answer(f"{filler}<answer>5</answer>").text == "5"
    assert find_final_answer(f"<answer>5</answer>{filler}").text is None


def test_the_whole_answer_stands_for_a_mark_only_where_there_is_none() -> None:
    assert final_or_whole(" yes\n").text == "yes"
    assert final_or_whole("yes <answer>no</answer>").text == "no"
    assert final_or_whole("yes <answer>").problem == "final answer not closed"
    assert final_or_whole(" \n").problem == "no final answer"
    assert final_or_whole("x" * (MAX_FINAL_CHARACTERS + 1)).problem == "final answer too long"
