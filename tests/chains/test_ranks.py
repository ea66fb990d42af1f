"""Whole runs on two ranks: the steps of one process, resumed bit for bit, stopped and refused
together.
"""

import itertools
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import newest_of, records_of, train
from fixture_types import MakeRecipe
from preference_runs import steps_of
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.base.rundir import read_json
from brimful.chains import pipeline, scoring
from brimful.recipe import Recipe, load
from brimful.runs.folder import read_run
from brimful.training import loop
from brimful.training.checkpoint import CheckpointStore, differences
from brimful.training.world import World

Ranks = Callable[..., list[Any]]
RAGGED = ("batch.sequences=7", "plan.micro_batch=2", "training.steps=8", "evaluation.every=4")
"""Seven sequences in micro-batches of two: four and three of them, in passes of 2, 2 and 2, 1."""


def _train(recipe: Recipe, world: World | None = None) -> str:
    several = {} if world is None else {"world": world}
    return str(train(recipe, **several))


def _assert_same_steps(folder: Path, expected: Path, tolerance: float = 1e-5) -> None:
    ours, theirs = steps_of(folder), steps_of(expected)
    assert [each["tokens"] for each in ours] == [each["tokens"] for each in theirs]
    for name in ("loss", "grad_norm"):
        values, others = [each[name] for each in ours], [each[name] for each in theirs]
        assert values == pytest.approx(others, rel=tolerance)


@pytest.fixture
def ragged(tmp_path: Path, tiny: MakeRecipe) -> MakeRecipe:
    """The tiny recipe on documents of very different lengths, one per sequence."""
    words, drawn = ["red", "green", "blue", "cat", "dog", "sees", "tree"], random.Random(0)
    documents = [
        f"# story {number}\n{' '.join(drawn.choices(words, k=drawn.randint(2, 60)))}\n"
        for number in range(60)
    ]
    path = tmp_path / "ragged.txt"
    path.write_text("".join(documents))
    options = (f"data.path={path}", "data.layout=document", "data.long_documents=split")
    return lambda *more: tiny(*options, "tokenizer.vocabulary=280", *RAGGED, *more)


@pytest.fixture
def without_dropout(encoder: Path) -> None:
    """The published encoder drops nothing: which values are dropped depends on the ranks."""
    config = json.loads((encoder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (encoder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def of_method(request: pytest.FixtureRequest, ragged: MakeRecipe, tmp_path: Path) -> MakeRecipe:
    """Makes a recipe of the method that a test asks for."""
    method = request.param
    if method in {"sft", "dpo", "kto"}:
        tuning = request.getfixturevalue("tuning")
        pairs = f"data.path={request.getfixturevalue('pairs_file')}"
        own = [] if method == "sft" else [f"method={method}", pairs]
        return lambda *more: tuning(*RAGGED, *own, *more)
    if method == "mlm":
        return lambda *more: ragged("method=mlm", "model.architecture=modernbert", *more)
    return ragged


@pytest.mark.parametrize("of_method", ["pretrain", "mlm", "sft"], indirect=True)
@pytest.mark.long_but("pretrain")
def test_two_ranks_make_the_steps_of_one_process_on_ragged_data(
    of_method: MakeRecipe, ranks: Ranks
) -> None:
    _assert_two_ranks_are_like_one(of_method, ranks)


@pytest.mark.parametrize(
    ("of_method", "name", "failing"),
    [("dpo", "margin", "accumulate_gradients"), ("kto", "kl", "measured")],
    indirect=["of_method"],
)
@pytest.mark.long_but("dpo-margin-accumulate_gradients")
def test_two_ranks_learn_preferences_like_one_process(
    of_method: MakeRecipe, name: str, failing: str, ranks: Ranks
) -> None:
    """Memory that runs out on one of them halves the micro-batches of both, also where that is
    while they measure a step together.
    """
    alone = Path(_train(of_method("run.name=alone")))
    real, count = getattr(loop, failing), itertools.count(1)

    def short_of_memory(world: World) -> str:
        def act(*args: Any, **options: Any) -> Any:
            if world.rank == 1 and next(count) == 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return real(*args, **options)

        setattr(loop, failing, act)
        return _train(of_method("run.name=short", "plan.spread=replicated"), world)

    (folder, _) = map(Path, ranks(2, short_of_memory))

    _assert_same_steps(folder, alone, 1e-6)
    _assert_same_weights(folder, alone)
    named = [[each["named"][name] for each in steps_of(each)] for each in (folder, alone)]
    assert named[0] == pytest.approx(named[1], rel=1e-3, abs=1e-6)
    assert max(named[1]) > 0
    (record,) = records_of(folder, "out_of_memory")
    assert record["step"] == 3


@pytest.mark.usefixtures("without_dropout")
@pytest.mark.long
def test_two_ranks_train_a_classifier_like_one_process(
    labels_recipe_file: Path, ranks: Ranks
) -> None:
    _assert_two_ranks_are_like_one(
        lambda *more: load(str(labels_recipe_file), [*RAGGED, *more]), ranks
    )


def _assert_same_weights(folder: Path, expected: Path) -> None:
    """Checkpoint and exported model have the same weights, up to rounding."""
    ours, theirs = newest_of(folder).tensors["model"], newest_of(expected).tensors["model"]
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)
    files = [
        sorted(path.name for path in (each / "model").iterdir()) for each in (folder, expected)
    ]
    assert files[0] == files[1]


def _assert_two_ranks_are_like_one(of_method: MakeRecipe, ranks: Ranks) -> None:
    alone = Path(_train(of_method("run.name=alone")))

    for spread in ("replicated", "sharded"):
        recipe = of_method(f"run.name={spread}", f"plan.spread={spread}")
        folders = ranks(2, partial(_train, recipe))
        assert folders == [str(alone.with_name(spread))] * 2
        _assert_same_steps(Path(folders[0]), alone)
        _assert_same_weights(alone.with_name(spread), alone)
    plan = read_json(alone.with_name("sharded") / "plan.json")
    assert (plan["devices"], plan["effective_batch"]) == (
        2,
        read_json(alone / "plan.json")["effective_batch"],
    )
    assert plan["spread"] == "sharded"
    ranks_record = read_run(alone.with_name("sharded")).ranks
    assert ranks_record is not None
    assert [each.rank for each in ranks_record.ranks] == [0, 1]
    assert all(each.communication_s > 0 for each in ranks_record.ranks)
    assert all(each.computing_s > 0 and each.memory_bytes for each in ranks_record.ranks)
    assert read_run(alone).ranks is None
    assert plan["predicted"].keys().isdisjoint({"step_time_s", "peak_memory_bytes"})


@pytest.mark.long
def test_two_machines_that_each_hold_all_parts_make_the_steps_of_one_process(
    ragged: MakeRecipe, ranks: Ranks, snapshot: SnapshotAssertion
) -> None:
    options = ("checkpoint.every=3",)
    alone = Path(_train(ragged("run.name=alone", *options)))
    recipe = ragged("run.name=hybrid", "plan.spread=hybrid", *options)

    ends = ranks(4, partial(_killed_before_step, recipe, 5, 3), machines=2)
    assert ends[3] == signal.SIGKILL
    (folder, *_) = map(Path, ranks(4, partial(_train, recipe), machines=2))

    _assert_same_steps(folder, alone)
    _assert_same_weights(folder, alone)
    plan = read_json(folder / "plan.json")
    assert (plan["devices"], plan["spread"]) == (4, "hybrid")
    assert plan["choices"][-1]["reason"] == snapshot
    checkpoint = max((folder / "checkpoints").glob("step-*"))
    assert len(list(checkpoint.glob("model.part*"))) == 2
    first, second = ranks(2, partial(_train, ragged("run.name=one", "plan.spread=hybrid")))
    assert first == second
    assert (first[0], "there is one machine" in first[1]) == ("PlanError", True)


def _killed_before_step(recipe: Recipe, step: int, rank: int, world: World) -> str:
    """Train; SIGKILL ends one rank when it is about to make its update number `step`."""
    real, count = loop.guarded_update, itertools.count(1)

    def act(*args: Any, **options: Any) -> Any:
        if next(count) == step and world.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    loop.guarded_update = act  # of this process, which ends with the test
    return _train(recipe, world)


@pytest.mark.parametrize("spread", ["replicated", "sharded"])
@pytest.mark.long_but("replicated")
def test_a_run_goes_on_bit_for_bit_after_a_rank_was_killed(
    ragged: MakeRecipe, ranks: Ranks, spread: str
) -> None:
    options = (
        "checkpoint.every=3",
        "model.architecture=gpt2",
        "model.dropout=0.1",
        f"plan.spread={spread}",
    )
    (undisturbed, _) = ranks(
        2, lambda world: _train(ragged("run.name=undisturbed", *options), world)
    )
    for killed in (0, 1):
        recipe = ragged(f"run.name=killed{killed}", *options)
        told = ranks(2, partial(_killed_before_step, recipe, 5, killed))
        assert told[killed] == signal.SIGKILL
        kind, message = told[1 - killed]
        assert kind == "RanksParted"
        assert "continue from the newest checkpoint" in message

        (folder, _) = ranks(2, partial(_train, recipe))

        assert differences(newest_of(Path(folder)), newest_of(Path(undisturbed))) == []


@pytest.mark.long
def test_other_numbers_of_ranks_continue_with_the_same_sequences(
    ragged: MakeRecipe, ranks: Ranks
) -> None:
    alone = Path(_train(ragged("run.name=alone", "checkpoint.every=3")))
    recipe = ragged("run.name=changing", "checkpoint.every=3")
    ranks(2, partial(_killed_before_step, recipe, 5, 1))

    folder = Path(_train(recipe))

    _assert_same_steps(folder, alone, 1e-4)
    in_parts = ragged("run.name=in-parts", "checkpoint.every=3", "plan.spread=sharded")
    ranks(3, partial(_killed_before_step, in_parts, 5, 1))
    (folder, _) = map(Path, ranks(2, partial(_train, in_parts)))
    _assert_same_steps(folder, alone, 1e-4)


@pytest.mark.filterwarnings("ignore")  # peft and bitsandbytes warn about themselves
@pytest.mark.long
def test_a_4_bit_base_in_parts_makes_the_steps_of_one_process_whatever_happens(
    tuning: MakeRecipe, ranks: Ranks, tmp_path: Path
) -> None:
    """Rows of packed weights and scales do not divide among three ranks."""
    options = (*RAGGED, "quantize=nf4", "checkpoint.every=3")

    def in_parts(name: str, *more: str) -> Recipe:
        return tuning(*options, f"run.name={name}", "plan.spread=sharded", *more)

    alone = Path(_train(tuning(*options, "run.name=alone")))

    def undisturbed_then_killed(world: World) -> str:
        _train(in_parts("undisturbed"), world)
        return _killed_before_step(in_parts("killed"), 5, 1, world)

    ends = ranks(3, undisturbed_then_killed)
    assert ends[1] == signal.SIGKILL
    undisturbed, killed = alone.with_name("undisturbed"), alone.with_name("killed")
    shutil.copytree(killed, tmp_path / "elsewhere" / "killed")

    ranks(3, partial(_train, in_parts("killed")))
    (fewer, _) = ranks(2, partial(_train, in_parts("killed", f"run.folder={tmp_path}/elsewhere")))

    assert differences(newest_of(killed), newest_of(undisturbed)) == []
    for folder, tolerance in ((undisturbed, 1e-5), (killed, 1e-5), (Path(fewer), 1e-4)):
        assert len(steps_of(folder)) == 8
        _assert_same_steps(folder, alone, tolerance)
        _assert_same_weights(folder, alone)
        assert _scored(folder) == pytest.approx(_scored(alone), rel=tolerance)
    scored = scoring.evaluate(undisturbed, Console(file=StringIO()))["validation"]["loss"]
    assert scored == pytest.approx(min(_scored(undisturbed)), rel=1e-5)
    assert read_json(Path(fewer) / "plan.json")["devices"] == 2


def _scored(folder: Path) -> list[float]:
    """The validation losses of a run."""
    return [each["loss"] for each in records_of(folder, "evaluation")]


def test_memory_that_runs_out_on_one_rank_halves_the_micro_batches_of_all(
    ragged: MakeRecipe, ranks: Ranks, snapshot: SnapshotAssertion
) -> None:
    alone = Path(_train(ragged("run.name=alone")))
    real, count = loop.accumulate_gradients, itertools.count(1)

    def short_of_memory(world: World) -> str:
        def act(*args: Any, **options: Any) -> Any:
            result = real(*args, **options)
            if world.rank == 1 and next(count) == 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return result

        loop.accumulate_gradients = act
        return _train(ragged("run.name=short"), world)

    (folder, _) = map(Path, ranks(2, short_of_memory))

    _assert_same_steps(folder, alone)
    (record,) = records_of(folder, "out_of_memory")
    assert (record["step"], record["from"], record["to"]) == (3, [2, 2], [1, 1, 1, 1])
    assert record["where"] == snapshot


def test_a_signal_to_one_rank_stops_all_with_a_checkpoint_of_the_same_step(
    ragged: MakeRecipe, ranks: Ranks
) -> None:
    real, count = loop.guarded_update, itertools.count(1)

    def stopped(world: World) -> str:
        def act(*args: Any, **options: Any) -> Any:
            if next(count) == 3 and world.rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(*args, **options)

        loop.guarded_update = act
        return _train(ragged("run.name=stopped"), world)

    ends = ranks(2, stopped)

    assert [kind for kind, _ in ends] == ["Interrupted"] * 2
    assert all(message.startswith("stopped at step 3 of 8") for _, message in ends)
    store = CheckpointStore(pipeline.folder_of(ragged("run.name=stopped")) / "checkpoints", keep=2)
    assert store.steps() == [3]


def test_ranks_that_do_not_fit_together_are_refused_by_all_with_one_message(
    ragged: MakeRecipe, ranks: Ranks, tmp_path: Path, snapshot: Any
) -> None:
    def elsewhere(world: World) -> str:
        os.chdir(tmp_path if world.is_first else "/")
        return _train(ragged("run.name=elsewhere", "run.folder=runs-here"), world)

    def other_recipe(world: World) -> str:
        return _train(ragged("run.name=other", f"seed={world.rank}"), world)

    def too_many(world: World) -> str:
        return _train(ragged("run.name=many", "batch.sequences=1"), world)

    told = {act.__name__: ranks(2, act) for act in (elsewhere, other_recipe, too_many)}

    assert told["elsewhere"][0] == told["elsewhere"][1]
    assert [told[name][0] for name in told] == snapshot
