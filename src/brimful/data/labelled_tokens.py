"""Texts with labels as token ids, without torch.

Suffixes: E texts of a split, C labels, N tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from brimful.base.arrays import Array, Bools, Floats32, Ints
from brimful.base.discover import did_you_mean
from brimful.base.errors import RecipeError
from brimful.base.types import JsonDict, Numbers
from brimful.data.account import Account
from brimful.data.bins import offsets_of
from brimful.data.labelled import LabelledSplit, LabelledTexts
from brimful.data.labels import Labels, label_counts
from brimful.data.row_layout import long_ones
from brimful.recipe import Recipe

Encode = Callable[[Sequence[str]], list[list[int]]]
"""Texts to token ids, with the special tokens that the model expects around them."""
_ENCODED_AT_ONCE = 4096
_FEW = 12
"""Labels that a line can list."""


@dataclass(frozen=True)
class EncodedLabels:
    """A split as token ids.

    Attributes:
        split: Its texts and labels.
        tokens_N: uint32, texts end to end, each with its special tokens.
        offsets_E: int64 [E + 1]; text e is `tokens_N[offsets_E[e]:offsets_E[e + 1]]`.
    """

    split: LabelledSplit
    tokens_N: NDArray[np.uint32]
    offsets_E: Ints

    def __len__(self) -> int:
        return len(self.offsets_E) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts together."""
        return len(self.tokens_N)

    @property
    def is_target_N(self) -> Bools:  # noqa: N802 - shape suffix
        """Whether a token is learned: none is, the label is."""
        return np.broadcast_to(np.False_, self.num_tokens)

    @property
    def wheres(self) -> Sequence[str]:
        """The row of each text."""
        return self.split.wheres

    @property
    def lengths_E(self) -> Ints:  # noqa: N802 - shape suffix
        """Tokens of each text."""
        return np.diff(self.offsets_E)

    def ids(self, number: int) -> NDArray[np.uint32]:
        """Token ids of one text."""
        return self.tokens_N[self.offsets_E[number] : self.offsets_E[number + 1]]


def encoder_of(tokenizer: PreTrainedTokenizerBase) -> Encode:
    """Whole texts to ids; special tokens stand around them, and what spells one inside a text is
    text.
    """

    def encode(texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(
            list(texts),
            add_special_tokens=True,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return ids

    return encode


def shortened(ids: list[int], most: int, num_special_at_end: int) -> list[int]:
    """The first `most` ids; special tokens that stand at the end stay there."""
    if len(ids) <= most:
        return ids
    tail = ids[len(ids) - num_special_at_end :]
    return [*ids[: most - len(tail)], *tail]


def special_tokens_at_end(tokenizer: PreTrainedTokenizerBase) -> int:
    """How many special tokens follow a text."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    (ids,) = encoder_of(tokenizer)(["a"])
    at_end = 0
    while at_end < len(ids) and ids[-1 - at_end] in special:
        at_end += 1
    return at_end


def encode_splits(
    texts: LabelledTexts, tokenizer: PreTrainedTokenizerBase, recipe: Recipe
) -> tuple[dict[str, EncodedLabels], JsonDict]:
    """All splits as ids, and the texts' report, which says how many were cut or dropped.

    Raises:
        DataError: as `encode_split`.
    """
    account = Account()
    splits = {
        name: encode_split(name, each, tokenizer, recipe, account)
        for name, each in texts.splits.items()
    }
    return splits, account.told_in(texts.report)


def encode_split(
    name: str,
    split: LabelledSplit,
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
    account: Account,
) -> EncodedLabels:
    """A split as ids, with `data.long_documents` (error, truncate or drop) for texts of more than
    `sequence_length` tokens; `account` gets the cut and the dropped ones.

    Raises:
        DataError: a text is too long and may not be, or none is left.
    """
    most, policy = recipe.sequence_length, recipe.data.long_documents
    encode, at_end = encoder_of(tokenizer), special_tokens_at_end(tokenizer)
    ids: list[list[int]] = []
    for start in range(0, len(split.texts), _ENCODED_AT_ONCE):
        ids += encode(split.texts[start : start + _ENCODED_AT_ONCE])
    lengths_E = np.array([*map(len, ids)], dtype=np.int64)
    is_long_E = long_ones(f"{name} texts", lengths_E, policy, most, split.wheres.__getitem__)
    count, kind = int(is_long_E.sum()), "cut"
    if policy == "drop":
        kind, split = "dropped", _some_of(split, ~is_long_E)
        ids = [*compress(ids, ~is_long_E)]
    account.add(kind, "", count=count, total=len(lengths_E), split=name, unit="text")
    cut = [shortened(each, most, at_end) for each in ids]
    tokens_N = np.fromiter(chain.from_iterable(cut), dtype=np.uint32)
    return EncodedLabels(split, tokens_N, offsets_of([*map(len, cut)]))


def class_weights(
    targets: Array, labels: Labels, chosen: Literal["none", "balanced"] | Numbers
) -> Floats32 | None:
    """Weights (C,) of the labels; None where all are 1.

    balanced: texts / (labels x texts with the label) (King and Zeng 2001; scikit-learn's
    convention); of texts with several labels, texts without the label / texts with it, on the texts
    that have it. A label without texts weighs 1.

    Raises:
        RecipeError: a weight for a label there is not.
    """
    if chosen == "none":
        return None
    if isinstance(chosen, str):
        counts_C = np.array(label_counts(targets, labels))
        if labels.multiple:
            others_C = len(targets) - counts_C
        else:
            others_C = np.full(len(labels.names), len(targets) / len(labels.names))
        return np.where(
            (counts_C > 0) & (others_C > 0), others_C / np.maximum(counts_C, 1), 1.0
        ).astype(np.float32)
    if unknown := [name for name in chosen if name not in labels.names]:
        raise RecipeError(
            "labels.class_weights: there is no label"
            f" {unknown[0]!r}{did_you_mean(unknown[0], labels.names)} Labels:"
            f" {', '.join(labels.names)}."
        )
    return np.array([chosen.get(name, 1.0) for name in labels.names], dtype=np.float32)


def told_of(
    splits: Mapping[str, EncodedLabels], labels: Labels, weights_C: Floats32 | None
) -> list[str]:
    """Return lines about the texts of each split and the weights, for before training."""
    lines, has_few = [], len(labels.names) <= _FEW
    for name, encoded in splits.items():
        shares = f"{len(labels.names)} labels"
        if has_few:
            counts = zip(labels.names, label_counts(encoded.split.targets, labels), strict=True)
            shares = ", ".join(f"{label} {count:,}" for label, count in counts)
        median, longest = int(np.median(encoded.lengths_E)), int(encoded.lengths_E.max())
        lines.append(
            f"{name}: {len(encoded):,} texts ({shares}) of {median} tokens in the median, the"
            f" longest {longest:,}"
        )
    if weights_C is not None and has_few:
        weights = zip(labels.names, weights_C.tolist(), strict=True)
        lines.append("weights: " + ", ".join(f"{label} {weight:.3g}" for label, weight in weights))
    return lines


def _some_of(split: LabelledSplit, kept_E: Bools) -> LabelledSplit:
    """The texts of a split for which `kept_E` is true."""
    return replace(
        split,
        texts=(*compress(split.texts, kept_E),),
        wheres=(*compress(split.wheres, kept_E),),
        targets=split.targets[kept_E],
        is_repeated_E=split.is_repeated_E[kept_E],
    )
