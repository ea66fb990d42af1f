"""The bridge to lm-eval; where the harness is installed, a task of its kind runs through it."""

import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses
from json_lines import write_rows

from brimful.base.errors import RequestError
from brimful.evaluation.lm_eval import evaluate_with_lm_eval

is_installed = importlib.util.find_spec("lm_eval") is not None

TASK = """
task: add_one
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""


def test_without_the_harness_the_error_says_how_to_get_it(
    subjects: Any, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    with refuses(RequestError):
        evaluate_with_lm_eval(subjects.of(), ["hellaswag"])


@pytest.mark.skipif(not is_installed, reason="lm-eval is not installed")
@pytest.mark.filterwarnings("ignore")
def test_a_task_of_the_harness_runs_on_the_model_in_memory(
    subjects: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The harness's own tasks need the network, so its index gets one more.
    tasks = importlib.import_module("lm_eval.tasks")
    index = functools.partial(tasks.TaskManager, include_path=str(tmp_path))
    monkeypatch.setattr(tasks, "TaskManager", index)
    rows = [
        {"q": f"{number} + 1 =", "choices": [f" {number + 1}", f" {number + 2}"], "gold": 0}
        for number in range(12)
    ]
    write_rows(tmp_path / "data.jsonl", rows)
    (tmp_path / "add.yaml").write_text(TASK.replace("DATA", str(tmp_path / "data.jsonl")))
    [told] = evaluate_with_lm_eval(subjects.of(is_tuned=False), ["add_one"], max_examples=8)
    assert (told["task"], told["n"], told["prompt"]) == (
        "lm-eval:add_one",
        8,
        "lm-eval's plain prompt",
    )
    assert 0 <= told["metrics"]["acc"]["value"] <= 1
    assert told["metrics"]["acc"]["n"] == 8
    assert told["notes"][1:] == ["the first 8 of 12 examples"]


@pytest.mark.skipif(not is_installed, reason="lm-eval is not installed")
@pytest.mark.filterwarnings("ignore")
def test_an_unknown_task_of_the_harness_is_named_with_the_nearest(subjects: Any) -> None:
    with pytest.raises(RequestError, match=r"'hellaswg'.*'hellaswag'"):
        evaluate_with_lm_eval(subjects.of(), ["hellaswg"])


@pytest.mark.skipif(not is_installed, reason="lm-eval is not installed")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", ["task.yaml", "", "task"])
def test_a_task_file_is_refused_and_no_code_beside_it_is_run(
    subjects: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "utils.py").write_text(
        f"from pathlib import Path\nPath({str(ran)!r}).touch()\ndef f(doc):\n    return 'q'\n"
    )
    task = TASK.replace("DATA", str(tmp_path / "data.jsonl"))
    (tmp_path / "data.jsonl").write_text('{"q": "1 + 1 =", "choices": ["2", "3"], "gold": 0}\n')
    (tmp_path / "task.yaml").write_text(task.replace('"{{q}}"', "!function utils.f"))
    monkeypatch.chdir(tmp_path)

    for name in (str(tmp_path / place), place or "."):
        with pytest.raises(RequestError, match="has no task"):
            evaluate_with_lm_eval(subjects.of(is_tuned=False), [name])
    assert not ran.exists()
