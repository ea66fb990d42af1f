"""What a model writes, and tasks that a recipe or a command names, do nothing through the verbs."""

import json
import os
import sys
from pathlib import Path

import pytest
from command_line import Brimful

from terminal import on_terminal

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m "
"""Sets the title of a terminal, clears its screen, writes in red."""
RECIPE = """\
name: hostile
sequence_length: 32
batch: {sequences: 8}
training: {steps: 60}
model: {architecture: llama, layers: 1, heads: 2, width: 32}
tokenizer: {kind: character}
data: {path: corpus.txt, validation: 0.2}
optimizer: {learning_rate: 1.0e-2, warmup: 2}
sample: {prompt: "owned", tokens: 40, temperature: 0.0}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
"""
ROUNDS = """\
name: rounds
method: sft
model: runs/hostile/model
sequence_length: 32
batch: {sequences: 4}
training: {steps: 2}
data: {path: examples.jsonl, validation: 0.2, long_documents: drop}
optimizer: {learning_rate: 1.0e-3}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
rft:
  questions: {path: questions.jsonl}
  verifier: regex
  samples_per_prompt: 2
  keep_per_prompt: 1
  max_new_tokens: 24
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe of a model that learns to write what moves terminals."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    (tmp_path / "corpus.txt").write_text((ESCAPES * 40 + "\n") * 40, encoding="utf-8")
    (tmp_path / "hostile.yaml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "rounds.yaml").write_text(ROUNDS, encoding="utf-8")
    rows: dict[str, list[dict[str, str]]] = {
        "questions": [{"question": "owned", "answer": "(?s).*", "kind": ESCAPES}],
        "examples": [{"prompt": "owned"[:n], "completion": f"{ESCAPES}{n}"} for n in range(1, 20)],
    }
    for name, each in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, each)), encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.long
def test_what_a_model_writes_moves_no_terminal(hostile: Path) -> None:
    """The sample of `train`, answers of `generate`, one, several and in conversation, `report`, and
    `sample`, which names an answer that it cannot keep and a kind of question.
    """
    greedy = "--temperature=0 --tokens=40"
    for command in (
        "train hostile.yaml",
        f"generate hostile --prompt owned {greedy}",
        f"generate hostile --prompt owned --samples 2 {greedy}",
        f"generate hostile {greedy}",
        "report hostile",
        "sample rounds.yaml",
    ):
        asked = f"{sys.executable} -m brimful {command}"
        printed, ended, _ = on_terminal(rf"printf 'owned\n\n' | {asked}", hostile, os.environ)
        assert ended == (2 if "sample" in command.split() else 0), printed
        assert "\x1b]" not in printed, command
        assert not {"\x07", "\x9b"} & {*printed}, command
        assert "\x1b[2J" not in printed, command
        assert "report" in command or r"\x1b]0;owned\x07" in printed, command
    sample = (hostile / "runs" / "hostile" / "samples.jsonl").read_text(encoding="utf-8")
    assert ESCAPES in json.loads(sample.splitlines()[0])["completion"]


@pytest.mark.parametrize("named_by", ["recipe", "command"])
def test_no_task_file_runs_code_whoever_names_it(
    named_by: str, hostile: Path, brimful: Brimful
) -> None:
    ran = hostile / "ran"
    (hostile / "utils.py").write_text(f"open({str(ran)!r}, 'w')\n", encoding="utf-8")
    (hostile / "task.yaml").write_text("task: t\ndoc_to_text: !function utils.f\n")
    if named_by == "recipe":
        said = brimful("run", "hostile.yaml", 'evaluation.tasks=["lm-eval:task.yaml"]')
    else:
        brimful("train", "hostile.yaml", "training.steps=1")
        said = brimful("evaluate", "hostile", "lm-eval:task.yaml")
    assert said.code == 2
    assert "has no task" in said.err or "lm_eval" in said.err
    assert not ran.exists()


FOREIGN = {
    "version": 3,
    "name": "web",
    "packages": {"": {}},
    "sources": ["a.ts"],
    "splits": {"train": {"num_examples": 5}},
    "choices": [],
    "loss": 0.1,
    "state": "ok",
}
"""An object with keys of npm, of a source map and of a data set of the hub."""


def test_json_of_another_program_is_told_and_the_advice_brings_the_file_back(
    hostile: Path, brimful: Brimful
) -> None:
    command = ("run", "hostile.yaml", "training.steps=2", "run.mirror=mirror")
    assert brimful(*command).code == 0
    run = hostile / "runs" / "hostile"
    for name in ("plan.json", "data.json", "environment.json", "scores.json", "mirror.json"):
        before = json.loads((run / name).read_text(encoding="utf-8"))
        (run / name).write_text(json.dumps(FOREIGN), encoding="utf-8")
        told = brimful("report", "hostile")
        assert (told.code, f"{name} holds something else" in told.err) == (0, True), told.err
        if name != "scores.json":
            assert f"{name} holds something else" in brimful("runs").out
        for advised in (command, ("evaluate", "hostile")):
            assert brimful(*advised).code == 0
        after = json.loads((run / name).read_text(encoding="utf-8"))
        assert after.keys() == before.keys(), name
        assert name not in brimful("report", "hostile").err


def test_a_value_that_was_edited_on_purpose_is_told(hostile: Path, brimful: Brimful) -> None:
    brimful("run", "hostile.yaml", "training.steps=1")
    path = hostile / "runs" / "hostile" / "scores.json"
    scores = json.loads(path.read_text(encoding="utf-8"))
    scores["validation"]["loss"] = 0.5
    path.write_text(json.dumps(scores), encoding="utf-8")
    refused = brimful("report", "hostile")
    assert "remove its entry 'checksum'" in refused.err

    del scores["checksum"]
    path.write_text(json.dumps(scores), encoding="utf-8")
    told = brimful("report", "hostile")
    assert "scores.json has no checksum" in told.err
    assert "remove" not in told.err


def test_a_status_that_is_of_another_kind_is_told(hostile: Path, brimful: Brimful) -> None:
    brimful("train", "hostile.yaml", "training.steps=1")
    (hostile / "runs" / "hostile" / "run.json").write_text("[1]")
    said = brimful("train", "hostile.yaml", "training.steps=1")
    assert said.code == 0, said.err
    assert "run.json cannot be read as JSON: it is no object" in said.out
