"""Duplicates within training, and validation or test documents that also stand in training. Keeps
hashes, not texts.

Suffixes: D documents in reading order, 2 the two halves of a 128-bit hash.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from brimful.base.arrays import Bools
from brimful.base.text import clause
from brimful.base.types import JsonDict, Numbers, Progress
from brimful.data.splits import SPLITS
from brimful.data.tokens import text_pieces
from brimful.recipe import DataRecipe

Item = TypeVar("Item")

EXAMPLES = 3
EXAMPLE_CHARACTERS = 120
_PROGRESS_EVERY = 1000


@dataclass(frozen=True)
class Scan:
    """Duplicates among all documents.

    Attributes:
        num_documents: Documents by split.
        report: JSON value: per split documents, exact and normalised duplicates with shares, and
            the first examples.
        leaked: Number (reading order, from 0) and split of the validation and test documents whose
            normalised text stands in training.
    """

    num_documents: dict[str, int]
    report: JsonDict
    leaked: dict[int, str]

    def dropped(self, data: DataRecipe) -> dict[int, str]:
        """Those of the leaked documents that are left out: all, or none where the recipe only asks
        for a report.
        """
        if data.duplicates == "drop":
            return self.leaked
        return {}


def normalised(text: str) -> str:
    """Casefolded, every run of white space one blank."""
    return " ".join(text.casefold().split())


def scan(documents: Iterable[tuple[str, str]], progress: Progress | None = None) -> Scan:
    """Read all (split, text) pairs once (and up to the last example again) and compare their
    128-bit hashes.
    """
    labels, exact, folded = bytearray(), bytearray(), bytearray()
    for number, (split, text) in enumerate(documents, start=1):
        labels.append(SPLITS.index(split))
        of_text, of_normalised = _digests(text)
        exact += of_text
        folded += of_normalised
        if progress and number % _PROGRESS_EVERY == 0:
            progress("reading", number, None)
    labels_D = np.frombuffer(bytes(labels), dtype=np.uint8)
    if progress:
        progress("reading", len(labels_D), len(labels_D))
    found = {
        "exact": _repeated(_hashes(exact), labels_D),
        "normalised": _repeated(_hashes(folded), labels_D),
    }
    num_documents = {
        split: int(count)
        for split, count in zip(SPLITS, np.bincount(labels_D, minlength=len(SPLITS)), strict=True)
        if count
    }
    report: JsonDict = {
        split: _counts(found, labels_D == SPLITS.index(split)) for split in num_documents
    }
    report["examples"] = _examples(documents, found, labels_D)
    leaked = np.flatnonzero(found["normalised"] & (labels_D > 0)).tolist()
    return Scan(num_documents, report, {number: SPLITS[labels_D[number]] for number in leaked})


def _digests(text: str) -> tuple[bytes, bytes]:
    """Hashes of a text and of that text normalised, made piece by piece."""
    exact, folded = xxhash.xxh3_128(), xxhash.xxh3_128()
    is_in_word, begun = False, False
    for piece in text_pieces(text):
        exact.update(piece.encode())
        if words := normalised(piece):
            is_parted = begun and not (is_in_word and piece[0].strip())
            folded.update(f"{clause(is_parted, ' ')}{words}".encode())
            begun = True
        is_in_word = bool(piece[-1:].strip())
    return exact.digest(), folded.digest()


def without(documents: Iterable[Item], dropped: Container[int]) -> Iterator[Item]:
    """The documents whose numbers are not in `dropped`."""
    return (document for number, document in enumerate(documents) if number not in dropped)


def leakage_notes(scanned: Scan, num_dropped: int, what: str = "document") -> list[str]:
    """One sentence per split that has duplicates, and how many were dropped for it; `what` is one
    thing that was compared.
    """
    notes = []
    for split, counts in scanned.report.items():
        if split == "examples" or not counts["normalised"]:
            continue
        where = "also stand in training"
        if split == "train":
            where = f"repeat another training {what}"
        notes.append(
            f"{split}: {counts['normalised']:,} of {counts['documents']:,} {what}s {where}"
            f" ({counts['exact']:,} of them exactly)"
        )
    if num_dropped:
        notes.append(f"{num_dropped} of these were dropped from validation and test")
    return notes


def _hashes(digests: bytearray) -> NDArray[np.uint64]:
    return np.frombuffer(bytes(digests), dtype=np.uint64).reshape(-1, 2)


def _repeated(hashes_D2: NDArray[np.uint64], labels_D: NDArray[np.uint8]) -> Bools:
    """True for a training document seen in training before, and for any other document that stands
    in training.
    """
    # The sort is stable: of equal hashes training comes first, in reading order.
    order = np.lexsort((labels_D, hashes_D2[:, 1], hashes_D2[:, 0]))
    ordered_D2, ordered_labels_D = hashes_D2[order], labels_D[order]
    is_first_D = np.ones(len(order), dtype=bool)
    is_first_D[1:] = (ordered_D2[1:] != ordered_D2[:-1]).any(axis=1)
    group_D = np.cumsum(is_first_D) - 1
    is_in_training_D = (ordered_labels_D[is_first_D] == 0)[group_D]
    repeated_D = np.empty(len(order), dtype=bool)
    repeated_D[order] = is_in_training_D & ~is_first_D
    return repeated_D


def _counts(found: dict[str, Bools], is_split_D: Bools) -> Numbers:
    total = int(is_split_D.sum())
    counts: dict[str, float] = {"documents": total}
    for kind, repeated_D in found.items():
        counts[kind] = int((repeated_D & is_split_D).sum())
        counts[f"{kind}_share"] = counts[kind] / total
    return counts


def _examples(
    documents: Iterable[tuple[str, str]],
    found: dict[str, Bools],
    labels_D: NDArray[np.uint8],
) -> list[dict[str, str]]:
    """The first few leaked documents, else the first few repeated in training, by their first
    characters.
    """
    repeated = found["normalised"]
    if (leaked := repeated & (labels_D > 0)).any():
        repeated = leaked
    chosen = np.flatnonzero(repeated)[:EXAMPLES].tolist()
    if not chosen:
        return []
    examples = []
    for number, (split, text) in enumerate(islice(documents, chosen[-1] + 1)):
        if number in chosen:
            kind = ("normalised", "exact")[int(found["exact"][number])]
            examples.append({"split": split, "kind": kind, "text": text[:EXAMPLE_CHARACTERS]})
    return examples
