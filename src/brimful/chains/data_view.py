"""What a recipe's data are to a model, before any training: by the functions that training uses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from brimful.base.text import plural
from brimful.data.examples import prepare_examples, tokenizer_of
from brimful.data.sources import open_rows
from brimful.data.tokens import Progress
from brimful.generation.text import TextStream
from brimful.recipe import Recipe
from brimful.report.data_view import DataView, SeenExample, SeenRow, SeenSplit, SeenToken

FIRST_ROWS = 1000
"""Of each file of examples, that are read if not all are asked for: a second of CPU time."""
_BINS = 8


class _Split(Protocol):
    """What splits of all kinds of runs have: tokens N of examples E end to end."""

    @property
    def tokens_N(self) -> NDArray[Any]: ...  # noqa: N802 - shape suffix
    @property
    def is_target_N(self) -> NDArray[np.bool_]: ...  # noqa: N802 - shape suffix
    @property
    def offsets_E(self) -> NDArray[Any]: ...  # noqa: N802 - shape suffix
    @property
    def wheres(self) -> Sequence[str]: ...


def view_data(
    recipe: Recipe,
    source: str,
    *,
    num_shown: int,
    whole: bool = False,
    progress: Progress | None = None,
) -> DataView:
    """Prepare the data of a recipe as training does, and return what is learned of them.

    Args:
        recipe: any that trains.
        source: hub id or folder of the published model; empty for a fresh one. Its weights are not
            loaded.
        num_shown: rows that are shown.
        whole: all rows of examples are read, not the first `FIRST_ROWS` of each split.
        progress: called as data are read.

    Raises:
        DataError, PlanError: as in training.
    """
    if recipe.kind.rows != "examples":
        return _view_of_run(recipe, source, num_shown, progress)
    read = "all rows"
    if not whole:
        most = min(recipe.data.max_documents or FIRST_ROWS, FIRST_ROWS)
        data = recipe.data.model_copy(update={"max_documents": most})
        recipe = recipe.model_copy(update={"data": data})
        read = f"at most the first {plural(most, 'row')} of each file or split; --all reads all"
    tokenizer = tokenizer_of(recipe, source)
    prepared = prepare_examples(recipe, tokenizer, progress)
    return _view(recipe, tokenizer, prepared.splits, prepared.report, num_shown, read)


def _view_of_run(
    recipe: Recipe, source: str, num_shown: int, progress: Progress | None
) -> DataView:
    # Brings torch, which examples do not need.
    from brimful.kinds.run_data import gather  # noqa: PLC0415

    data = gather(recipe, source, progress)
    read = "all of it" if recipe.data.cache_gib is None else "its beginning"
    if recipe.kind.gives_labels:
        read += "; labels are learned, texts are only read"
    if recipe.kind.fills_masks:
        read += f"; {recipe.data.masked_share:.0%} of the tokens are learned, drawn anew each time"
    view = _view(recipe, data.tokenizer, data.splits, data.report, num_shown, read)
    return replace(view, weights=data.weights)


def _view(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    splits: Mapping[str, _Split],
    report: Mapping[str, Any],
    num_shown: int,
    read: str,
) -> DataView:
    rows = _RowsSeen(recipe, tokenizer, splits, report.get("bad_rows", ()))
    return DataView(
        recipe=recipe.name,
        method=recipe.method,
        read=read,
        rows=[*islice(rows, num_shown)],
        splits={
            name: _counts(each)
            for name, each in splits.items()
            if len(each.wheres or each.tokens_N)
        },
        notes=report.get("notes", ()),
        not_learned=report.get("not_learned", ()),
        bad_rows=report.get("bad_rows", ()),
    )


def _counts(split: _Split) -> SeenSplit:
    lengths_E = np.diff(split.offsets_E.astype(np.int64))
    edges = np.unique(np.linspace(lengths_E.min(), lengths_E.max() + 1, _BINS + 1).astype(int))
    counts, _ = np.histogram(lengths_E, edges)
    lengths = zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), counts.tolist(), strict=True)
    return SeenSplit(len(lengths_E), len(split.tokens_N), int(split.is_target_N.sum()), [*lengths])


class _RowsSeen:
    """The rows of a recipe in the order in which they are read, with what became of each."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerBase,
        splits: Mapping[str, _Split],
        bad_rows: Sequence[Mapping[str, str]],
    ) -> None:
        self._recipe, self._tokenizer, self._splits = recipe, tokenizer, splits
        self._reasons = {row["where"]: row["reason"] for row in bad_rows}
        self._places: dict[str, list[tuple[str, int]]] = {}
        for name, split in splits.items():
            for number, where in enumerate(split.wheres):
                self._places.setdefault(where, []).append((name, number))

    def __iter__(self) -> Iterator[SeenRow]:
        if not self._places:  # documents
            for number in range(len(self._splits["train"].offsets_E) - 1):
                example = self._example("train", number)
                yield SeenRow(f"document {number + 1} of train", None, [example])
            return
        for part in open_rows(self._recipe.data).parts:
            for rows in part.splits.values():
                for columns, where in rows:
                    examples = [self._example(*place) for place in self._places.get(where, ())]
                    yield SeenRow(where, columns, examples, self._reasons.get(where, ""))

    def _example(self, name: str, number: int) -> SeenExample:
        split = self._splits[name]
        start, end = map(int, split.offsets_E[number : number + 2])
        shown = slice(start, min(end, start + self._recipe.sequence_length + 1))
        ids = split.tokens_N[shown].tolist()
        stream = TextStream(self._tokenizer, keeps_special=True)
        texts = [*map(stream.push, ids)]
        texts[-1] += stream.flush()
        tokens = map(SeenToken, ids, texts, split.is_target_N[shown].tolist())
        return SeenExample(name, end - start, [*tokens])
