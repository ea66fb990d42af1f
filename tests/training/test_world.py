"""Ranks that decide together; a rank alone exchanges nothing."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fixture_types import Refuses

from brimful.base.errors import DataError, DeviceError, RanksParted, RequestError
from brimful.training.world import ALONE, Agreement, World, join

Ranks = Callable[..., list[Any]]


@pytest.mark.parametrize(("count", "size"), [(7, 2), (8, 3), (5, 5), (1, 1), (3, 4)])
def test_slices_lie_end_to_end_and_differ_by_one_at_most(count: int, size: int) -> None:
    slices = [World(size=size).slice_of(count, rank) for rank in range(size)]

    covered = [first + place for first, number in slices for place in range(number)]
    numbers = [number for _, number in slices]
    assert covered == list(range(count))
    assert numbers == sorted(numbers, reverse=True)
    assert max(numbers) - min(numbers) <= 1


def test_a_rank_alone_answers_itself() -> None:
    tensor = torch.ones(2)
    ALONE.add_up(tensor)
    ALONE.begin_to_add_up(tensor)()

    assert tensor.tolist() == [1.0, 1.0]
    assert (ALONE.any(True), ALONE.any(False)) == (True, False)
    assert (ALONE.largest([3]), ALONE.sums([1.5]), ALONE.tell("a")) == ([3], [1.5], "a")
    assert (ALONE.gather("a"), ALONE.first(lambda: 1), ALONE.check(lambda: 2)) == (["a"], 1, 2)
    assert not dist.is_initialized()


def test_three_ranks_get_the_same_answers(ranks: Ranks) -> None:
    def act(world: World) -> Any:
        tensor = torch.full((2,), float(world.rank))
        world.add_up(tensor)
        later = torch.full((2,), 1.0)
        world.begin_to_add_up(later)()
        agreement = Agreement(world)
        return [
            world.any(world.rank == 2),
            world.any(False),
            world.largest([world.rank, -world.rank]),
            world.sums([world.rank, 0.5]),
            world.tell({"of": "é" * 3} if world.is_first else None),
            world.gather("r" * world.rank),
            world.first(lambda: [world.rank, None]),
            tensor.tolist(),
            later.tolist(),
            agreement.on("stop", 1, lambda: world.rank),
            agreement.on("stop", 1, lambda: 99),
            agreement.last("stop", 0),
            agreement.on("stop", 2, lambda: 0),
        ]

    answers = ranks(3, act)

    expected = [True, False, [2, 0], [3.0, 1.5], {"of": "ééé"}, ["", "r", "rr"], [0, None]]
    assert answers == [[*expected, [3.0, 3.0], [3.0, 3.0], 2, 2, 2, 0]] * 3


def test_an_error_of_one_rank_is_raised_by_all_with_its_class(ranks: Ranks) -> None:
    def act(world: World) -> Any:
        told = []

        def fail() -> None:
            if world.rank != 1:
                raise RequestError(f"rank {world.rank} cannot")

        for attempt in (lambda: world.first(fail), lambda: world.check(fail)):
            try:
                attempt()
            except RequestError as error:
                told.append(str(error))
        return told

    assert ranks(3, act) == [["rank 0 cannot", "rank 0 cannot"]] * 3


def test_a_rank_that_is_gone_is_noticed_by_those_that_wait_for_it(ranks: Ranks) -> None:
    def act(world: World) -> Any:
        if world.rank == 1:
            raise DataError("gone")
        world.any(True)
        return "never"

    (kind, _), gone = ranks(2, act)

    assert kind == RanksParted.__name__
    assert gone == ["DataError", "gone"]


def test_a_rank_that_never_starts_is_told_with_how_long_was_waited(ranks: Ranks) -> None:
    def act(world: World) -> Any:
        dist.destroy_process_group()
        store = dist.HashStore()
        started_s = time.monotonic()
        try:
            join(0, 2, local=(0, 2), store=store, timeout_s=1.0)
        except RanksParted as error:
            return [str(error).split(" (")[0], time.monotonic() - started_s >= 1]
        return None

    assert ranks(2, act) == [["rank 0 of 2 did not meet the others within 1 s", True]] * 2


def test_devices_without_a_backend_are_refused(refuses: Refuses) -> None:
    with refuses(DeviceError):
        join(0, 2, local=(0, 2), kind="mps")
    if not dist.is_nccl_available():
        with refuses(DeviceError):
            join(0, 2, local=(0, 2), kind="cuda")
