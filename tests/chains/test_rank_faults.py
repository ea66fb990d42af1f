"""What goes wrong on one rank only: all of them come to the same end, and none waits for ever."""

import itertools
import math
import os
import resource
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import checkpoints_of, newest_of, records_of, train
from fixture_types import MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.base import watchdog
from brimful.base.rundir import read_journal
from brimful.chains import pipeline
from brimful.chains import ranks as chain
from brimful.evaluation.likelihood import Scorer
from brimful.recipe import Recipe
from brimful.report.listing.listing import find_runs
from brimful.report.live.run_state import Field, RunState
from brimful.report.page.run_page import run_view
from brimful.report.terminal import told_of
from brimful.runs.folder import read_run
from brimful.training import loop
from brimful.training.admission import admit, claim
from brimful.training.checkpoint import differences
from brimful.training.world import World

Ranks = Callable[..., list[Any]]
SHORT = (
    "batch.sequences=6",
    "plan.micro_batch=2",
    "training.steps=4",
    "evaluation.every=2",
    "evaluation.max_sequences=8",
    "checkpoint.every=2",
)
SPREADS = pytest.mark.parametrize("spread", ["replicated", "sharded"])


@pytest.fixture
def recipe(tiny: MakeRecipe) -> MakeRecipe:
    """`recipe("name", "key=value", ...)` gives a short one, trained in three passes a step."""
    return lambda name, *more: tiny(*SHORT, f"run.name={name}", *more)


def _train(recipe: Recipe, world: World | None = None) -> str:
    several = {} if world is None else {"world": world}
    return str(train(recipe, **several))


def _saved_steps(recipe: Recipe) -> list[int]:
    return checkpoints_of(pipeline.folder_of(recipe)).steps()


def _at_update(number: int, rank: int, act: Callable[[], object], world: World) -> None:
    """Let one rank act before its update of that number."""
    real, count = loop.guarded_update, itertools.count(1)

    def update(*args: Any, **options: Any) -> Any:
        if next(count) == number and world.rank == rank:
            act()
        return real(*args, **options)

    loop.guarded_update = update  # of this process, which ends with the test


def test_a_halted_rank_ends_the_one_that_waits_for_it_after_its_patience(
    recipe: MakeRecipe, ranks: Ranks, tmp_path: Path
) -> None:
    halted = tmp_path / "halted"
    chosen = recipe("halted")

    def halt() -> None:
        halted.touch()
        os.kill(os.getpid(), signal.SIGSTOP)

    def act(world: World) -> str:
        _at_update(3, 1, halt, world)
        # However busy the machine is, nobody loses patience before.
        watchdog.longest_wait = lambda *_: 2.0 if halted.exists() else math.inf
        return _train(chosen, world)

    assert ranks(2, act) == [["exit", watchdog.EXIT_CODE], signal.SIGKILL]
    assert (pipeline.folder_of(chosen) / watchdog.FILE_NAME).exists()
    assert _saved_steps(chosen) == [2]


def test_a_slow_rank_is_waited_for_and_changes_nothing(recipe: MakeRecipe, ranks: Ranks) -> None:
    def slow(world: World) -> str:
        real = loop.accumulate_gradients

        def act(*args: Any, **options: Any) -> Any:
            time.sleep(0.3 * world.rank)  # a step takes some 0.02 s
            return real(*args, **options)

        loop.accumulate_gradients = act
        return _train(recipe("slow"), world)

    (steady, _) = ranks(2, lambda world: _train(recipe("steady"), world))
    (folder, _) = ranks(2, slow)

    assert differences(newest_of(folder), newest_of(steady)) == []
    record = read_run(Path(folder)).ranks
    assert record is not None
    assert (record.step, record.slowest.rank) == (4, 1)
    waiting, computing = record.ranks
    assert waiting.communication_s > computing.communication_s
    (listed,) = find_runs(Path(folder))
    (told,) = (value for name, value, _ in _shown(folder) if name == "ranks")
    assert listed.ranks == f"2 ranks: {told}"
    assert told.startswith("slowest 1 (")
    assert "1 (slowest)" in told_of(run_view(read_run(Path(folder))))


def _shown(folder: str) -> list[Field]:
    """What is shown while a run is watched."""
    state = RunState(time.monotonic)
    for record in read_journal(Path(folder, "metrics.jsonl")):
        state.update(record)
    return state.fields()


@SPREADS
def test_a_number_that_is_none_in_the_gradients_of_one_rank_leaves_the_step_out_on_all(
    recipe: MakeRecipe, ranks: Ranks, spread: str
) -> None:
    def poisoned(world: World) -> str:
        real, count = loop._backward, itertools.count(1)
        loop._backward = lambda scaled: real(
            scaled * torch.nan if world.rank == 1 and next(count) == 3 else scaled
        )
        return _train(recipe("poisoned", f"plan.spread={spread}"), world)

    (folder, _) = ranks(2, poisoned)

    steps = records_of(folder, "step")
    assert [each["skipped"] for each in steps] == [0, 1, 1, 1]
    assert all(math.isfinite(each["loss"]) for each in steps)


def test_memory_that_runs_out_where_one_rank_has_a_part_ends_all_and_the_next_start_takes_less(
    recipe: MakeRecipe, ranks: Ranks, snapshot: SnapshotAssertion
) -> None:
    chosen = recipe("part", "plan.spread=sharded")

    def short_of_memory(world: World) -> str:
        real, count = loop._backward, itertools.count(1)

        def act(scaled: torch.Tensor) -> None:
            if world.rank == 1 and next(count) == 5:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            real(scaled)

        loop._backward = act
        return _train(chosen, world)

    (lost, _), (kind, message) = ranks(2, short_of_memory)
    assert (lost, kind) == ("RanksParted", "StartAgain")
    assert message == snapshot

    (folder, _) = ranks(2, partial(_train, chosen))

    alone = _train(recipe("alone"))
    (record,) = records_of(folder, "out_of_memory")
    assert (record["step"], record["to"]) == (3, [1, 1, 1])
    losses = [[each["loss"] for each in records_of(run, "step")] for run in (folder, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_an_evaluation_that_does_not_fit_where_one_rank_has_a_part_ends_all_and_then_takes_less(
    recipe: MakeRecipe, ranks: Ranks, snapshot: SnapshotAssertion
) -> None:
    chosen = recipe("scored", "plan.spread=sharded")
    real, rows = Scorer.nats, []

    def nats(world: World, is_short: bool, scorer: Scorer, micro: Any) -> Any:
        rows.append(len(micro.inputs_BT))
        if is_short and world.rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(scorer, micro)

    def act(is_short: bool, world: World) -> list[Any]:
        Scorer.nats = lambda scorer, micro: nats(world, is_short, scorer, micro)
        return [_train(chosen, world), max(rows)]

    (lost, _), (kind, message) = ranks(2, partial(act, True))
    assert (lost, kind) == ("RanksParted", "CannotHalveAlone")
    assert message == snapshot

    (folder, largest), _ = ranks(2, partial(act, False))

    (record,) = records_of(folder, "out_of_memory")
    assert (record["phase"], record["step"]) == ("evaluation", 2)
    assert record["from"][0] > record["to"][0] == largest
    assert len(records_of(folder, "evaluation")) == 2


def test_a_disk_that_is_full_for_one_rank_ends_all_with_its_message_and_the_checkpoint_before(
    recipe: MakeRecipe, ranks: Ranks, snapshot: SnapshotAssertion
) -> None:
    chosen = recipe("full", "plan.spread=sharded")

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    def act(world: World) -> str:
        _at_update(3, 1, fill, world)
        return _train(chosen, world)

    first, second = ranks(2, act)

    assert first == second
    kind, message = first
    assert kind == "CheckpointError"
    assert message == snapshot
    assert _saved_steps(chosen) == [2]
    assert list(pipeline.folder_of(chosen).glob("checkpoints/*.tmp*")) == []


def test_a_second_launch_in_the_same_run_folder_is_refused_and_harms_nothing(
    recipe: MakeRecipe, ranks: Ranks
) -> None:
    chosen = recipe("twice")
    folder = pipeline.folder_of(chosen)

    with claim(admit(chosen, folder, fresh=False, accept=())):
        held = sorted(path.name for path in folder.iterdir())
        (kind, message), (lost, _) = ranks(2, partial(_train, chosen))
        after = sorted(path.name for path in folder.iterdir())

    assert (kind, lost) == ("RunFolderError", "RanksParted")
    assert f"is being written by process {os.getpid()}" in message
    assert after == held


@pytest.mark.parametrize("package", ["brimful", "torch", "bitsandbytes"])
def test_ranks_with_other_versions_are_refused_by_all_with_one_message(
    recipe: MakeRecipe, ranks: Ranks, package: str
) -> None:
    def act(world: World) -> str:
        here = chain.installed_version
        if world.rank == 1:
            chain.installed_version = lambda name: "0.0.1" if name == package else here(name)
        return _train(recipe("versions"), world)

    (kind, message), second = ranks(2, act)

    assert second == [kind, message]
    assert f"rank 1 has {package} 0.0.1, rank 0 has" in message
    assert kind == "DeviceError"
