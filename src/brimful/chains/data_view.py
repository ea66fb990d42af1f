"""What a recipe's data are to a model, before any training: by the functions that training uses."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from brimful.base.text import plural
from brimful.data.examples import prepare_examples, tokenizer_of
from brimful.data.sources import open_rows
from brimful.generation.text import TextStream
from brimful.recipe import Recipe
from brimful.report.data_view import DataView, SeenExample, SeenRow, SeenSplit, SeenToken

FIRST_ROWS = 1000
"""Of each file of examples, that are read if not all are asked for: a second of CPU time."""
_BINS = 8


def view_data(recipe: Recipe, source: str, num_shown: int, *, whole: bool = False) -> DataView:
    """Prepare the data of a recipe as training does, and return what is learned of them.

    Args:
        recipe: any that trains.
        source: hub id or folder of the published model; empty for a fresh one. Its weights are not
            loaded.
        num_shown: rows that are shown.
        whole: all rows of examples are read, not the first `FIRST_ROWS` of each split.

    Raises:
        DataError, PlanError: as in training.
    """
    if recipe.kind.rows != "examples":
        # Brings torch, which examples do not need.
        from brimful.kinds.run_data import gather  # noqa: PLC0415

        data = gather(recipe, source)
        read = "all of it" if recipe.data.cache_gib is None else "its beginning"
        if recipe.kind.gives_labels:
            read += "; labels are learned, texts are only read"
        if recipe.kind.fills_masks:
            read += (
                f"; {recipe.data.masked_share:.0%} of the tokens are learned, drawn anew each time"
            )
        rows = _RowsSeen(recipe, data.tokenizer, data.splits)
        return _view(rows, data.report, num_shown, read, data.weights)
    read = "all rows"
    if not whole:
        most = min(recipe.data.max_documents or FIRST_ROWS, FIRST_ROWS)
        limited = recipe.data.model_copy(update={"max_documents": most})
        recipe = recipe.model_copy(update={"data": limited})
        read = f"at most the first {plural(most, 'row')} of each file or split; --all reads all"
    tokenizer = tokenizer_of(recipe, source)
    prepared = prepare_examples(recipe, tokenizer)
    rows = _RowsSeen(recipe, tokenizer, prepared.splits)
    return _view(rows, prepared.report, num_shown, read, {})


def _view(
    rows: "_RowsSeen",
    report: Mapping[str, Any],
    num_shown: int,
    read: str,
    weights: Mapping[str, float],
) -> DataView:
    recipe, splits = rows.recipe, rows.splits
    return DataView(
        recipe=recipe.name,
        method=recipe.method,
        read=read,
        rows=[*islice(rows.seen(report.get("bad_rows", ())), num_shown)],
        splits={name: _counts(each) for name, each in splits.items() if len(each.offsets_E) > 1},
        notes=report.get("notes", ()),
        not_learned=report.get("not_learned", ()),
        bad_rows=report.get("bad_rows", ()),
        weights=weights,
    )


def _counts(split: Any) -> SeenSplit:
    lengths_E = np.diff(split.offsets_E.astype(np.int64))
    edges = np.unique(np.linspace(lengths_E.min(), lengths_E.max() + 1, _BINS + 1).astype(int))
    counts, _ = np.histogram(lengths_E, edges)
    lengths = zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), counts.tolist(), strict=True)
    return SeenSplit(len(lengths_E), len(split.tokens_N), int(split.is_target_N.sum()), [*lengths])


@dataclass(frozen=True)
class _RowsSeen:
    """The rows of a recipe, and the splits that they became: of any kind of run, tokens N of
    examples E end to end, with the rows that they are from.
    """

    recipe: Recipe
    tokenizer: PreTrainedTokenizerBase
    splits: Mapping[str, Any]

    def seen(self, bad_rows: Iterable[Mapping[str, str]]) -> Iterator[SeenRow]:
        """Yield them in the order in which they are read, with what became of each."""
        reasons = {row["where"]: row["reason"] for row in bad_rows}
        places: dict[str, list[tuple[str, int]]] = {}
        for name, split in self.splits.items():
            for number, where in enumerate(split.wheres):
                places.setdefault(where, []).append((name, number))
        if not places:  # documents
            for number in range(len(self.splits["train"].offsets_E) - 1):
                yield SeenRow(
                    f"document {number + 1} of train", None, [self._example("train", number)]
                )
            return
        for part in open_rows(self.recipe.data).parts:
            for columns, where in chain.from_iterable(part.splits.values()):
                examples = [self._example(*place) for place in places.get(where, ())]
                yield SeenRow(where, columns, examples, reasons.get(where, ""))

    def _example(self, name: str, number: int) -> SeenExample:
        split = self.splits[name]
        start, end = map(int, split.offsets_E[number : number + 2])
        shown = slice(start, min(end, start + self.recipe.sequence_length + 1))
        ids = split.tokens_N[shown].tolist()
        stream = TextStream(self.tokenizer, keeps_special=True)
        texts = [*map(stream.push, ids)]
        texts[-1] += stream.flush()
        tokens = map(SeenToken, ids, texts, split.is_target_N[shown].tolist())
        return SeenExample(name, end - start, [*tokens])
