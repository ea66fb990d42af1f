"""Whole sessions: killed anywhere, a run ends bit for bit where an undisturbed one does; signals,
refusals, the exported model.
"""

import itertools
import json
import os
import shutil
import signal
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import checkpoints_of, newest_of, records_of, train
from fixture_types import Make, MakeRecipe, Refuses
from killed import in_a_child, kill_at
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from brimful.base.env import runs_folder
from brimful.base.errors import (
    BrimfulError,
    CheckpointError,
    Interrupted,
    PlanError,
    RunFolderError,
)
from brimful.base.rundir import Journal, read_journal, read_json
from brimful.base.types import JsonDict
from brimful.chains import pipeline, ranks, run_plan, scoring, training_session
from brimful.data.batches import MicroBatch
from brimful.kinds import documents
from brimful.planning.pinned import save_plans
from brimful.planning.plan import Plan, plan_from_json
from brimful.recipe import Recipe
from brimful.training import loop, session
from brimful.training.checkpoint import CheckpointStore, differences, load
from brimful.training.method import Network, blocks_of, hidden_states_of

TIMING = {
    *("step_time_s", "loader_wait_s", "core_wait_s", "tokens_per_second"),
    *("memory_bytes", "time", "seconds"),
}


def _measurements(folder: Path) -> list[JsonDict]:
    """Step and evaluation records without what a clock measured."""
    records = records_of(folder, "step", "evaluation")
    return [
        {key: value for key, value in record.items() if key not in TIMING} for record in records
    ]


KILL_POINTS = {
    "before the optimizer update of step 5": (loop, "guarded_update", 5),
    "between writing and renaming the second checkpoint": (os, "rename", 2),
    "in the evaluation of step 6": (loop, "_evaluate_if_due", 7),
}


def test_killed_at_any_point_weights_optimizer_and_metrics_end_bit_for_bit_like_an_undisturbed_run(
    tiny: MakeRecipe,
) -> None:
    options = ("checkpoint.every=2", "model.architecture=gpt2", "model.dropout=0.1")
    undisturbed = train(tiny("run.name=undisturbed", *options))
    for number, (target, name, call) in enumerate(KILL_POINTS.values()):
        recipe = tiny(f"run.name=killed{number}", *options)

        def act(
            target: object = target, name: str = name, call: int = call, recipe: Recipe = recipe
        ) -> None:
            kill_at(target, name, call)
            train(recipe)

        assert in_a_child(act) == signal.SIGKILL
        folder = train(recipe)
        assert differences(newest_of(folder), newest_of(undisturbed)) == []
        assert _measurements(folder) == _measurements(undisturbed)
        assert (folder / "model" / "model.safetensors").read_bytes() == (
            undisturbed / "model" / "model.safetensors"
        ).read_bytes()


def _interrupt_at(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, number: int, step: int
) -> Interrupted:
    real, count = loop.guarded_update, 0

    def act(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == step:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "guarded_update", act)
        with pytest.raises(Interrupted) as caught:
            train(recipe)
    return caught.value


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_even_twice_checkpoints_and_says_how_to_continue(
    tiny: MakeRecipe,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    exit_code: int,
    snapshot: SnapshotAssertion,
) -> None:
    error = _interrupt_at(tiny(), monkeypatch, number, step=3)
    assert error.exit_code == exit_code
    assert str(error) == snapshot
    folder = train(tiny())
    undisturbed = train(tiny("run.name=undisturbed"))
    assert differences(newest_of(folder), newest_of(undisturbed)) == []
    assert _measurements(folder) == _measurements(undisturbed)


def test_a_killed_run_goes_on_in_the_loggers_that_the_recipe_names(
    tiny: MakeRecipe, tmp_path: Path
) -> None:
    recipe = tiny("checkpoint.every=2", "run.loggers=[tensorboard]")

    def act() -> None:
        kill_at(loop, "guarded_update", 6)
        train(recipe)

    assert in_a_child(act) == signal.SIGKILL
    folder = train(recipe)
    logged = EventAccumulator(str(folder / "tensorboard"))
    logged.Reload()
    assert [event.step for event in logged.Scalars("train/loss")] == list(range(1, 13))
    silent = train(tiny("run.name=silent", "run.loggers=[]", "training.steps=2"))
    assert not (silent / "tensorboard").exists()


def test_a_finished_run_is_not_trained_again_and_fresh_does_not_replace_it(
    tiny: MakeRecipe, refuses: Refuses
) -> None:
    folder = train(tiny())
    before = (folder / "metrics.jsonl").read_bytes()
    assert pipeline.train(tiny(), Console(file=StringIO())) == pipeline.Run(
        folder, trained_now=False
    )
    assert (folder / "metrics.jsonl").read_bytes() == before
    with refuses(RunFolderError, names=["--fresh", "run.name=tiny-2"]):
        train(tiny(), fresh=True)


def test_fresh_moves_unfinished_work_aside_and_starts_over(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupt_at(tiny(), monkeypatch, signal.SIGINT, step=3)
    folder = train(tiny(), fresh=True)
    aside = list(folder.parent.glob("tiny.replaced-*"))
    assert len(aside) == 1
    assert checkpoints_of(aside[0]).steps() == [3]
    assert [record["step"] for record in _measurements(folder) if "best" not in record] == list(
        range(1, 13)
    )


def test_a_changed_learning_rate_is_refused_with_the_difference_and_applied_when_declared(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    _interrupt_at(tiny(), monkeypatch, signal.SIGINT, step=3)
    changed = tiny("optimizer.learning_rate=2e-2")
    with refuses(
        RunFolderError,
        names=["optimizer.learning_rate: 0.01 -> 0.02", "--accept-change optimizer.learning_rate"],
    ):
        train(changed)
    folder = train(changed, accept=["optimizer.learning_rate"])
    rates = [record["learning_rate"] for record in records_of(folder, "step")]
    assert rates[2] == pytest.approx(0.01)
    assert rates[3] == pytest.approx(0.02)


def test_a_finished_run_goes_on_when_a_longer_training_is_declared(tiny: MakeRecipe) -> None:
    train(tiny())
    folder = train(tiny("training.steps=16"), accept=["training.steps"])
    assert newest_of(folder).step == 16


def test_another_recipe_in_the_same_folder_is_refused_with_what_differs(
    tiny: MakeRecipe, refuses: Refuses
) -> None:
    changes = {
        "tokenizer.vocabulary": 290,
        "data.validation": 0.3,
        "model.width": 64,
        "sequence_length": 16,
    }
    train(tiny())
    for key, value in changes.items():
        with refuses(RunFolderError, names=[key]):
            train(tiny(f"{key}={value}"), accept=[key])


def test_changed_data_is_refused_on_resume(
    tiny: MakeRecipe, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupt_at(tiny(), monkeypatch, signal.SIGINT, step=3)
    corpus.write_text(corpus.read_text() + "# one more\nthe cat sees the tree\n")
    folder = Path(os.environ["BRIMFUL_RUNS"]) / "tiny"
    facts = (folder / "data.json").read_bytes()
    with pytest.raises(RunFolderError, match=r"the data of .* changed since it was trained on"):
        train(tiny())
    assert (folder / "data.json").read_bytes() == facts


def test_a_checkpoint_of_other_data_is_refused_even_when_the_run_folder_does_not_know(
    tiny: MakeRecipe, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupt_at(tiny(), monkeypatch, signal.SIGINT, step=3)
    corpus.write_text(corpus.read_text() + "# one more\nthe cat sees the tree\n")
    (Path(os.environ["BRIMFUL_RUNS"]) / "tiny" / "data.json").unlink()
    monkeypatch.setattr(pipeline, "mend", lambda _folder: [])  # which would bring data.json back
    with pytest.raises(CheckpointError, match="was trained on another data"):
        train(tiny())


def test_a_damaged_newest_checkpoint_is_put_aside_said_and_the_run_ends_the_same(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    recipe = tiny("checkpoint.every=2", "training.steps=12")
    _interrupt_at(recipe, monkeypatch, signal.SIGINT, step=5)
    store = CheckpointStore(Path(os.environ["BRIMFUL_RUNS"]) / "tiny" / "checkpoints", keep=2)
    assert store.steps() == [4, 5]
    weights = store.path_of(5) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    folder = train(recipe)
    messages = [record["message"] for record in records_of(folder, "event")]
    assert any(
        "quarantine (step 5: model.safetensors is damaged" in message for message in messages
    )
    assert messages == snapshot
    assert (
        differences(
            newest_of(folder), newest_of(train(tiny("checkpoint.every=2", "run.name=undisturbed")))
        )
        == []
    )


def test_what_was_trained_loads_with_transformers_auto_classes_and_scores_the_same(
    tiny: MakeRecipe,
) -> None:
    folder = train(tiny())
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder / "model"),
        AutoTokenizer.from_pretrained(folder / "model"),
    )
    ids = torch.tensor([tokenizer.encode("# story 1\nthe cat sees", add_special_tokens=False)])
    assert tokenizer.decode(ids[0]) == "# story 1\nthe cat sees"
    best = (
        newest_of(folder)
        if json.loads((folder / "run.json").read_text())["status"] == "finished"
        else None
    )
    assert best is not None
    torch.testing.assert_close(
        model.get_input_embeddings().weight.detach(),
        best.tensors["model"]["model.embed_tokens.weight"],
    )
    assert model(ids, labels=ids).loss < 6


def test_the_model_exported_is_the_one_with_the_best_validation_loss(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([2.0, 3.0])
    monkeypatch.setattr(documents, "score_split", lambda *_, **__: _Score(next(losses)))
    folder = train(tiny())
    best = load(checkpoints_of(folder).path_of(6))
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert torch.equal(
        model.get_input_embeddings().weight.detach(),
        best.tensors["model"]["model.embed_tokens.weight"],
    )


def test_where_the_best_checkpoint_is_damaged_the_newest_is_exported_and_said(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([2.0, 3.0])
    monkeypatch.setattr(documents, "score_split", lambda *_, **__: _Score(next(losses)))
    recipe = tiny()
    _interrupt_at(recipe, monkeypatch, signal.SIGINT, step=8)
    folder = Path(os.environ["BRIMFUL_RUNS"]) / "tiny"
    (checkpoints_of(folder).path_of(6) / "model.safetensors").unlink()

    train(recipe)

    told = [record["message"] for record in records_of(folder, "event")]
    assert any("quarantine (step 6: model.safetensors is missing" in each for each in told)
    assert any("the model is that of step 12" in each for each in told)
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert torch.equal(
        model.get_input_embeddings().weight.detach(),
        load(checkpoints_of(folder).path_of(12)).tensors["model"]["model.embed_tokens.weight"],
    )


def test_a_run_that_stopped_early_is_finished_and_exports_its_best_model(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([2.0, 3.0])
    monkeypatch.setattr(documents, "score_split", lambda *_, **__: _Score(next(losses)))
    recipe = tiny("training.steps=30", "evaluation.patience=1")

    folder = train(recipe)

    records = list(read_journal(folder / "metrics.jsonl"))
    assert [record["step"] for record in records if record["kind"] == "evaluation"] == [6, 12]
    assert any(
        "stopped early at step 12 of 30" in record["message"]
        for record in records
        if record["kind"] == "event"
    )
    assert read_json(folder / "run.json")["status"] == "finished"
    best = load(checkpoints_of(folder).path_of(6))
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert torch.equal(
        model.get_input_embeddings().weight.detach(),
        best.tensors["model"]["model.embed_tokens.weight"],
    )
    assert train(recipe) == folder


class _Score:
    def __init__(self, loss: float) -> None:
        self._loss = loss
        self.batch_sizes = (1,)

    def to_json(self) -> JsonDict:
        return {"loss": self._loss}


def test_recomputing_activations_changes_nothing_but_memory_and_time(tiny: MakeRecipe) -> None:
    plain, recomputed = train(tiny()), train(tiny("plan.recompute=true", "run.name=recomputed"))
    assert differences(newest_of(plain), newest_of(recomputed)) == []


def test_recomputation_really_runs_each_block_twice(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    real = torch.nn.functional.silu

    def silu(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += torch.is_grad_enabled()
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "silu", silu)
    train(tiny("training.steps=1"))
    once, calls = calls, 0
    train(tiny("training.steps=1", "plan.recompute=true", "run.name=recomputed"))
    assert once > 0
    assert 2 * calls == 3 * once  # the certificate's own pass is not recomputed


def test_a_full_disk_while_checkpointing_stops_with_the_old_checkpoint_intact(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupt_at(tiny("checkpoint.every=2"), monkeypatch, signal.SIGINT, step=3)
    real = shutil.disk_usage
    with monkeypatch.context() as patch:
        patch.setattr(
            shutil,
            "disk_usage",
            lambda path: (
                shutil._ntuple_diskusage(100, 99, 1) if "checkpoints" in str(path) else real(path)
            ),
        )
        with pytest.raises(CheckpointError, match="the checkpoint of step 3 is intact"):
            train(tiny("checkpoint.every=2"))
    assert newest_of(train(tiny("checkpoint.every=2"))).step == 12


def test_a_full_disk_for_the_journal_stops_the_run_which_ends_like_another_once_there_is_room(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, records = Journal.append, itertools.count(1)

    def append(journal: Journal, record: JsonDict) -> None:
        if next(records) > 20:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, journal._file.fileno())
            os.close(full)
        real(journal, record)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", append)
        with pytest.raises(RunFolderError, match="No space left on device"):
            train(tiny("checkpoint.every=2"))
    folder = train(tiny("checkpoint.every=2"))
    undisturbed = train(tiny("run.name=undisturbed", "checkpoint.every=2"))
    assert differences(newest_of(folder), newest_of(undisturbed)) == []
    assert _measurements(folder) == _measurements(undisturbed)


def test_a_disk_without_room_for_the_first_checkpoint_is_told_before_the_first_step(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice works: with room the same command trains to the end."""
    full = shutil._ntuple_diskusage(100, 99, 1)  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: full)
        patch.setattr(loop, "guarded_update", lambda *_: pytest.fail("a step was made"))
        with pytest.raises(CheckpointError, match="first checkpoint would not fit") as error:
            train(tiny())
    assert error.value.exit_code == 2
    assert newest_of(train(tiny())).step == 12


def test_a_second_writer_is_refused_and_told_who_holds_the_run(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    real, refused = loop.guarded_update, []

    def act(*args: Any, **kwargs: Any) -> Any:
        if not refused:
            with refuses(BrimfulError, names=[str(os.getpid())]) as caught:
                train(tiny())
            refused.append(caught.value)
        return real(*args, **kwargs)

    monkeypatch.setattr(loop, "guarded_update", act)
    train(tiny())
    assert refused


def _small_device(monkeypatch: pytest.MonkeyPatch, *, holds: int) -> list[int]:
    """No more than `holds` sequences fit from the third pass on; returns the sizes of all passes,
    also of those that fail.
    """
    real, sizes = session.find_method, []

    def find_method(name: str) -> Any:
        method = real(name)

        def loss_sum(network: Network, micro: MicroBatch) -> torch.Tensor:
            sizes.append(len(micro.inputs_BT))
            if len(sizes) > 2 and len(micro.inputs_BT) > holds:
                raise torch.OutOfMemoryError("CUDA out of memory (for the test)")
            return method.loss_sum(network, micro)

        return replace(method, loss_sum=loss_sum)

    monkeypatch.setattr(session, "find_method", find_method)
    return sizes


def test_a_run_that_runs_out_of_memory_ends_where_another_does_and_keeps_its_plan(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = train(tiny("run.name=undisturbed"))
    sizes = _small_device(monkeypatch, holds=3)
    folder = train(tiny())
    assert sizes == [8, 8, 8, 4, *[2] * 40]
    ours, others = (
        [record["loss"] for record in _measurements(run)] for run in (folder, undisturbed)
    )
    assert ours == pytest.approx(others, rel=1e-5)
    assert [(record["from"], record["to"]) for record in records_of(folder, "out_of_memory")] == [
        ([8], [4, 4]),
        ([4, 4], [2, 2, 2, 2]),
    ]
    assert json.loads((folder / "plan.json").read_text())["micro_batches"] == [8]


@pytest.mark.parametrize("how", ["stopped", "broken"])
def test_a_continued_run_remembers_what_fits_and_tells_it_once(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Stopped: with a checkpoint behind the event. Broken: without, so that the journal is cut back
    to before it.
    """
    with monkeypatch.context() as patch:
        _small_device(patch, holds=4)
        if how == "stopped":
            _interrupt_at(tiny("checkpoint.every=2"), patch, signal.SIGINT, step=4)
        else:
            patch.setattr(loop, "guarded_update", _works_until(4, loop.guarded_update))
            with pytest.raises(ZeroDivisionError):
                train(tiny("checkpoint.every=2"))
    sizes = _small_device(monkeypatch, holds=8)
    folder = train(tiny("checkpoint.every=2"))
    assert set(sizes) == {4}
    assert [(record["step"], record["to"]) for record in records_of(folder, "out_of_memory")] == [
        (3, [4, 4])
    ]


def _works_until(call: int, real: Make) -> Make:
    count = 0

    def act(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return real(*args, **kwargs) if count < call else 1 / 0

    return act


def test_smaller_micro_batches_are_compiled_for_their_shape(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, int]] = []

    def compiled(model: Any, *, shape: tuple[int, int], say: Any, done: Any) -> Any:
        shapes.append(shape)
        return hidden_states_of(model)

    monkeypatch.setattr(session, "compiled", compiled)
    _small_device(monkeypatch, holds=4)
    train(tiny("plan.compile=true", "training.steps=4"))
    assert shapes == [(8, 32), (4, 32)]


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_evaluation_leaves_the_compiled_blocks_alone(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilations: list[str] = []
    part, real = "training", documents.score_split

    def backend(graph: torch.fx.GraphModule, _: object) -> Make:
        compilations.append(part)
        return graph.forward

    def compiled(model: Any, *, shape: tuple[int, int], say: Any, done: Any) -> Any:
        for block in blocks_of(model):
            block.compile(backend=backend, dynamic=False)
        return hidden_states_of(model)

    def score_split(*args: Any, **options: Any) -> Any:
        nonlocal part
        part = "evaluation"
        score = real(*args, **options)
        part = "training"
        return score

    torch.compiler.reset()
    monkeypatch.setattr(session, "compiled", compiled)
    monkeypatch.setattr(documents, "score_split", score_split)
    train(tiny("plan.compile=true"))
    assert set(compilations) == {"training"}


# --- the plan of a continued run


def _plan(folder: Path) -> Plan:
    return plan_from_json(json.loads((folder / "plan.json").read_text()))


def _told(recipe: Recipe, **options: Any) -> tuple[Path, str]:
    """The folder of a training and what it printed."""
    text = StringIO()
    return pipeline.train(recipe, Console(file=text), **options).folder, text.getvalue()


@pytest.mark.parametrize(
    ("change", "keeps"),
    [
        ("evaluation.every=4", True),
        ("sample.tokens=4", True),
        ("plan.margin=tight", False),
        ("plan.micro_batch=4", False),
    ],
)
def test_a_continued_run_plans_anew_only_when_something_that_decides_the_plan_changed(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch, change: str, *, keeps: bool
) -> None:
    _interrupt_at(tiny(), monkeypatch, signal.SIGINT, step=3)
    (path,) = runs_folder().glob("*/plan.json")
    path.write_text(json.dumps(replace(_plan(path.parent), loss_chunk=48).to_json()))

    folder, told = _told(tiny(change))

    assert (_plan(folder).loss_chunk == 48) is keeps
    assert ("goes on by another plan than before (" in told) is not keeps
    if change == "plan.micro_batch=4":
        joined = " ".join(told.split())
        assert "micro_batches 1 of up to 8 -> 2 of up to 4, loss_chunk 48 -> " in joined


def test_a_continued_run_derives_no_plan(tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    _interrupt_at(tiny(), monkeypatch, signal.SIGINT, step=3)
    monkeypatch.setattr(run_plan, "derive", lambda *_: 1 / 0)

    folder, _ = _told(tiny("sample.tokens=4"))

    assert read_json(folder / "run.json")["status"] == "finished"


def test_a_continued_run_is_planned_anew_where_less_memory_is_free_than_it_needs(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupt_at(tiny(), monkeypatch, signal.SIGINT, step=3)
    real = ranks.here
    monkeypatch.setattr(
        ranks, "here", lambda recipe: replace(real(recipe), free_memory_bytes=1 << 20)
    )
    monkeypatch.setattr(run_plan, "derive", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        train(tiny())


def test_a_short_run_scores_what_it_trains_on_and_writes_little(tiny: MakeRecipe) -> None:
    folder, told = _told(tiny("training.steps=1", "sample.tokens=200"))

    journal = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (scored,) = (record for record in journal if record["kind"] == "evaluation")
    (sample,) = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
    assert "short run: evaluations of 8 sequences" in told
    assert (
        scored["tokens"]
        <= 8 * 32
        < read_json(folder / "data.json")["splits"]["validation"]["tokens"]
    )
    assert sample["tokens"] <= 32


@pytest.mark.parametrize("pins", [True, False])
def test_a_run_that_ended_before_it_had_a_plan_goes_on(
    tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, pins: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(training_session, "_write_facts", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tiny())
    save_plans(tmp_path / "saved.json", tiny(), {"": _plan(train(tiny("run.name=other")))})

    _, told = _told(tiny(), plan_file=tmp_path / "saved.json" if pins else None)

    assert "another plan" not in told


def test_a_run_whose_plan_cannot_be_read_is_told_with_its_file(
    tiny: MakeRecipe, refuses: Refuses
) -> None:
    folder = train(tiny())
    (folder / "plan.json").write_text('{"predicted": 1}')
    with refuses(PlanError, names=["plan.json"]):
        scoring.evaluate(folder, Console(file=StringIO()))


class _Slow:
    """The run's sequences; a batch of its first `late` samples takes longer than any step, each
    other one 30 ms.
    """

    def __init__(self, sequences: Any, late: int) -> None:
        self._sequences, self._late = sequences, late

    def batch(self, first_sample: int, count: int) -> Any:
        time.sleep(0.3 if first_sample < self._late else 0.03)
        return self._sequences.batch(first_sample, count)


def test_a_run_whose_batches_come_late_measures_what_more_threads_would_have_made_of_it(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training_session.run_session
    monkeypatch.setattr(
        training_session,
        "run_session",
        lambda setup: real(replace(setup, sequences=_Slow(setup.sequences, late=6 * 8))),
    )
    folder = train(tiny("training.steps=6", "evaluation.every=6"))
    *_, measured, end = read_journal(folder / "metrics.jsonl")

    assert (measured["kind"], measured["loader_workers"], end["kind"]) == ("loader", 1, "end")
    assert measured["seconds_per_batch"]["1"] >= 0.03
    assert [record["kind"] for record in read_journal(folder / "monitor.jsonl")][
        -1
    ] == "monitor_end"


@pytest.mark.parametrize("change", [(), ("plan.loss_chunk=16",)], ids=["same", "planned-anew"])
@pytest.mark.parametrize(
    ("stored", "evaluated"), [(5, [5, 10, 12]), (None, list(range(1, 13)))], ids=["new", "old"]
)
def test_a_run_that_goes_on_evaluates_as_often_as_its_plan_says(
    tiny: MakeRecipe,
    monkeypatch: pytest.MonkeyPatch,
    stored: int | None,
    evaluated: list[int],
    change: tuple[str, ...],
) -> None:
    """A plan of an earlier version does not say it: then there are about ten evaluations."""
    recipe = tiny("evaluation.every=auto")
    _interrupt_at(recipe, monkeypatch, signal.SIGINT, step=1)
    path = pipeline.folder_of(recipe) / "plan.json"
    plan = read_json(path)
    assert plan.pop("evaluate_every") in range(1, 13)
    path.write_text(json.dumps(plan if stored is None else {**plan, "evaluate_every": stored}))

    folder = train(tiny("evaluation.every=auto", *change))

    assert [each["step"] for each in _measurements(folder) if "best" in each] == evaluated


def test_the_interval_changes_when_the_recipe_asks_for_another(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupt_at(tiny("evaluation.every=auto"), monkeypatch, signal.SIGINT, step=1)

    folder = train(tiny("evaluation.every=4"))

    assert [each["step"] for each in _measurements(folder) if "best" in each] == [4, 8, 12]


@pytest.mark.parametrize(("share", "gives_back"), [(0.1, True), (10.0, False)])
def test_memory_held_free_beyond_the_plan_is_given_back_before_the_next_step(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch, share: float, gives_back: bool
) -> None:
    """The process holds ten times, or a tenth of, what its plan says."""
    calls: list[None] = []
    monkeypatch.setattr(
        "brimful.training.session.give_back_free_memory", lambda: calls.append(None)
    )
    monkeypatch.setattr("brimful.training.session.unmapped_bytes", lambda: int(1e9 / share))
    monkeypatch.setattr("brimful.chains.devices.unmapped_bytes", lambda: int(1e9))

    train(tiny("training={steps: 3}"))

    assert len(calls) == (3 if gives_back else 0)
