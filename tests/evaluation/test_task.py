"""The shipped tasks, and what a task file may hold."""

import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError, RequestError
from brimful.evaluation.task import Task, holds, load_task, render, task_names

ROW = {
    "task_id": 20,
    "id": "20-abc",
    "prompt": "def f(x):\n    '''Next.'''\n",
    "canonical_solution": "    return x + 1\n",
    "text": "Write f.",
    "code": "def f(x):\r\n    return x + 1",
    "completion": "def f(x):\n    return x + 1\n",
    "test_list": ["assert f(1) == 2", "assert f(2) == 3"],
    "entry_point": "f",
    "row_number": 3,
    "question": "How many minutes are 2 hours?",
    "answer": "120",
    "reasoning": "2 x 60 = <answer>120</answer>",
    "kind": "new-values",
}


@pytest.mark.parametrize("name", task_names())
def test_every_task_says_what_it_is_and_fills_its_templates_from_a_row_of_its_data(
    name: str,
) -> None:
    task = load_task(name)
    assert task.name == name
    assert task.description.endswith(".")
    assert task.source
    assert task.metrics
    for template in (
        task.id,
        task.reference,
        task.kind,
        task.template.text,
        task.plain.text,
        task.plain.shot,
    ):
        assert template is None or "{{" not in render(template, ROW, "a row")
    assert isinstance(holds(task.data.scored, ROW, "a row"), bool)


@pytest.mark.parametrize("name", task_names())
def test_an_untuned_models_answer_ends_before_the_next_question(name: str) -> None:
    """With solved examples a base model would go on with a question of its own: the stop strings
    stand in what follows an answer.
    """
    plain = load_task(name).plain
    if plain.shots:
        two = render(str(plain.shot), ROW, "a row") * 2
        assert any(word in two for word in plain.stop)


def test_the_mbpp_prompt_is_the_one_of_its_readme() -> None:
    task = load_task("mbpp")
    asked = (
        "You are an expert Python programmer, and here is your task: Write f. Your code should pass"
        " these tests:\n\nassert f(1) == 2\nassert f(2) == 3\n[BEGIN]\n"
    )
    assert render(task.plain.text, ROW, "a row") == asked
    assert (
        render(str(task.plain.shot), ROW, "a row")
        == f"{asked}def f(x):\n    return x + 1\n[DONE]\n\n"
    )
    assert task.plain.shots == 3


def test_tasks_that_ask_the_same_share_the_request_and_others_do_not() -> None:
    assert load_task("code-bleu").request == load_task("code-syntax").request
    assert (
        load_task("code-bleu").request
        != load_task("code-bleu", ["sampling.max_new_tokens=9"]).request
    )
    assert load_task("mbpp").request != load_task("mbpp-sanitized").request


def test_the_guides_two_ways_of_counting_share_the_answers_and_the_file() -> None:
    strict, loose = load_task("unit-conversion-guide"), load_task("unit-conversion-guide-5-percent")
    assert strict.request == loose.request
    assert (strict.verifier, loose.verifier) == ("number", "number_5_percent")
    assert loose.same_data_as == "unit-conversion-guide"
    assert strict.same_data_as is None


@pytest.mark.parametrize(
    ("name", "needs"),
    [("humaneval", True), ("mbpp", True), ("gsm8k", False), ("code-syntax", False)],
)
def test_only_programs_need_the_sandbox(name: str, needs: bool) -> None:
    assert load_task(name).needs_sandbox is needs


def test_values_can_be_overridden() -> None:
    sampling = load_task("humaneval", ["sampling.samples=20", "sampling.temperature=0.8"]).sampling
    assert (sampling.samples, sampling.temperature, sampling.max_new_tokens) == (20, 0.8, 512)


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("humanevl", [], "unknown task 'humanevl' - did you mean 'humaneval'"),
        ("mbpp", ["sampling.smples=3"], "sampling.smples: unknown key - did you mean 'samples'"),
        ("mbpp", ["sampling.samples=3"], "several samples of a greedy answer are all the same"),
        ("mbpp", ["metrics=[blue]"], "unknown metric 'blue' - did you mean 'bleu'"),
        ("mbpp", ["template.extraction=cod"], "unknown extraction 'cod' - did you mean 'code'"),
        ("mbpp", ["id='{{ x'"], "a template: "),
        ("mbpp", ["data.scored='1 <'"], "a template: "),
        (
            "mbpp",
            ["data.run=validation"],
            "exactly one of data.hub, data.builtin, data.file and data.run",
        ),
        ("mbpp", ["data.splits=[]"], "name the splits"),
        (
            "unit-conversion",
            ["data.builtin=unit-conversio"],
            "unknown built-in corpus 'unit-conversio' - did you mean 'unit-conversion'",
        ),
        ("unit-conversion", ["verifier=numbr"], "unknown verifier 'numbr' - did you mean 'number'"),
        ("unit-conversion", ["kind='{{ x'"], "a template: "),
        ("mbpp", ["plain.shot=null"], "shots above 0 need the template"),
        ("mbpp", ["template.text=null"], "template.text is needed"),
        ("mbpp", ["nonsense"], "write overrides as dotted.key=value"),
    ],
)
def test_a_wrong_task_is_one_clear_error(name: str, overrides: list[str], said: str) -> None:
    with pytest.raises(RequestError) as error:
        load_task(name, overrides)
    assert said in str(error.value)
    assert ".." not in str(error.value)


@pytest.mark.parametrize(
    "fill",
    [
        lambda row: render("{{ task_id }}", row, "file:3"),
        lambda row: holds("task_id > 3", row, "file:3"),
    ],
)
def test_a_row_without_the_columns_is_named_with_those_it_has(
    fill: object, refuses: Refuses
) -> None:
    with refuses(DataError, names=["'task_id'", "file:3"]):
        fill({"a": 1, "b": 2})  # type: ignore[operator]


def test_a_value_of_another_type_is_named_too() -> None:
    with pytest.raises(DataError, match="file:3: '<=' not supported"):
        holds("11 <= task_id", {"task_id": "x"}, "file:3")


def test_templates_know_python_and_comments() -> None:
    assert holds("text is python", {"text": "```\nx = 1\n```"}, "")
    assert not holds("text is python", {"text": "SELECT a FROM b"}, "")
    assert render("{{ text | as_comment }}", {"text": "a\n\nb\n"}, "") == "# a\n#\n# b"


def test_a_template_cannot_reach_beyond_its_row() -> None:
    """Task files are data: they run in jinja's sandbox."""
    with pytest.raises(Exception, match="unsafe"):
        render("{{ ''.__class__.__mro__ }}", {}, "")


def test_a_task_is_frozen_and_strict() -> None:
    assert Task.model_config["frozen"]
    assert Task.model_config["extra"] == "forbid"
