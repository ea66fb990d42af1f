"""Where a task's questions come from."""

import gzip
import json
from collections import Counter
from pathlib import Path

import datasets
import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError, RequestError
from brimful.base.types import JsonDict
from brimful.data.formats import Example, Message
from brimful.evaluation.task import load_task
from brimful.evaluation.task_data import load_examples

MBPP = [
    {
        "task_id": number,
        "text": f"Task {number}.",
        "code": f"x = {number}",
        "test_list": ["assert True"],
        "test_setup_code": "",
    }
    for number in (1, 2, 3, 4, 11, 12, 510, 511)
]


def _example(prompt: str | None, completion: str) -> Example:
    return Example(prompt, completion, "a row", "")


OWN = {
    "train": [_example(f"Train {number}", f"x = {'1' * number}") for number in range(1, 8)],
    "validation": [
        _example("Ask", "x = 1"),
        _example("SQL", "SELECT a FROM b"),
        _example(None, "x = 3"),
        _example("More", "```\nx = 4\n```"),
    ],
}


def _jsonl(path: Path, rows: list[JsonDict]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["mbpp.jsonl", "mbpp.jsonl.gz"])
def test_a_file_stands_in_for_the_hub(tmp_path: Path, name: str) -> None:
    """Of MBPP 11 to 510 are scored, and 2 to 4 are the solved examples."""
    path = _jsonl(tmp_path / name, MBPP)
    found = load_examples(load_task("mbpp"), paths={"mbpp": str(path)}, own={})
    assert [example.id for example in found.scored] == ["11", "12", "510"]
    assert [shot["task_id"] for shot in found.shots] == [2, 3, 4]
    assert found.scored[0].reference == "x = 11"
    assert found.source == str(path)


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    path = _jsonl(
        tmp_path / "s.jsonl",
        [{"prompt" if key == "text" else key: value for key, value in row.items()} for row in MBPP],
    )
    found = load_examples(load_task("mbpp-sanitized"), paths={"mbpp-sanitized": str(path)}, own={})
    assert found.scored[0].row["text"] == "Task 11."


@pytest.mark.parametrize(
    "content",
    [
        None,
        '{"a": 1}\n',
        '{"task_id": 20, "code": "x"}',
        "{",
    ],
)
def test_wrong_data_are_one_clear_error(
    tmp_path: Path, content: str | None, refuses: Refuses
) -> None:
    path = tmp_path / "t.jsonl"
    if content is not None:
        path.write_text(content)
    with refuses(DataError):
        load_examples(load_task("mbpp", ["id='{{ text }}'"]), paths={"mbpp": str(path)}, own={})


def test_two_rows_of_one_name_are_refused(tmp_path: Path, refuses: Refuses) -> None:
    """As in two files put into one: runs are compared by the names of examples."""
    path = _jsonl(tmp_path / "t.jsonl", [*MBPP, MBPP[5]])
    with refuses(DataError, names=["t.jsonl:9", "12", "t.jsonl:6"]):
        load_examples(load_task("mbpp"), paths={"mbpp": str(path)}, own={})


def test_a_file_of_an_unknown_kind_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "x.bin").write_text("x")
    with refuses(DataError):
        load_examples(load_task("mbpp"), paths={"mbpp": str(tmp_path / "x.bin")}, own={})


def test_the_hub_is_asked_for_the_tasks_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*arguments: str, split: str) -> list[JsonDict]:
        asked.append((*arguments, split))
        return [row for row in MBPP if (row["task_id"] < 11) == (split == "prompt")]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = load_examples(load_task("mbpp"), paths={}, own={})
    assert asked == [
        ("google-research-datasets/mbpp", "full", "prompt"),
        ("google-research-datasets/mbpp", "full", "test"),
    ]
    assert ([example.id for example in found.scored], len(found.shots)) == (["11", "12", "510"], 3)
    assert found.scored[0].where == "google-research-datasets/mbpp, split test, row 1"


def test_without_network_the_error_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no network.\ndetails")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with refuses(DataError, names=["openai/openai_humaneval", "evaluation.data='{humaneval"]):
        load_examples(load_task("humaneval"), paths={}, own={})


def test_the_runs_own_examples_are_scored_where_their_answer_is_python(
    snapshot: SnapshotAssertion,
) -> None:
    found = load_examples(load_task("code-syntax"), paths={}, own=OWN)
    assert [example.row["prompt"] for example in found.scored] == ["Ask", "More"]
    assert [example.own_prompt for example in found.scored] == ["Ask", "More"]
    assert found.notes == snapshot


def test_an_examples_name_is_its_place_and_its_content() -> None:
    """Two runs on the same data are compared by it."""
    first, second = (
        load_examples(load_task("code-bleu"), paths={}, own=OWN).scored for _ in range(2)
    )
    other = load_examples(
        load_task("code-bleu"), paths={}, own=OWN | {"validation": [_example("Ask", "x = 2")]}
    ).scored
    assert [example.id for example in first] == [example.id for example in second]
    assert first[0].id.startswith("0-")
    assert first[0].id != other[0].id


def test_solved_examples_are_typical_ones_of_training_and_never_scored() -> None:
    found = load_examples(load_task("code-syntax"), paths={}, own=OWN)
    assert [shot["prompt"] for shot in found.shots] == ["Train 4", "Train 3"]
    leaking = {**OWN, "train": OWN["validation"]}
    assert load_examples(load_task("code-syntax"), paths={}, own=leaking).shots == []


def test_messages_are_kept_for_asking_and_read_as_text() -> None:
    messages = (Message("system", "Be brief."), Message("user", "Ask"))
    [example] = load_examples(
        load_task("code-bleu"),
        paths={},
        own={"validation": [Example(messages, "x = 1", "row 1", "")]},
    ).scored
    assert example.own_prompt == messages
    assert example.row["prompt"] == "system: Be brief.\nAsk"


@pytest.mark.parametrize(
    ("limit", "ids"),
    [
        (1, [0]),
        (2, [0, 2]),
        (3, [0, 1, 2]),
        (4, [0, 1, 2, 3]),
        (9, [0, 1, 2, 3]),
        (None, [0, 1, 2, 3]),
    ],
)
def test_a_limit_takes_examples_that_are_evenly_spread(limit: int | None, ids: list[int]) -> None:
    own = {"validation": [_example(f"Ask {number}", f"x = {number}") for number in range(4)]}
    found = load_examples(load_task("code-bleu"), paths={}, own=own, max_examples=limit)
    assert [int(example.id.partition("-")[0]) for example in found.scored] == ids
    assert any("evenly spread" in note for note in found.notes) == (len(ids) < 4)


@pytest.mark.parametrize(
    ("own", "limit", "said"),
    [
        (
            {},
            None,
            (
                "asks the run's own validation examples, and there are none: it belongs to runs of"
                " method sft"
            ),
        ),
        (
            {"validation": [_example("Ask", "no code")]},
            None,
            "no example is left to score. 1 of 1 validation examples are left out",
        ),
        (OWN, 0, "max_examples must be at least 1, got 0"),
    ],
)
def test_nothing_to_score_is_an_error(
    own: dict[str, list[Example]], limit: int | None, said: str
) -> None:
    with pytest.raises(RequestError) as error:
        load_examples(load_task("code-syntax"), paths={}, own=own, max_examples=limit)
    assert said in str(error.value)


GSM8K = [
    {
        "question": f"How many are {number} and 1?",
        "answer": f"<<{number}+1={number + 1}>>\n#### {number + 1}",
    }
    for number in range(12)
]


def test_a_folder_holds_a_file_for_each_split(tmp_path: Path) -> None:
    """As the hub does: the questions of `test`, the first solved examples of `train`."""
    _jsonl(tmp_path / "test.jsonl", GSM8K[:2])
    _jsonl(tmp_path / "train.jsonl.gz", GSM8K[2:])
    _jsonl(tmp_path / "test_socratic.jsonl", GSM8K)
    found = load_examples(load_task("gsm8k"), paths={"gsm8k": str(tmp_path)}, own={})
    assert [example.reference for example in found.scored] == ["1", "2"]
    assert [shot["question"] for shot in found.shots] == [row["question"] for row in GSM8K[2:10]]
    assert found.scored[1].id.startswith("2-")


def test_a_file_alone_brings_no_solved_examples(tmp_path: Path) -> None:
    path = _jsonl(tmp_path / "test.jsonl", GSM8K)
    found = load_examples(load_task("gsm8k"), paths={"gsm8k": str(path)}, own={})
    assert (len(found.scored), found.shots) == (12, [])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "there is none"),
        (["test.json", "test.jsonl"], r"there is 2 of them \(test\.json, test\.jsonl\)"),
    ],
)
def test_a_folder_without_one_file_for_a_split_is_refused(
    tmp_path: Path, files: list[str], said: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(
        DataError, match=f"task gsm8k reads one file test.jsonl .* of the folder .*; {said}"
    ):
        load_examples(load_task("gsm8k"), paths={"gsm8k": str(tmp_path)}, own={})


def test_built_in_questions_need_no_file_and_have_types() -> None:
    found = load_examples(load_task("unit-conversion"), paths={}, own={})
    assert len({example.id for example in found.scored}) == len(found.scored) >= 300
    assert len({example.kind for example in found.scored}) >= 3
    assert len(found.shots) == 4
    assert not {shot["question"] for shot in found.shots} & {
        example.row["question"] for example in found.scored
    }
    assert "<answer>" in found.shots[0]["reasoning"]
    assert found.source == "built-in unit-conversion, split test"


def test_a_limit_takes_examples_of_every_type() -> None:
    """The types take turns, so every sixth question is of one type."""
    scored = load_examples(load_task("unit-conversion"), paths={}, own={}, max_examples=100).scored
    counts = Counter(example.kind for example in scored)
    assert len(counts) == 3
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("name", ["unit-conversion-guide", "unit-conversion-guide-5-percent"])
def test_the_guides_lists_are_questions_of_either_task(tmp_path: Path, name: str) -> None:
    """A question that stands there twice is asked twice, under names of its own."""
    path = tmp_path / "train.json"
    path.write_text(
        json.dumps(
            [
                ["Express 2 h in min.", 120.0],
                ["Express 2 h in min.", 120.0],
                ["1 m in ft?", 3.280839895013123, "about 3"],
            ]
        )
    )
    found = load_examples(load_task(name), paths={"unit-conversion-guide": str(path)}, own={})
    assert [example.reference for example in found.scored] == [
        "120.0",
        "120.0",
        "3.280839895013123",
    ]
    assert [example.kind for example in found.scored] == ["", "", ""]
    assert len({example.id for example in found.scored}) == 3
    assert len(found.shots) == 4


def test_a_task_that_needs_a_file_says_which(refuses: Refuses) -> None:
    with refuses(
        DataError,
        names=["unit-conversion-guide-5-percent", "evaluation.data='{unit-conversion-guide"],
    ):
        load_examples(load_task("unit-conversion-guide-5-percent"), paths={}, own={})


@pytest.mark.parametrize("row", [["a question alone"], "text", ["q", 1, "r", "x"]])
def test_a_row_that_is_neither_columns_nor_such_a_list_is_named(
    tmp_path: Path, row: object, refuses: Refuses
) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps([["1 m in cm?", 100], row]))
    with refuses(DataError, names=["train.json"]):
        load_examples(
            load_task("unit-conversion-guide"), paths={"unit-conversion-guide": str(path)}, own={}
        )


def test_the_published_problems_of_gsm8k_have_references_that_a_number_can_be_held_against(
    shared_data: Path,
) -> None:
    task = load_task("gsm8k")
    found = load_examples(task, paths={"gsm8k": str(shared_data / "gsm8k")}, own={})
    assert (len(found.scored), len(found.shots)) == (1319, 8)
    assert task.judge is not None
    assert task.judge.verify is not None
    for example in found.scored:
        task.judge.check(example.reference)
        assert task.judge.verify(example.row["answer"], example.reference).is_correct


@pytest.mark.parametrize(("file", "count"), [("train.json", 1000), ("rft_nickctomlin.json", 859)])
def test_the_guides_own_files_are_read_as_they_are(
    shared_data: Path, file: str, count: int
) -> None:
    task = load_task("unit-conversion-guide")
    found = load_examples(
        task, paths={"unit-conversion-guide": str(shared_data / "unit_conversion" / file)}, own={}
    )
    assert len(found.scored) == count
    assert task.judge is not None
    for example in found.scored:
        task.judge.check(example.reference)


@pytest.mark.parametrize(
    ("name", "file", "count", "shots"),
    [
        ("humaneval", "human_eval/HumanEval.jsonl.gz", 164, 0),
        ("mbpp", "mbpp/mbpp.jsonl", 500, 3),
        ("mbpp-sanitized", "mbpp/sanitized-mbpp.json", 257, 3),
    ],
)
def test_the_published_files_hold_as_many_questions_as_published(
    shared_data: Path, name: str, file: str, count: int, shots: int
) -> None:
    found = load_examples(load_task(name), paths={name: str(shared_data / file)}, own={})
    assert (len(found.scored), len(found.shots), len({example.id for example in found.scored})) == (
        count,
        shots,
        count,
    )
