"""Ranks of one run end with one message and one exit code."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from torch.distributed import TCPStore

from brimful.base.env import STARTED_BY_BRIMFUL
from brimful.base.errors import DataError, RanksParted, TrainingStopped
from brimful.training import endings
from brimful.training.endings import ends_together, tell_refusal
from brimful.training.world import World

Ranks = Callable[..., list[Any]]


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store held by this process, as a launcher holds it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr(endings, "FIRST_WORD_S", 20.0)
    yield
    del store


def _end(raised: dict[int, Exception], world: World) -> Any:
    """Raise this rank's error, or wait for the other ranks, while the ranks end together; return
    how it ended.
    """

    def act() -> None:
        world.any(True)  # all are there
        if world.rank in raised:
            raise raised[world.rank]
        world.any(True)

    try:
        with ends_together(world.rank, world.size):
            act()
    except SystemExit as end:
        return ["silent", end.code]
    except Exception as error:
        return ["told", str(error).split(". ")[0]]


@pytest.mark.long
@pytest.mark.usefixtures("meeting")
def test_an_error_of_one_rank_is_told_by_it_and_gives_the_exit_code_of_those_that_lost_it(
    ranks: Ranks,
) -> None:
    raised: dict[int, Exception] = {1: DataError("row 3 is damaged")}

    assert ranks(2, lambda world: _end(raised, world)) == [
        ["silent", 2],
        ["told", "row 3 is damaged"],
    ]


@pytest.mark.usefixtures("meeting")
def test_a_launcher_that_ends_a_rank_does_not_keep_it_from_telling_why(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = endings._told

    def told_after_sigterm(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    monkeypatch.setattr(endings, "_told", told_after_sigterm)

    first, second = ranks(2, partial(_end, {0: DataError("row 3 is damaged")}))

    assert (first, second) == (["told", "row 3 is damaged"], ["silent", 2])


@pytest.mark.usefixtures("meeting")
def test_an_error_of_all_ranks_is_told_by_the_first(ranks: Ranks) -> None:
    raised: dict[int, Exception] = {rank: TrainingStopped("it diverged") for rank in range(3)}

    assert ranks(3, lambda world: _end(raised, world)) == [
        ["told", "it diverged"],
        ["silent", 1],
        ["silent", 1],
    ]


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("is_watched", [False, True])
def test_a_rank_that_ended_without_a_word_is_told_once_by_the_launcher_if_it_watches(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, is_watched: bool
) -> None:
    if is_watched:
        monkeypatch.setenv(STARTED_BY_BRIMFUL, "1")
    raised: dict[int, Exception] = {0: RanksParted("lost"), 1: RanksParted("lost")}

    ends = ranks(2, lambda world: _end(raised, world))

    assert ends[1] == ["silent", RanksParted.exit_code]
    assert ends[0] == (["silent", RanksParted.exit_code] if is_watched else ["told", "lost"])


@pytest.mark.usefixtures("meeting")
def test_a_bug_on_one_rank_shows_its_traceback_once(ranks: Ranks) -> None:
    raised: dict[int, Exception] = {1: KeyError("bug")}

    assert ranks(2, lambda world: _end(raised, world)) == [["silent", 1], ["told", "'bug'"]]


def _end_beside_refused(refused: int, world: World) -> Any:
    if world.rank == refused:
        tell_refusal(DataError("no such file"), world.rank, world.size)
        return "refused"
    return _end({}, world)


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("refused", [0, 1])
def test_ranks_do_not_wait_for_one_that_was_refused_before_it_met_them(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, refused: int, is_held: bool
) -> None:
    """Whether the launcher holds the store or rank 0 does, they end with its exit code."""
    if not is_held:
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
        with socket.create_server(("127.0.0.1", 0)) as free:
            monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))

    ends = ranks(3, partial(_end_beside_refused, refused))

    assert ends.pop(refused) == "refused"
    assert ends == [["silent", 2]] * 2
