"""What a recipe's data are to a model, before any training: by the functions that training uses."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from brimful.base.env import cache_folder
from brimful.base.text import plural
from brimful.base.types import Json, Numbers, Texts
from brimful.data.examples import prepare_examples, tokenizer_of
from brimful.data.sources import open_rows
from brimful.data.splits import SPLITS
from brimful.generation.text import TextStream
from brimful.model.tokenizer import load_tokenizer
from brimful.recipe import Recipe
from brimful.report.data_view import DataView, SeenExample, SeenRow, SeenSplit
from brimful.report.views import SeenToken

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
    if recipe.kind.first_rows == "documents":
        return _view_documents(recipe, source, num_shown)
    if recipe.kind.gives_labels:
        return _view_labels(recipe, source, num_shown)
    read = "all rows"
    if not whole:
        most = min(recipe.data.max_documents or FIRST_ROWS, FIRST_ROWS)
        limited = recipe.data.model_copy(update={"max_documents": most})
        recipe = recipe.model_copy(update={"data": limited})
        read = f"at most the first {plural(most, 'row')} of each file or split; --all reads all"
    tokenizer = tokenizer_of(recipe, source)
    prepared = prepare_examples(recipe, tokenizer)
    splits = prepared.splits
    if recipe.kind.draws_answers:
        read += "; what is learned are the model's own answers to these prompts"
        splits = {name: split.asked(prepared.template) for name, split in splits.items()}
    rows = _RowsSeen(recipe, tokenizer, splits)
    return _view(rows, prepared.report, num_shown, read, {})


def _view_documents(recipe: Recipe, source: str, num_shown: int) -> DataView:
    from brimful.data.prepare import prepare  # noqa: PLC0415 - examples do not need it

    published = load_tokenizer(source) if source else None
    data = prepare(recipe, cache_folder(), published=published)
    read = "all of it" if recipe.data.cache_gib is None else "its beginning"
    if recipe.kind.fills_masks:
        read += f"; {recipe.data.masked_share:.0%} of the tokens are learned, drawn anew each time"
    rows = _RowsSeen(recipe, data.tokenizer, data.splits)
    return _view(rows, data.report, num_shown, read, {})


def _view_labels(recipe: Recipe, source: str, num_shown: int) -> DataView:
    # A tenth of a second to import, which other data do not need.
    from brimful.data.labelled import read_labelled  # noqa: PLC0415
    from brimful.data.labelled_tokens import class_weights, encode_splits  # noqa: PLC0415

    texts, tokenizer = read_labelled(recipe), load_tokenizer(source, ends_texts=False)
    splits, report = encode_splits(texts, tokenizer, recipe)
    weights_C = class_weights(
        splits["train"].split.targets, texts.labels, recipe.label_rules.class_weights
    )
    weights = {} if weights_C is None else dict(zip(texts.labels.names, weights_C, strict=True))
    rows = _RowsSeen(recipe, tokenizer, splits)
    read = "all of it; what is learned is a text's label, not the text"
    return _view(rows, report, num_shown, read, weights)


def _view(
    rows: "_RowsSeen",
    report: Json,
    num_shown: int,
    read: str,
    weights: Numbers,
) -> DataView:
    recipe, splits = rows.recipe, rows.splits
    unit = {"documents": "document", "labels": "text", "pairs": "answer", "judged": "answer"}.get(
        recipe.kind.first_rows, "example"
    )
    return DataView(
        recipe=recipe.name,
        method=recipe.method,
        read=read,
        rows=[*islice(rows.seen(report.get("bad_rows", ())), num_shown)],
        splits={
            name: _counts(splits[name], unit)
            for name in SPLITS
            if name in splits and len(splits[name].offsets_E) > 1
        },
        notes=report.get("notes", ()),
        not_learned=report.get("not_learned", ()),
        bad_rows=report.get("bad_rows", ()),
        weights=weights,
    )


def _counts(split: Any, unit: str) -> SeenSplit:
    lengths_E = np.diff(split.offsets_E.astype(np.int64))
    edges = np.unique(np.linspace(lengths_E.min(), lengths_E.max() + 1, _BINS + 1).astype(int))
    counts, _ = np.histogram(lengths_E, edges)
    lengths = zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), counts.tolist(), strict=True)
    learned = int(split.is_target_N.sum())
    return SeenSplit(len(lengths_E), len(split.tokens_N), learned, [*lengths], unit)


@dataclass(frozen=True)
class _RowsSeen:
    """The rows of a recipe, and the splits that they became: of any kind of run, tokens N of
    examples E end to end, with the rows that they are from.
    """

    recipe: Recipe
    tokenizer: PreTrainedTokenizerBase
    splits: Json

    def seen(self, bad_rows: Iterable[Texts]) -> Iterator[SeenRow]:
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
            for columns, where, _ in chain.from_iterable(part.splits.values()):
                examples = [self._example(*place) for place in places.get(where, ())]
                yield SeenRow(where, columns, examples, reasons.get(where, "see the notes above"))

    def _example(self, name: str, number: int) -> SeenExample:
        split = self.splits[name]
        start, end = map(int, split.offsets_E[number : number + 2])
        shown = slice(start, min(end, start + self.recipe.sequence_length + 1))
        ids = split.tokens_N[shown].tolist()
        stream = TextStream(self.tokenizer, keeps_special=True)
        texts = [*map(stream.push, ids)]
        texts[-1] += stream.flush()
        added = self.tokenizer.added_tokens_decoder
        is_special = [number in added and added[number].special for number in ids]
        tokens = map(SeenToken, ids, texts, split.is_target_N[shown].tolist(), is_special)
        return SeenExample(name, end - start, [*tokens])
