"""The quick replays, in C and in Python, tell what the allocator block by block tells, with and
without a limit.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.base.units import MIB
from brimful.planning import events as passes
from brimful.planning import plain_replay
from brimful.planning.allocator import AllocatorSettings, replay_blocks
from brimful.planning.plain_replay import replay_plain, replay_quickly

Replay = Callable[..., plain_replay.Fields]
SIZES = (0, 1, 512, 513, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 21 * MIB)


def _life(rng: random.Random) -> tuple[list[int], list[int]]:
    """Births and deaths of storages of all kinds of sizes, some of them right after each other."""
    sizes = [rng.choice([*SIZES, rng.randint(1, 40 * MIB)]) for _ in range(rng.randint(1, 80))]
    events: list[int] = []
    alive: list[int] = []
    born = 0
    while born < len(sizes) or alive:
        if born < len(sizes) and (not alive or rng.random() < 0.6):
            born += 1
            events.append(born)
            alive.append(born)
        else:
            events.append(-alive.pop(rng.choice([-1, rng.randrange(len(alive))])))
    return events, sizes


def _replays() -> list[Any]:
    built = pytest.mark.skipif(passes.extension is None, reason="the C replay was not built")
    return [
        pytest.param(replay_plain, id="Python"),
        pytest.param(replay_quickly, id="C", marks=built),
    ]


@pytest.fixture(params=_replays())
def quick(request: pytest.FixtureRequest) -> Replay:
    replay: Replay = request.param
    return replay


@pytest.mark.parametrize("seed", range(40))
def test_it_equals_the_allocator_block_by_block(quick: Replay, seed: int) -> None:
    rng = random.Random(seed)
    events, sizes = _life(rng)

    for limit_bytes in (None, rng.randint(0, 200 * MIB), rng.randint(100 * MIB, 900 * MIB)):
        expected = replay_blocks(events, sizes, AllocatorSettings(limit_bytes=limit_bytes))
        assert quick(events, sizes, limit_bytes) == tuple(vars(expected).values())


@pytest.mark.parametrize(
    "events",
    [[1, 1], [1, -1, -1], [0]],
)
def test_a_life_that_cannot_be_is_refused(
    quick: Replay, events: list[int], refuses: Refuses
) -> None:
    with refuses(ValueError):
        quick(events, [5], None)


def test_a_storage_without_a_size_is_refused(quick: Replay) -> None:
    with pytest.raises(IndexError):
        quick([2], [5], None)


def test_long_series_of_a_large_device_are_replayed_alike(quick: Replay) -> None:
    """More blocks at once than lists have room for at first, and sizes beyond 32 bits."""
    rng = random.Random(7)
    sizes = [rng.choice([rng.randint(1, MIB), rng.randint(1, 3 * 1024 * MIB)]) for _ in range(2000)]
    births = list(range(1, 2001))
    events = births + [-each for each in rng.sample(births, 1500)]

    for limit_bytes in (None, 10**12):
        expected = replay_blocks(events, sizes, AllocatorSettings(limit_bytes=limit_bytes))
        assert quick(events, sizes, limit_bytes) == tuple(vars(expected).values())


def test_without_the_build_in_c_python_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "extension", None)

    assert replay_quickly([1, -1], [5], None) == replay_plain([1, -1], [5], None)


@pytest.mark.skipif(passes.extension is None, reason="the C replay was not built")
@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_free_blocks_are_listed_taken_and_given_back_alike(seed: int) -> None:
    """The lists of free blocks have many pages, which grow, empty and are given back."""
    rng = random.Random(seed)
    sizes = [rng.choice([rng.randint(1, MIB), rng.randint(MIB, 30 * MIB)]) for _ in range(3000)]
    events: list[int] = []
    alive: list[int] = []
    for number in range(1, 3001):
        events.append(number)
        alive.append(number)
        keeps = 900 if number % 1000 < 600 else 60
        while len(alive) > keeps:
            events.append(-alive.pop(rng.randrange(len(alive))))

    most_bytes = replay_plain(events, sizes, None)[3]
    for limit_bytes in (None, most_bytes - MIB, int(0.97 * most_bytes), int(0.8 * most_bytes)):
        assert replay_quickly(events, sizes, limit_bytes) == replay_plain(
            events, sizes, limit_bytes
        )
