"""Training, validation and test: kept where the source brings them, else held out by document or by
position.
"""

from collections.abc import Container, Iterator
from functools import cached_property

import xxhash

from brimful.base.errors import DataError
from brimful.base.text import clause, plural
from brimful.base.types import Counts, Numbers
from brimful.data.sources import Documents, Part, Piece, Source
from brimful.recipe import DataRecipe

SPLITS = ("train", "validation", "test")
SPLIT_SEED = 0
"""Fixed on purpose: runs with other seeds are scored on the same held-out documents."""


_FAR = 4
"""A split that is so many times as large as asked is told."""
_LEAST_CHARACTERS = 32
"""What a split by position needs at least in every part."""
_HOLDS_OUT = (
    "; data.document_start cuts one long text into documents, and data.split_by=position holds out"
    " the end of the text"
)
_WINDOW = 0.25
"""How far a border between the splits of few documents may move to the end of a paragraph or line:
a share of the smallest split.
"""


class LabelledDocuments:
    """All documents of a source with the split each belongs to; the same pairs in the same order
    every time.

    Held out by document: a hash of the text decides, so equal texts always land together and adding
    documents moves none. Held out by position: of the text of each path, by characters, the first
    part trains, then comes validation, then test; a document that lies across a border is cut
    there.

    Documents so few that the hash would leave a split empty are held out by position, too; then a
    border lies where a paragraph, a line or a word ends, if one does nearby.
    """

    def __init__(self, source: Source, data: DataRecipe) -> None:
        self._source = source
        self._data = data

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """(split, text) pairs."""
        for number, part in enumerate(self._source.parts):
            if self._data.split_by == "position" or self.num_few:
                yield from self._cut(number, part)
            else:
                yield from self._by_hash(part)
            yield from self._brought(part)

    @cached_property
    def num_few(self) -> int:
        """The number of documents where holding out whole ones would leave a split empty, and the
        text is long enough to be cut; else 0. Documents are read until this is known.
        """
        if self._data.split_by == "position":
            return 0
        empty = {split for split, share in split_shares(self._data).items() if share > 0}
        for part in self._source.parts:
            empty.difference_update(part.splits.keys() - {"train"})
        number, characters = 0, 0
        for part in self._source.parts:
            for split, text in self._by_hash(part):
                number, characters = number + 1, characters + len(text)
                empty.discard(split)
                if not empty:
                    return 0
        least = min(share for share in split_shares(self._data).values() if share > 0)
        return number * (least * characters >= _LEAST_CHARACTERS)

    @property
    def notes(self) -> list[str]:
        """A sentence, where the documents are few, about how they are held out."""
        if not self.num_few:
            return []
        start, advice = self._data.document_start, "data.document_start=REGEX cuts it"
        described = f"{self.num_few} documents are too few to hold out whole ones, so they are"
        if self.num_few == 1:
            described = "the text is one document, so it is"
        if self.num_few == 1 and start is not None:
            described = f"no line matches data.document_start ({start}): {described}"
            advice = "data.document_start=null takes each file or row for one"
        shares = [
            f"{name} {share:.3g}" for name, share in split_shares(self._data).items() if share > 0
        ]
        return [f"{described} split by position ({', '.join(shares)}), in this order; {advice}"]

    def _brought(self, part: Part) -> Iterator[tuple[str, str]]:
        for split in SPLITS[1:]:
            yield from ((split, text) for text in part.splits.get(split, ()))

    def _by_hash(self, part: Part) -> Iterator[tuple[str, str]]:
        validation, test = held_out_shares(part.splits, self._data)
        yield from ((split_of(text, validation, test), text) for text in part.splits["train"])

    def _cut(self, number: int, part: Part) -> Iterator[tuple[str, str]]:
        validation, test = held_out_shares(part.splits, self._data)
        window = 0.0
        if self.num_few:
            shares = (1 - validation - test, validation, test)
            window = _WINDOW * min(share for share in shares if share > 0)
        yield from _by_position(part, self._part_characters[number], validation, test, window)

    @cached_property
    def _part_characters(self) -> list[int]:
        return [sum(map(len, part.splits["train"])) for part in self._source.parts]


def training_texts(part: Part, piece: Piece[Documents], data: DataRecipe) -> Iterator[str]:
    """The documents of one file that train; the others are held out, by the hash of their text."""
    validation, test = held_out_shares(part.splits, data)
    for text in piece.items.read():
        if text and not text.isspace() and split_of(text, validation, test) == "train":
            yield text


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
    part: Part, num_characters: int, validation: float, test: float, window: float
) -> Iterator[tuple[str, str]]:
    """Pieces of documents; a border may move by `window`, a share of the characters."""
    ends = (
        int(num_characters * (1 - validation - test)),
        int(num_characters * (1 - test)),
        num_characters,
    )
    most = int(num_characters * window)
    place = 0
    for text in part.splits["train"]:
        start = 0
        for split, end in zip(SPLITS, ends, strict=True):
            border = max(_border(text, end - place, most), start)
            piece, start = text[start:border], border
            if piece and not piece.isspace():
                yield split, piece
        place += len(text)


def _border(text: str, place: int, most: int) -> int:
    """Where the paragraph, else the line, else the word begins that is nearest to a place, at most
    `most` characters away; else the place itself. The ends of the text count as paragraphs' ends.
    """
    place_in = min(max(place, 0), len(text))
    if most == 0 or place_in in {0, len(text)}:
        return place_in
    if min(place, len(text) - place) <= most:
        return len(text) * (place > len(text) - place)
    for mark in ("\n\n", "\n", " "):
        before = text.rfind(mark, place - most, place)
        after = text.find(mark, place - 1, place + most)
        found = [at + len(mark) for at in (before, after) if at >= 0]
        if found:
            return min(found, key=lambda at: abs(at - place))
    return place


def far_from_shares(characters: Counts, data: DataRecipe) -> list[str]:
    """A sentence for each split that holds another share of the text than asked, by far.

    Args:
        characters: The characters of each split; all of them held out from one text.
        data: Its `validation` and `test`.
    """
    total = sum(characters.values())
    notes = []
    for split, share in split_shares(data).items():
        found = characters.get(split, 0) / total
        if share > 0 and (found > _FAR * share or (split == "train" and found < share / 2)):
            notes.append(
                f"{split} has {found:.0%} of the text where {share:.0%} was asked: documents are"
                " held out whole, and these are few or of unequal length; data.split_by=position"
                " holds out the end of the text instead"
            )
    return notes


def check_not_empty(
    counts: Counts,
    data: DataRecipe,
    num_dropped: int,
    what: str = "document",
    compared: str = "they",
    more: str = _HOLDS_OUT,
) -> None:
    """Every split that was asked for must hold documents, or examples.

    Args:
        counts: So many of each split.
        data: The shares that were asked for.
        num_dropped: So many were left out, as they stand in training.
        what: One of them.
        compared: What stands there.
        more: What else helps.

    Raises:
        DataError: says the numbers and what to change.
    """
    changes = {
        "train": "validation=smaller",
        "validation": "validation=larger",
        "test": "test=larger",
    }
    dropped = (
        f" ({num_dropped} were dropped because {compared} stand in training: data.duplicates=report"
        " keeps them)"
    )
    total = plural(sum(counts.values()), what)
    for split, share in split_shares(data).items():
        if share > 0 and not counts.get(split):
            raise DataError(
                f"the {split} split would be empty: of {total} its share of {share:g} holds"
                f" none{clause(num_dropped, dropped)}. Use more {what}s, or another share"
                f" (data.{changes[split]}){more}."
            )


def split_shares(data: DataRecipe) -> Numbers:
    """Return the share of each split that a recipe asks for."""
    return {
        "train": 1 - data.validation - data.test,
        "validation": data.validation,
        "test": data.test,
    }
