"""Training, validation and test: kept where the source brings them, else held out by document or by
position.
"""

from collections.abc import Container, Iterator
from functools import cached_property

import xxhash

from brimful.base.errors import DataError
from brimful.base.text import clause
from brimful.data.sources import Part, Source
from brimful.recipe import DataRecipe

SPLITS = ("train", "validation", "test")
SPLIT_SEED = 0
"""Fixed on purpose: runs with other seeds are scored on the same held-out documents."""


class LabelledDocuments:
    """All documents of a source with the split each belongs to; the same pairs in the same order
    every time.

    Held out by document: a hash of the text decides, so equal texts always land together and adding
    documents moves none. Held out by position: of the text of each path, by characters, the first
    part trains, then comes validation, then test; a document that lies across a border is cut
    there.
    """

    def __init__(self, source: Source, data: DataRecipe) -> None:
        self._source = source
        self._data = data

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """(split, text) pairs."""
        for number, part in enumerate(self._source.parts):
            yield from self._held_out(number, part)
            for split in SPLITS[1:]:
                yield from ((split, text) for text in part.splits.get(split, ()))

    def _held_out(self, number: int, part: Part) -> Iterator[tuple[str, str]]:
        validation, test = held_out_shares(part.splits, self._data)
        if self._data.split_by == "document":
            yield from ((split_of(text, validation, test), text) for text in part.splits["train"])
        else:
            yield from _by_position(part, self._part_characters[number], validation, test)

    @cached_property
    def _part_characters(self) -> list[int]:
        return [sum(map(len, part.splits["train"])) for part in self._source.parts]


def held_out_shares(splits: Container[str], data: DataRecipe) -> tuple[float, float]:
    """Return the shares of training to hold out for validation and test; 0 for a split that the
    source brings.
    """
    validation, test = data.validation, data.test
    if "validation" in splits:
        validation = 0.0
    if "test" in splits:
        test = 0.0
    return validation, test


def split_of(text: str, validation: float, test: float, seed: int = SPLIT_SEED) -> str:
    """Split of a document from the hash of its text: a share of `test`, then of `validation`, the
    rest trains.
    """
    place = xxhash.xxh3_64_intdigest(text.encode(), seed=seed) / 2**64
    if place < test:
        return "test"
    if place < test + validation:
        return "validation"
    return "train"


def _by_position(
    part: Part, num_characters: int, validation: float, test: float
) -> Iterator[tuple[str, str]]:
    ends = (
        int(num_characters * (1 - validation - test)),
        int(num_characters * (1 - test)),
        num_characters,
    )
    place = 0
    for text in part.splits["train"]:
        start = 0
        for split, end in zip(SPLITS, ends, strict=True):
            piece = text[start : max(end - place, start)]
            start += len(piece)
            if piece and not piece.isspace():
                yield split, piece
        place += len(text)


def check_not_empty(num_documents: dict[str, int], data: DataRecipe, num_dropped: int) -> None:
    """Training and validation must hold documents, and test where it was asked for.

    Raises:
        DataError: says the numbers and what to change.
    """
    total = sum(num_documents.values())
    changes = {
        "train": "validation=smaller",
        "validation": "validation=larger",
        "test": "test=larger",
    }
    for split, share in split_shares(data).items():
        if num_documents.get(split) or (split == "test" and not share):
            continue
        dropped = (
            f" ({num_dropped} were dropped as duplicates of training documents:"
            " data.duplicates=report keeps them)"
        )
        raise DataError(
            f"the {split} split would be empty: of {total} document{'s' * (total != 1)} its share"
            f" of {share:g} holds none{clause(num_dropped, dropped)}. Use more documents,"
            f" another share (data.{changes[split]}), data.document_start to cut one long text into"
            " documents, or data.split_by=position to hold out the end of the text."
        )


def split_shares(data: DataRecipe) -> dict[str, float]:
    """Return the share of each split that a recipe asks for."""
    return {
        "train": 1 - data.validation - data.test,
        "validation": data.validation,
        "test": data.test,
    }
