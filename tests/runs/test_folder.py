"""A run folder is read whole, whatever is missing or damaged in it."""

import copy
import json
from pathlib import Path

import pytest
from fixture_types import MakeRun, Refuses
from run_records import measured_step as step
from run_records import start
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.runs.facts import ModelSection
from brimful.runs.folder import read_run
from brimful.runs.measurements import measured


def test_a_run_counts_as_finished_only_when_its_last_session_says_so(new_run: MakeRun) -> None:
    interrupted = {"kind": "end", "step": 2, "seconds": 1.0, "reason": "interrupted"}
    finished = {"kind": "end", "step": 4, "seconds": 1.0, "reason": "finished"}
    cases = {
        "a": [start(0), step(2, 0.0), interrupted],
        "b": [start(0), step(2, 0.0)],
        "c": [start(0), interrupted, start(2), step(3, 0.0)],
    }
    assert not any(
        read_run(new_run(name, metrics=records)).is_finished for name, records in cases.items()
    )
    assert read_run(
        new_run("d", metrics=[start(0), interrupted, start(2), step(4, 0.0), finished])
    ).is_finished


@pytest.mark.parametrize("content", [b"{", b"[1, 2]", b"\xff\xfe\x00", b"", b"null"])
@pytest.mark.parametrize(
    "name", ["plan.json", "environment.json", "data.json", "scores.json", "recipe.yaml"]
)
def test_an_unreadable_file_is_named_like_a_missing_one(
    new_run: MakeRun, name: str, content: bytes
) -> None:
    folder = new_run()
    (folder / name).write_bytes(content)
    assert name in read_run(folder).problems


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RunFolderError):
        read_run(tmp_path)
    with refuses(RunFolderError):
        read_run(tmp_path / "nothing")


def test_a_whole_run_is_typed(new_run: MakeRun) -> None:
    run = read_run(new_run())
    assert (run.name, run.kind.name, run.is_tuned, run.is_finished) == (
        "quickstart",
        "documents",
        False,
        True,
    )
    assert run.recipe.data.path == ("builtin:python-docs", "builtin:python-code")
    assert isinstance(run.recipe.model, ModelSection)
    assert (run.recipe.model.architecture, run.recipe.model.layers) == ("llama", 4)
    assert run.environment.device.name == "AMD EPYC 9R14"
    assert run.environment.packages["torch"] == "2.13.0+cpu"
    assert list(run.data.splits) == ["validation", "train"]
    assert run.data.splits["train"].documents == 4210
    assert set(run.data.leakage) == {"train", "validation"}
    assert run.data.sources[0].description.startswith("python-docs: ")
    assert run.samples[0].seed == 1234
    assert len(run.steps) == 500
    assert len(run.evaluations) == len(run.checkpoints) == 10
    assert run.end is not None
    assert (run.end.reason, run.total_steps, run.last_step) == ("finished", 500, 500)
    assert run.predicted("step_time_s") == 0.31
    assert run.predicted("parameters") == 3_672_320
    assert run.predicted_interval("step_time_s") == (0.26, 0.38)
    assert run.predicted_interval("evaluation_time_s") is run.predicted("speed") is None
    assert (run.problems, run.tasks.summaries, run.mirror) == ({}, {}, None)


@pytest.mark.parametrize(
    ("recipe", "kind", "is_tuned"),
    [
        ("method: pretrain\n", "documents", False),
        ("method: mlm\n", "masked", False),
        ("method: sft\nmodel: org/model\n", "examples", True),
        ("method: classify\nmodel: org/model\n", "labels", True),
    ],
)
def test_the_kind_of_a_run_is_known_before_it_is_scored(
    new_run: MakeRun, recipe: str, kind: str, is_tuned: bool
) -> None:
    run = read_run(new_run(recipe=recipe, last_step=1))
    assert (run.kind.name, run.is_tuned) == (kind, is_tuned)


def test_a_half_written_run_opens(new_run: MakeRun, snapshot: SnapshotAssertion) -> None:
    folder = new_run(last_step=3, plan=None, data=None, environment=None, recipe=None)
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as journal:
        journal.write('{"kind": "step", "step": 4, "lo')
    run = read_run(folder)
    assert (run.plan, run.end, run.is_finished, run.last_step) == (None, None, False, 3)
    assert "plan.json" in run.problems
    assert run.problems["metrics.jsonl"] == snapshot


def test_values_of_a_wrong_kind_are_passed_over(new_run: MakeRun) -> None:
    run = read_run(
        new_run(
            plan={"predicted": [1], "choices": {"a": 1}, "device": 3, "micro_batch": "4"},
            data={"splits": 3, "tokenizer": None, "duplicates": [], "base": "model"},
            environment={"packages": [], "device": None, "command": {}},
            scores={"validation": 2, "test": {"loss": None, "baselines": []}, "layers": 1},
            metrics=[{"kind": "step", "step": "2", "loss": "low"}, {"kind": ["end"]}, {}],
            samples=[{"prompt": 3, "tokens": "many"}],
            recipe="data: 3\nrun: null\nmodel: {layers: many}\nevaluation: {tasks: [1, {}]}\n",
        )
    )
    assert run.plan is not None
    assert (run.plan.predicted, run.plan.choices, run.plan.micro_batches) == ({}, (), ())
    assert (run.data.splits, run.data.base, run.data.duplicates.examples) == ({}, None, ())
    assert (run.environment.command, run.environment.device.name) == ("", "")
    assert list(run.scores.likelihood) == ["test"]
    assert run.scores.likelihood["test"].loss is run.scores.layers.tokens is None
    assert (run.steps[0].step, run.steps[0].loss, run.end) == (0, None, None)
    assert run.samples[0].prompt == "3"
    assert run.recipe.evaluation.tasks == ("1",)


def test_reading_what_was_measured_changes_nothing(new_run: MakeRun) -> None:
    run = read_run(new_run())
    before = copy.deepcopy(run)
    measured(run)
    assert run == before


def test_the_evaluations_of_a_run_come_in_the_order_of_its_recipe(new_run: MakeRun) -> None:
    folder = new_run(recipe="evaluation: {tasks: [later, earlier]}\n")
    (folder / "evaluations").mkdir()
    summary = {"metrics": {"pass@1": {"value": 0.5, "interval": [0.4, 0.6], "n": 9}}, "version": 2}
    for task in ("earlier", "later"):
        (folder / "evaluations" / f"{task}.json").write_text(json.dumps(summary))
    (folder / "evaluations" / "later.jsonl").write_text('{"id": 7, "scores": {"pass@1": 1}}\n')
    (folder / "evaluations" / "torn.json").write_text("{")
    (folder / "evaluations" / "empty.json").write_text("{}")

    tasks = read_run(folder).tasks

    assert list(tasks.summaries) == ["later", "earlier"]
    assert tasks.summaries["later"].metrics["pass@1"].interval == (0.4, 0.6)
    assert [(each.id, each.scores) for each in tasks.answers["later"]] == [("7", {"pass@1": 1.0})]
    assert len(tasks.problems) == 2


def test_a_mirror_is_read_when_it_is_asked_for(new_run: MakeRun) -> None:
    folder = new_run()
    (folder / "mirror.json").write_text('{"path": "/copy", "durable_step": 20, "finished": true}')
    mirror = read_run(folder).mirror
    assert mirror is not None
    assert (mirror.path, mirror.durable_step, mirror.finished) == ("/copy", 20, True)


def test_a_damaged_or_lost_mirror_json_of_a_copy_is_told(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    folder = new_run("copy")
    assert "mirror.json" not in read_run(folder).problems

    point = folder / "checkpoints" / "step-00000002"
    point.mkdir(parents=True)
    (point / "POINT.json").write_text("{}")
    assert read_run(folder).problems["mirror.json"] == snapshot
    (folder / "mirror.json").write_text('{"durable_step": 2, "checksum": "mirror.json 0"}')
    assert "damaged" in read_run(folder).problems["mirror.json"]
    (folder / "mirror.json").write_text('{"durable_step": 2}')
    assert "mirror.json" not in read_run(folder).problems
