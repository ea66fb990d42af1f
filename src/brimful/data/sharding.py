"""Data whose training tokens do not fit the disk (`data.cache_gib`): a shard of tokens for each
file, beside held-out text and the beginning of the training text, which are kept whole.
"""

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.base.errors import DataError
from brimful.base.types import JsonDict, Progress
from brimful.base.units import GIB
from brimful.base.warning_codes import coded
from brimful.data.cache_places import cache_key
from brimful.data.shards import Shards, ShardSource
from brimful.data.sources import Documents, Part, Piece, Source
from brimful.data.splits import LabelledDocuments, training_texts
from brimful.data.tokens import batch_encoder
from brimful.recipe import DataRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LITTLE_CHARACTERS = 1 << 24
"""Training text that is kept beside the shards: baselines and the tokenizer are measured on it."""


def _pieces(source: Source) -> list[tuple[Part, Piece[Documents]]]:
    """Raises DataError where a part of the source is not in files."""
    for part in source.parts:
        if not part.pieces:
            raise DataError(
                f"data.cache_gib reads files one at a time, and {part.description} is not a file,"
                " a folder of files or a data set of the hub. Name a folder of files, which may be"
                " mounted over a network; or leave data.cache_gib out."
            )
    return [(part, piece) for part in source.parts for piece in part.pieces]


def identity_of_files(source: Source, data: DataRecipe) -> str:
    """Return what identifies a source by the names and sizes of its files, on the hub by their
    commit; content is checked when it is read.

    Raises:
        DataError: it is not in files, or documents are too few to hold out whole ones.
    """
    pieces = _pieces(source)
    trained = [piece.path for _, piece in pieces if piece.path is not None]
    on_hub = [part for part in source.parts if part.pieces[0].path is None]
    if LabelledDocuments(source, data).num_few:
        raise DataError(
            "data.cache_gib needs so many documents that whole ones can be held out. Cut the text"
            " with data.document_start=REGEX, or leave data.cache_gib out."
        )
    files = [*dict.fromkeys([*trained, *(path for part in source.parts for path in part.files)])]
    root = Path(os.path.commonpath([path.parent for path in files])) if files else Path()
    try:
        listed = [[path.relative_to(root).as_posix(), path.stat().st_size] for path in files]
    except OSError as error:
        raise DataError(f"data.path cannot be read: {error}. Check the permissions.") from error
    commits = [part.fingerprint for part in on_hub]
    return cache_key(files=[*listed, *commits], options=dict(source.options))


def with_little_training(documents: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Pass (split, text) pairs on: all that are held out, and the first of training."""
    characters = 0
    for split, text in documents:
        if split == "train":
            if characters >= LITTLE_CHARACTERS:
                continue
            characters += len(text)
        yield split, text


def open_shards(
    source: Source,
    data: DataRecipe,
    folder: Path,
    tokenizer: "PreTrainedTokenizerFast",
    progress: Progress | None,
) -> Shards:
    """Return the shards of a source, counted.

    Raises:
        DataError: a file cannot be read, or the limit is too small for the files that are shuffled
            together.
    """
    shards = Shards(
        folder,
        [
            ShardSource(piece.name, partial(training_texts, part, piece, data))
            for part, piece in _pieces(source)
        ],
        batch_encoder(tokenizer),
        vocabulary=len(tokenizer),
        end_of_text=int(tokenizer.eos_token_id),
        limit_bytes=int((data.cache_gib or 0) * GIB),
    )
    shards.count(progress)
    shards.require_room(data.shuffled_files)
    return shards


def report_of_shards(report: JsonDict, shards: Shards) -> JsonDict:
    """Return the data's report with the counts of all shards."""
    told = coded(
        "B214",
        f"{shards.describe()}; n-gram baselines and the tokenizer's check see the first"
        f" {LITTLE_CHARACTERS >> 20} million characters of them",
    )
    splits = {**report["splits"], "train": shards.totals()}
    return {**report, "splits": splits, "notes": [*report["notes"], told]}
