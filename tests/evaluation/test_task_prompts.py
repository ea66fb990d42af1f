"""How tuned and untuned models are asked."""

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.data.formats import Example, Message
from brimful.evaluation.task import load_task
from brimful.evaluation.task_data import TaskExample, TaskExamples
from brimful.evaluation.task_prompts import questions_for, text_ending_of

SHOTS = [{"prompt": f"Solved {number}", "completion": f"x = {number}\n"} for number in (1, 2)]


def _examples(*prompts: str, own: bool = False) -> TaskExamples:
    scored = [
        TaskExample(
            str(number),
            {"prompt": prompt, "completion": "x = 0", "entry_point": "f"},
            "x = 0",
            prompt if own else None,
            "a row",
        )
        for number, prompt in enumerate(prompts)
    ]
    return TaskExamples(scored, list(SHOTS), [], "here")


def test_an_untuned_model_continues_solved_examples(subjects: Any) -> None:
    """The question stands where the model goes on, in the form that the solved ones show."""
    questions = questions_for(
        load_task("code-syntax"), _examples("Ask"), subjects.of(is_tuned=False)
    )
    assert questions.style == "few-shot 2"
    assert (
        questions.asked[0].text
        == "# Task: Solved 1\nx = 1\n\n# Task: Solved 2\nx = 2\n\n# Task: Ask\nx ="
    )
    assert questions.asked[0].begun == "x ="
    assert questions.asked[0].ids == subjects.of().template.prompt_ids(questions.asked[0].text)


def test_without_solved_examples_the_prompt_is_plain(subjects: Any) -> None:
    questions = questions_for(
        load_task("humaneval"), _examples('def f():\n    """F."""\n'), subjects.of(is_tuned=False)
    )
    assert (questions.style, questions.asked[0].text) == ("plain", 'def f():\n    """F."""')


def test_a_tuned_model_is_asked_through_its_template(subjects: Any) -> None:
    subject = subjects.of()
    questions = questions_for(
        load_task("humaneval"), _examples('def f():\n    """F."""\n'), subject
    )
    text = (
        "Complete the following Python function. Answer with the whole function in one Python code"
        ' block.\n\n```python\ndef f():\n    """F."""\n```'
    )
    assert (questions.style, questions.asked[0].text) == ("template", text)
    assert questions.asked[0].ids == subject.template.prompt_ids((Message("user", text),))


def test_a_model_tuned_on_prompts_that_are_text_is_asked_with_text_that_ends_alike(
    subjects: Any,
) -> None:
    subject = subjects.of(text_ending="\n\n")
    [question] = questions_for(load_task("humaneval"), _examples("def f(): ...\n"), subject).asked
    assert question.text.endswith("```\n\n")
    assert question.ids == subject.template.prompt_ids(question.text)


def test_the_runs_own_examples_are_asked_as_in_training(subjects: Any) -> None:
    [question] = questions_for(
        load_task("code-bleu"), _examples("Ask", own=True), subjects.of()
    ).asked
    assert (question.text, question.ids) == ("Ask", list(subjects.of().template.prompt_ids("Ask")))


@pytest.mark.parametrize(
    ("prompts", "ending"),
    [
        (["Ask\n"], "\n"),
        (["Ask"], ""),
        ([None, "Ask \n\n"], " \n\n"),
        ([(Message("user", "Ask\n"),)], None),
        ([], None),
    ],
)
def test_what_text_prompts_end_in_is_read_off_the_training_examples(
    prompts: list[Any], ending: str | None
) -> None:
    assert text_ending_of(Example(prompt, "x", "", "") for prompt in prompts) == ending


def test_solved_examples_are_dropped_one_by_one_until_the_prompt_fits(
    subjects: Any, snapshot: SnapshotAssertion
) -> None:
    """Each byte is a token: 64 for the answer, and 31, 23 or 7 more characters of solved examples
    do not fit.
    """
    questions = questions_for(
        load_task("code-syntax"),
        _examples("a", "a" * 20, "a" * 40, "a" * 60),
        subjects.of(context=128, is_tuned=False),
    )
    assert questions.max_new_tokens == 64
    assert [question.shots for question in questions.asked] == [2, 1, 0]
    assert [example.id for example in questions.skipped] == ["3"]
    assert all(len(question.ids) <= 64 for question in questions.asked)
    assert questions.notes == snapshot


def test_a_context_with_room_for_everything_leaves_nothing_to_note(subjects: Any) -> None:
    questions = questions_for(load_task("code-syntax"), _examples("Ask", own=True), subjects.of())
    assert (questions.notes, questions.max_new_tokens, questions.skipped) == ([], 384, [])


@pytest.mark.parametrize("is_tuned", [True, False])
def test_solved_examples_that_the_data_lack_are_missed_by_an_untuned_model_only(
    subjects: Any, is_tuned: bool
) -> None:
    row = {"question": "How many are 1 and 1?", "answer": "#### 2"}
    examples = TaskExamples([TaskExample("1", row, "2", None, "a row")], [], [], "test.jsonl")
    questions = questions_for(load_task("gsm8k"), examples, subjects.of(is_tuned=is_tuned))
    assert questions.style == ("template" if is_tuned else "plain")
    assert (
        questions.notes == []
        if is_tuned
        else ["0 of 8 solved examples stand before a question: test.jsonl has no more"]
    )
    assert questions.asked[0].text == (
        row["question"] if is_tuned else f"Question: {row['question']}\nAnswer:"
    )


def test_an_untuned_model_may_be_asked_through_its_chat_template(subjects: Any) -> None:
    """The run's own prompts, too, are then a user's message, and nothing solved stands before."""
    subject = subjects.of(is_tuned=False, ways=("chat",))
    questions = questions_for(load_task("code-bleu"), _examples("Ask\n", own=True), subject)
    assert questions.style == "template"
    assert questions.asked[0].ids == subject.template.prompt_ids((Message("user", "Ask"),))
