"""The quick replay tells what the allocator block by block tells, with and without a limit."""

import random

import pytest

from brimful.base.units import MIB
from brimful.planning.allocator import AllocatorSettings, replay_blocks
from brimful.planning.plain_replay import replay_plain

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


@pytest.mark.parametrize("seed", range(40))
def test_it_equals_the_allocator_block_by_block(seed: int) -> None:
    rng = random.Random(seed)
    events, sizes = _life(rng)

    for limit_bytes in (None, rng.randint(0, 200 * MIB), rng.randint(100 * MIB, 900 * MIB)):
        expected = replay_blocks(events, sizes, AllocatorSettings(limit_bytes=limit_bytes))
        assert replay_plain(events, sizes, limit_bytes) == tuple(vars(expected).values())


@pytest.mark.parametrize(
    ("events", "told"),
    [([1, 1], "born while it lives"), ([1, -1, -1], "dies while it does not live"), ([0], "dies")],
)
def test_a_life_that_cannot_be_is_refused(events: list[int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replay_plain(events, [5], None)
