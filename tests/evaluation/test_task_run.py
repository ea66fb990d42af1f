"""Whole tasks: questions asked, programs judged, results kept."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import BrimfulError, DataError, RequestError
from brimful.data.formats import Example
from brimful.evaluation import task_run
from brimful.evaluation.task import TaskSampling, load_task
from brimful.evaluation.task_answers import WrittenAnswer
from brimful.evaluation.task_data import load_examples
from brimful.evaluation.task_prompts import Subject, questions_for
from brimful.evaluation.task_run import TaskResult, evaluate_tasks
from brimful.verify.sandbox import ProgramResult, Sandbox

PROBLEMS = [
    {
        "task_id": f"Test/{number}",
        "prompt": f'def add_{number}(x):\n    """x + {number}"""\n',
        "entry_point": f"add_{number}",
        "canonical_solution": f"    return x + {number}\n",
        "test": (
            f"def check(candidate):\n    assert candidate(1) == {number + 1}\n    assert"
            f" candidate(-5) == {number - 5}\n"
        ),
    }
    for number in range(6)
]
OWN = {
    "train": [Example(f"Train {number}", f"x = {number}\n", "a row", "") for number in range(4)],
    "validation": [Example(f"Ask {number}", f"y = {number}\n", "a row", "") for number in range(5)],
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        with Sandbox() as opened:
            yield opened
    except RequestError as error:
        pytest.skip(f"nothing isolates here: {error}")


@pytest.fixture
def problems(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "problems.jsonl.gz"
    path.write_bytes(
        gzip.compress("".join(json.dumps(problem) + "\n" for problem in PROBLEMS).encode())
    )
    return {"humaneval": str(path)}


Dictate = Callable[..., None]


@pytest.fixture
def dictate(monkeypatch: pytest.MonkeyPatch) -> Dictate:
    """Put a text into the mouth of the model for every question: no tiny model could write
    these.
    """

    def start(
        task: str,
        subject: Subject,
        paths: dict[str, str],
        answer: Callable[[Any], str],
        *,
        most: int | None = None,
    ) -> None:
        questions = questions_for(
            load_task(task),
            load_examples(load_task(task), paths=paths, own=OWN, max_examples=most),
            subject,
        )
        said = {tuple(question.ids): answer(question.example) for question in questions.asked}

        def write_answers(
            _: Any, prompts: list[list[int]], sampling: TaskSampling, *, stop: list[str], **__: Any
        ) -> list[list[WrittenAnswer]]:
            texts = [said[tuple(ids)] for ids in prompts]
            ends = [
                min((place for word in stop if (place := text.find(word)) >= 0), default=None)
                for text in texts
            ]
            written = [
                WrittenAnswer(text[:end], "end_of_text" if end is None else "stop", len(text))
                for text, end in zip(texts, ends, strict=True)
            ]
            return [[each] * sampling.samples for each in written]

        monkeypatch.setattr(task_run, "write_answers", write_answers)

    return start


def _passed(result: TaskResult) -> float | None:
    return result.metrics["pass@1"].value


@pytest.mark.parametrize(
    ("is_tuned", "answer"),
    [
        (True, lambda example: f"```python\n{example.reference}```"),
        (True, lambda example: f"Like so:\n{example.reference}\nIt adds."),
        (True, lambda example: example.row["canonical_solution"]),
        (True, lambda example: example.row["canonical_solution"].strip()),
        (
            False,
            lambda example: (
                f"\n{example.row['canonical_solution']}\n\ndef other():\n    while True: pass\n"
            ),
        ),
    ],
)
def test_right_answers_pass_however_they_are_written(
    subjects: Any,
    sandbox: Sandbox,
    problems: dict[str, str],
    dictate: Dictate,
    is_tuned: bool,
    answer: Callable[[Any], str],
) -> None:
    subject = subjects.of(is_tuned=is_tuned)
    dictate("humaneval", subject, problems, answer)
    [result] = evaluate_tasks(subject, [load_task("humaneval")], paths=problems, sandbox=sandbox)
    assert (_passed(result), result.errors) == (1.0, {})
    assert result.to_json()["isolation"] == sandbox.level
    assert result.prompt == ("template" if is_tuned else "plain")


def test_wrong_answers_fail_each_in_its_way(
    subjects: Any, sandbox: Sandbox, problems: dict[str, str], dictate: Dictate
) -> None:
    bodies = [
        "return x",
        "return undefined",
        "return x +",
        "",
        "raise SystemExit",
        "import os; os._exit(0)",
    ]
    subject = subjects.of()
    dictate("humaneval", subject, problems, lambda example: bodies[int(example.id[-1])])
    [result] = evaluate_tasks(subject, [load_task("humaneval")], paths=problems, sandbox=sandbox)
    # Adding 0 is what the first one does: it passes.
    assert [record["status"] == "passed" for record in result.records] == [True] + [False] * 5
    assert result.errors["error: NameError"] == 1
    assert result.errors["error: SyntaxError"] == 1
    assert result.errors["empty"] == 1
    assert sum(result.errors.values()) == 5
    assert _passed(result) == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("name", "file", "is_tuned"),
    [
        ("humaneval", "human_eval/HumanEval.jsonl.gz", True),
        ("humaneval", "human_eval/HumanEval.jsonl.gz", False),
        ("mbpp", "mbpp/mbpp.jsonl", False),
        ("mbpp-sanitized", "mbpp/sanitized-mbpp.json", True),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:.*invalid escape sequence"
)  # in the published reference of MBPP 73
def test_published_solutions_pass_on_the_way_that_answers_go(
    subjects: Any,
    sandbox: Sandbox,
    dictate: Dictate,
    shared_data: Path,
    name: str,
    file: str,
    is_tuned: bool,
) -> None:
    """A few of each, evenly spread; the byte tokenizer makes long prompts of them."""
    paths = {name: str(shared_data / file)}
    subject = subjects.of(context=8192, is_tuned=is_tuned)
    written = "canonical_solution" if name == "humaneval" else "code"
    ending = "" if name == "humaneval" or is_tuned else "\n[DONE]"
    dictate(name, subject, paths, lambda example: f"{example.row[written]}{ending}", most=7)
    task = load_task(name, ["sampling.max_new_tokens=2000"])
    [result] = evaluate_tasks(subject, [task], paths=paths, max_examples=7, sandbox=sandbox)
    assert (_passed(result), len(result.records), result.errors) == (1.0, 7, {})


SUMS = [
    ["What are 2 h in min?", 120.0],
    ["What are 5 km in m?", 5000.0],
    ["What are 3 ft in in?", 36],
    ["What are 2 d in h?", 48],
    ["0 m in cm?", 0],
]
SAID = [
    "2 h = <answer>120</answer>",
    "<answer>5100</answer>",
    "It takes <answer>about</answer>",
    "No idea.",
    "<answer>0</answer>",
]


@pytest.fixture
def sums(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "sums.json"
    path.write_text(json.dumps(SUMS))
    return {"unit-conversion-guide": str(path)}


@pytest.mark.parametrize("is_tuned", [True, False])
def test_answers_in_words_are_read_and_held_against_the_reference(
    subjects: Any, sums: dict[str, str], dictate: Dictate, tmp_path: Path, is_tuned: bool
) -> None:
    """Without a sandbox. An untuned model goes on with a question of its own, which is cut off."""
    subject = subjects.of(is_tuned=is_tuned, context=4096)
    more = "" if is_tuned else "\n\nQuestion: And 3 h?\nAnswer: <answer>120</answer>"
    dictate(
        "unit-conversion-guide",
        subject,
        sums,
        lambda example: SAID[example.row["row_number"] - 1] + more,
    )
    [result] = evaluate_tasks(subject, [load_task("unit-conversion-guide")], paths=sums)
    assert {name: result.metrics[name].value for name in ("accuracy", "answer_rate")} == {
        "accuracy": 0.4,
        "answer_rate": 0.6,
    }
    assert result.prompt == ("template" if is_tuned else "few-shot 4")
    assert [record["status"] for record in result.records] == [
        "correct",
        "wrong",
        "unparsed",
        "unparsed",
        "correct",
    ]
    assert [record.get("value") for record in result.records] == [120, 5100, None, None, 0]
    assert result.errors.pop("wrong") == 1
    assert "unparsed: no final answer" in result.errors
    assert sum(result.errors.values()) == 2
    assert all(error.startswith("unparsed: ") for error in result.errors)
    result.write(tmp_path)
    told = json.loads((tmp_path / "unit-conversion-guide.json").read_text())
    assert (told["verifier"], told["data"]) == ("number", sums["unit-conversion-guide"])
    assert "isolation" not in told


def test_the_guides_count_is_told_beside_ours_on_the_same_answers(
    subjects: Any, sums: dict[str, str], dictate: Dictate, tmp_path: Path
) -> None:
    """The guide cannot count a reference of 0."""
    path = tmp_path / "sums.json"
    path.write_text(json.dumps(SUMS[:4]))
    subject = subjects.of()
    dictate(
        "unit-conversion-guide", subject, sums, lambda example: SAID[example.row["row_number"] - 1]
    )
    strict, loose = evaluate_tasks(
        subject,
        [load_task(f"unit-conversion-guide{end}") for end in ("", "-5-percent")],
        paths=sums,
    )
    assert [record["completion"] for record in strict.records] == [
        record["completion"] for record in loose.records
    ]
    assert [result.metrics["accuracy"].value for result in (strict, loose)] == [0.25, 0.5]


def test_scores_are_told_by_type_of_question_too(subjects: Any, dictate: Dictate) -> None:
    """Right on questions of one type, silent on the others."""
    subject, task = subjects.of(), load_task("unit-conversion")
    kinds = sorted({example.kind for example in load_examples(task, paths={}, own={}).scored})
    dictate(
        "unit-conversion",
        subject,
        {},
        lambda example: f"<answer>{example.reference}</answer>" if example.kind == kinds[0] else "",
        most=30,
    )
    [result] = evaluate_tasks(subject, [task], max_examples=30)
    assert {name for name in result.metrics if name.startswith("accuracy")} == {
        "accuracy",
        *(f"accuracy[{kind}]" for kind in kinds),
    }
    assert [result.metrics[f"answer_rate[{kind}]"].value for kind in kinds] == [
        1,
        *[0] * (len(kinds) - 1),
    ]
    assert (
        sum(result.metrics[f"accuracy[{kind}]"].n for kind in kinds)
        == result.metrics["accuracy"].n
        == 30
    )
    assert not any(name.startswith("length[") for name in result.metrics)
    assert {record["kind"] for record in result.records} == set(kinds)
    assert not any("[" in name for name in result.records[0]["scores"])


def test_samples_of_a_question_are_judged_one_by_one(
    subjects: Any, sums: dict[str, str], dictate: Dictate
) -> None:
    task = load_task("unit-conversion-guide", ["sampling.samples=4", "sampling.temperature=0.8"])
    subject = subjects.of()
    dictate(
        "unit-conversion-guide", subject, sums, lambda example: SAID[example.row["row_number"] - 1]
    )
    [result] = evaluate_tasks(subject, [task], paths=sums)
    assert result.metrics.keys() >= {"accuracy", "pass@2", "pass@4", "majority@4"}
    assert [len(record["samples"]) for record in result.records] == [4] * 5
    assert result.records[0]["samples"][3]["value"] == 120


def test_a_reference_that_nothing_can_be_held_against_is_told_before_anything_is_asked(
    subjects: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(task_run, "write_answers", lambda *_, **__: pytest.fail("it was asked"))
    path = tmp_path / "sums.json"
    path.write_text(json.dumps([*SUMS, ["What are 2 moons in days?", "many"]]))
    with refuses(DataError, names=["sums.json"]):
        evaluate_tasks(
            subjects.of(),
            [load_task("unit-conversion-guide")],
            paths={"unit-conversion-guide": str(path)},
        )


def test_tasks_that_ask_the_same_are_asked_once(
    subjects: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    write = task_run.write_answers
    monkeypatch.setattr(
        task_run,
        "write_answers",
        lambda *arguments, **options: calls.append(1) or write(*arguments, **options),
    )
    limit = ["sampling.max_new_tokens=20"]
    tasks = [load_task(name, limit) for name in ("code-syntax", "code-bleu")]
    syntax, bleu = evaluate_tasks(subjects.of(), tasks, own=OWN)
    assert len(calls) == 1
    assert [record["completion"] for record in syntax.records] == [
        record["completion"] for record in bleu.records
    ]
    assert syntax.metrics.keys() == {"syntax", "length", "unended"}
    assert bleu.metrics.keys() == {"bleu", "corpus_bleu"}


@pytest.mark.parametrize("is_tuned", [True, False])
def test_a_model_with_random_weights_gets_a_whole_result(
    subjects: Any, tmp_path: Path, is_tuned: bool
) -> None:
    """Nothing is dictated here: the engine writes."""
    [result] = evaluate_tasks(
        subjects.of(is_tuned=is_tuned),
        [load_task("code-syntax", ["sampling.max_new_tokens=20"])],
        own=OWN,
        max_examples=4,
    )
    result.write(tmp_path / "evaluations")
    told = json.loads((tmp_path / "evaluations" / "code-syntax.json").read_text())
    records = [
        json.loads(line)
        for line in (tmp_path / "evaluations" / "code-syntax.jsonl").read_text().splitlines()
    ]
    assert told["task"] == "code-syntax"
    assert told["version"] == 1
    assert told["prompt"] == ("template" if is_tuned else "few-shot 2")
    assert told["n"] == len(records) == 4
    assert told["metrics"]["syntax"].keys() == {"value", "interval", "interval_method", "n", "unit"}
    assert told["tokens"] == sum(record["tokens"] for record in records)
    begun = ["4 of 4 answers are begun with `x =`, as all solved examples before them begin"] * (
        not is_tuned
    )
    assert told["notes"] == ["4 of 5 examples, evenly spread", *begun]
    assert sum(told["errors"].values()) == sum(not record["scores"]["syntax"] for record in records)
    assert records[0].keys() >= {
        "id",
        "prompt",
        "completion",
        "extracted",
        "reference",
        "finish",
        "scores",
        "error",
    }
    assert "isolation" not in told
    result.write(tmp_path / "evaluations")
    assert len(list((tmp_path / "evaluations").iterdir())) == 2


def test_answers_that_run_in_a_loop_are_counted(
    subjects: Any,
    sums: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    said = [("1 + 1 = 2. " * 20, "length"), ("2 + 2", "loop"), ("A long answer", "length")]

    def write_answers(_: Any, prompts: list[list[int]], *__: Any, **___: Any) -> Any:
        answers = [*said, *[("Done", "end_of_text")] * len(prompts)]
        return [[WrittenAnswer(*each, 3)] for _, each in zip(prompts, answers, strict=False)]

    monkeypatch.setattr(task_run, "write_answers", write_answers)
    task = load_task("unit-conversion-guide")
    [result] = evaluate_tasks(subjects.of(), [task], paths=sums)
    assert result.facts["notes"][-1] == snapshot
    assert result.records[1]["finish"] == "loop"


def test_a_result_is_kept_before_the_next_task_can_fail(
    subjects: Any, problems: dict[str, str], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> list[ProgramResult]:
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox, "run_all", broken)
    kept: list[TaskResult] = []
    tasks = [load_task(name, ["sampling.max_new_tokens=5"]) for name in ("bleu", "humaneval")]
    with pytest.raises(KeyboardInterrupt):
        evaluate_tasks(
            subjects.of(), tasks, own=OWN, paths=problems, sandbox=sandbox, keep=kept.append
        )
    assert [result.task.name for result in kept] == ["bleu"]


def test_with_several_samples_an_example_has_their_mean_and_all_of_them(
    subjects: Any, sandbox: Sandbox, problems: dict[str, str]
) -> None:
    task = load_task(
        "humaneval",
        ["sampling.samples=3", "sampling.temperature=1.0", "sampling.max_new_tokens=10"],
    )
    [result] = evaluate_tasks(
        subjects.of(), [task], paths=problems, max_examples=2, sandbox=sandbox
    )
    assert [len(record["samples"]) for record in result.records] == [3, 3]
    assert result.records[0]["completion"] == result.records[0]["samples"][0]["completion"]
    assert result.records[0]["scores"]["pass@1"] == 0
    assert result.metrics.keys() >= {"pass@1", "pass@2"}
    assert sum(result.errors.values()) == 6
    assert result.to_json()["samples"] == 3


def test_programs_that_the_machine_was_too_busy_to_judge_are_left_out_not_failed(
    subjects: Any,
    sandbox: Sandbox,
    problems: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    def run_all(
        programs: list[Any], progress: Callable[[int, ProgramResult], None]
    ) -> list[ProgramResult]:
        results = [
            ProgramResult("timeout", "", 1.0, "", sandbox.level, overloaded=place == 0)
            for place in range(len(programs))
        ]
        for place, result in enumerate(results):
            progress(place, result)
        return results

    monkeypatch.setattr(sandbox, "run_all", run_all)
    told: list[tuple[str, int, int | None]] = []
    task = load_task("humaneval", ["sampling.max_new_tokens=5"])
    [result] = evaluate_tasks(
        subjects.of(),
        [task],
        paths=problems,
        sandbox=sandbox,
        progress=lambda *values: told.append(values),
    )
    assert len(result.records) == 5
    assert result.errors == {"timeout": 5}
    assert result.facts["notes"] == snapshot
    assert told[-1] == ("verify", 6, 6)


def test_where_no_prompt_fits_the_result_says_so_and_has_no_values(
    subjects: Any, snapshot: SnapshotAssertion
) -> None:
    [result] = evaluate_tasks(subjects.of(context=4), [load_task("code-bleu")], own=OWN)
    told = result.to_json()
    assert (told["n"], told["skipped"], told["metrics"]["bleu"]["value"]) == (0, 5, None)
    assert told["notes"] == snapshot


@pytest.mark.parametrize(
    ("tasks", "error"),
    [
        (["bleu", "humaneval"], RequestError),
        (["bleu"], RequestError),
    ],
)
def test_what_is_missing_is_said_before_anything_is_written(
    subjects: Any,
    problems: dict[str, str],
    tasks: list[str],
    error: type[BrimfulError],
    refuses: Refuses,
) -> None:
    with refuses(error):
        evaluate_tasks(subjects.of(), [load_task(name) for name in tasks], paths=problems)


def test_data_of_every_task_are_read_before_the_first_is_asked(
    subjects: Any,
    sandbox: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    monkeypatch.setattr(task_run, "write_answers", lambda *_, **__: pytest.fail("it was asked"))
    tasks = [load_task("code-bleu"), load_task("mbpp")]
    with refuses(DataError):
        evaluate_tasks(
            subjects.of(),
            tasks,
            own=OWN,
            paths={"mbpp": str(tmp_path / "nothing.jsonl")},
            sandbox=sandbox,
        )


def test_columns_that_a_later_tasks_prompt_lacks_are_told_before_the_first_is_asked(
    subjects: Any,
    sandbox: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    """Such as the sanitized file of MBPP, which has `prompt` in place of `text`."""
    monkeypatch.setattr(task_run, "write_answers", lambda *_, **__: pytest.fail("it was asked"))
    path = tmp_path / "sanitized.jsonl"
    path.write_text(
        json.dumps({"task_id": 11, "prompt": "Add.", "code": "x = 1", "test_list": ["assert x"]})
    )
    with refuses(DataError, names=["'text'", "sanitized.jsonl:1"]):
        evaluate_tasks(
            subjects.of(),
            [load_task("code-bleu"), load_task("mbpp")],
            own=OWN,
            paths={"mbpp": str(path)},
            sandbox=sandbox,
        )


def test_problems_without_tests_are_refused_before_the_first_is_asked(
    subjects: Any,
    sandbox: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    monkeypatch.setattr(task_run, "write_answers", lambda *_, **__: pytest.fail("it was asked"))
    path = tmp_path / "problems.jsonl"
    path.write_text(
        "".join(
            json.dumps({key: problem[key] for key in problem if key != "test"}) + "\n"
            for problem in PROBLEMS
        )
    )
    with refuses(DataError, names=["problems.jsonl", "task_id"]):
        evaluate_tasks(
            subjects.of(), [load_task("humaneval")], paths={"humaneval": str(path)}, sandbox=sandbox
        )


def test_of_two_ways_to_ask_the_better_one_counts_and_both_are_told(
    subjects: Any,
    sums: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    """The model answers right where its prompt is text to continue, and nothing elsewhere."""
    subject = subjects.of(is_tuned=False, ways=("chat", "plain"))
    task = load_task("unit-conversion-guide", ["plain.shots=0"])
    examples = load_examples(task, paths=sums, own={})
    plain = questions_for(task, examples, subject, "plain")
    right = {tuple(each.ids): f"#### {each.example.reference}" for each in plain.asked}

    def write_answers(_: Any, prompts: list[list[int]], *__: Any, **___: Any) -> Any:
        return [[WrittenAnswer(right.get(tuple(ids), "?"), "stop", 3)] for ids in prompts]

    monkeypatch.setattr(task_run, "write_answers", write_answers)
    [result] = evaluate_tasks(subject, [task], paths=sums)
    assert result.prompt == "plain"
    assert result.metrics["accuracy"].value == 1
    assert result.facts["asked"] == {"template": 0.0, "plain": 1.0}
    assert result.facts["notes"][-1] == snapshot
