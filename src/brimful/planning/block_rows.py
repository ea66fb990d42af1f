"""The order of a model's transformer blocks where these are of several kinds, and short models
whose traces stand for those of long ones.

A row is a text of one letter for each block, its kind. The first block of each kind, with which the
backward pass frees what blocks of its kind share, and the last block count as kinds of their own. A
short row stands for a long one where each block of the long one has neighbours that one of its kind
has in the short one, and the other way round.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from brimful.base.types import Texts


class Irregular(Exception):
    """The step does not repeat equal blocks, or sizes are not affine: it has to be traced whole."""


ALIKE = "a"
"""The letter of every block in a row whose blocks are all of one kind."""
NEIGHBOURS = (2, 3)
"""Lengths of the segments (adjacent blocks) that a short row must have in common with the long one.

In the forward pass a block frees tensors of the block before it, in the backward pass of the block
after it. Where a block touches both neighbours in one pass, three are needed.
"""

_Role = tuple[str, bool, bool]


@dataclass(frozen=True)
class BlockRows:
    """A short row of blocks that stands for a long one."""

    few: str
    all: str

    @cached_property
    def rising(self) -> list[int]:
        """The block of the short row that each of the long row equals in a pass over all blocks.
        One with the same neighbours on both sides is better than one with the same one before it.

        Raises:
            Irregular: there is none.
        """
        return self._sources(falling=False)

    @cached_property
    def falling(self) -> list[int]:
        """The same in a pass from the last block to the first."""
        return self._sources(falling=True)

    def _sources(self, *, falling: bool) -> list[int]:
        both: dict[tuple[_Role | None, ...], int] = {}
        one: dict[tuple[_Role | None, ...], int] = {}
        for place, (before, role, after) in enumerate(_surroundings(self.few)):
            both.setdefault((before, role, after), place)
            one.setdefault((role, after if falling else before), place)
        try:
            return [
                both[each] if each in both else one[each[1], each[2] if falling else each[0]]
                for each in _surroundings(self.all)
            ]
        except KeyError as error:
            raise Irregular(f"blocks {self.few} are no example of {self.all}") from error

    def repeats(self, letter: str) -> float:
        """Return how many blocks of a kind the long row has for each of the short one, without
        first and last blocks.
        """
        few = self.few[1:-1].count(letter)
        return self.all[1:-1].count(letter) / few if few else 1.0


def shortened(row: str, neighbours: int) -> str:
    """Return a short row that stands for this one: blocks are left out, as many adjacent ones at a
    time as possible, while the row keeps the same segments of so many neighbouring blocks.
    """
    segments = _segments(row, neighbours)
    length = len(row) - 2
    while length > 0:
        cuts = (row[:at] + row[at + length :] for at in range(1, len(row) - length))
        cut = next((each for each in cuts if _segments(each, neighbours) == segments), None)
        row, length = (row, length - 1) if cut is None else (cut, min(length, len(cut) - 2))
    return row


def longer_rows(rows: BlockRows, neighbours: int, like: Texts) -> dict[str, int] | None:
    """Return longer rows, each with one segment of the short row repeated, and how many times each
    of these segments has to be added to the short row to have the blocks of the long one; None
    where no such segments are found.

    Args:
        rows: The rows.
        neighbours: The same as of `shortened`.
        like: For each kind one with the same weights.
    """
    chosen: list[str] = []
    for longer in _with_a_segment_more(rows.few, neighbours):
        added = np.array([_added(rows.few, each, like) for each in (*chosen, longer)])
        if np.linalg.matrix_rank(added) == len(added):
            chosen.append(longer)
            missing = _added(rows.few, rows.all, like)
            times = np.rint(np.linalg.lstsq(added.T, np.array(missing), rcond=None)[0])
            if np.array_equal(times @ added, missing):
                return dict(zip(chosen, times.astype(int).tolist(), strict=True))
    return None


def _with_a_segment_more(few: str, neighbours: int) -> Iterator[str]:
    segments = _segments(few, neighbours)
    for length in range(1, len(few) - 1):
        for at in range(1, len(few) - length):
            longer = few[: at + length] + few[at:]
            if _segments(longer, neighbours) == segments:
                yield longer


def _added(few: str, longer: str, like: Texts) -> list[int]:
    """Return how many blocks of each kind of weights a longer row has more."""
    more, less = (Counter(like[letter] for letter in row) for row in (longer, few))
    return [more[letter] - less[letter] for letter in sorted(set(like.values()))]


def _roles(row: str) -> list[_Role]:
    first = {row.index(letter) for letter in set(row)}
    return [(letter, place in first, place == len(row) - 1) for place, letter in enumerate(row)]


def _surroundings(row: str) -> list[tuple[_Role | None, _Role, _Role | None]]:
    roles = _roles(row)
    return list(zip([None, *roles[:-1]], roles, [*roles[1:], None], strict=True))


def _segments(row: str, count: int) -> set[tuple[_Role, ...]]:
    roles = _roles(row)
    return {tuple(roles[at : at + count]) for at in range(len(roles) - count + 1)}
