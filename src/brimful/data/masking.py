"""Sequences with some of their tokens hidden, to be predicted from both sides (Devlin et al. 2019,
section 3.1 and appendix A.1).

What is hidden in a sample depends on the seed and the sample's number only: no batch border,
micro-batch or padding changes it. Suffixes: B sequences of a batch, T positions, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.base.arrays import Ints
from brimful.base.errors import DataError
from brimful.data.batches import IGNORED, Batch, MicroBatch
from brimful.data.sequences import TokenSequences, evaluation_batches, padded_width
from brimful.data.tokens import TokenSplit
from brimful.model.description import CLS_ID, ENCODER_TOKENS, MASK_ID, PAD_ID

MASKED, REPLACED = 0.8, 0.1
"""Of the hidden tokens, the shares that [MASK] and that a random token stands for; the rest shows
itself (Devlin et al. 2019, section 3.1).
"""
_DRAWS = 3
"""Per position: whether it is hidden, what stands there then, and which random token."""
_TRAINING, _SCORING = 1 << 32, 2 << 32
"""Added to the seed, which lies below, so that no other stream of the run is drawn again. Scoring
has no seed: runs are compared on the same choice.
"""


@dataclass(frozen=True)
class MaskingRules:
    """How tokens are hidden.

    Attributes:
        share: Share that is hidden of a sequence's tokens that are not special, rounded to whole
            ones, at least one where there is one.
        vocabulary: V; ids below `len(ENCODER_TOKENS)` are the special ones.
        seed: 0 to 2^32 - 1.
    """

    share: float
    vocabulary: int
    seed: int

    def hide(self, rows_BT: Ints, numbers_B: Ints, *, scoring: bool = False) -> tuple[Ints, Ints]:
        """What the model reads and what it is to predict, `IGNORED` where nothing is hidden.

        Args:
            rows_BT: Tokens, padded on the right.
            numbers_B: The numbers of the samples, or of the windows of a split.
            scoring: The choice that is the same whatever the seed, and none of training.
        """
        inputs_BT, targets_BT = rows_BT.copy(), np.full_like(rows_BT, IGNORED)
        tag = _SCORING if scoring else self.seed + _TRAINING
        for row_T, inputs_T, targets_T, number in zip(
            rows_BT, inputs_BT, targets_BT, numbers_B.tolist(), strict=True
        ):
            raw = (
                np.random.Philox(key=np.array([tag, number], dtype=np.uint64))
                .random_raw(_DRAWS * len(row_T))
                .reshape(-1, _DRAWS)
            )
            ordinary = np.flatnonzero(row_T >= len(ENCODER_TOKENS))
            count = max(1, round(self.share * len(ordinary)))
            hidden = ordinary[np.argsort(raw[ordinary, 0], kind="stable")[:count]]
            targets_T[hidden] = row_T[hidden]
            inputs_T[hidden] = self._shown(row_T[hidden], raw[hidden])
        return inputs_BT, targets_BT

    def _shown(self, tokens: Ints, raw: NDArray[np.uint64]) -> Ints:
        chance = (raw[:, 1] >> np.uint64(11)) / (1 << 53)
        specials = len(ENCODER_TOKENS)
        drawn = (raw[:, 2] % np.uint64(self.vocabulary - specials)).astype(np.int64) + specials
        return np.where(
            chance < MASKED, MASK_ID, np.where(chance < MASKED + REPLACED, drawn, tokens)
        )


@dataclass(frozen=True)
class MaskedBatch(Batch):
    """Sequences of one width, [CLS] first, with hidden tokens: a target is the token that stands at
    this very position, not the one after it.

    Attributes:
        mask_BT: int64, 0 where a position is padding; None where none is.
    """

    mask_BT: Tensor | None = None

    def micro_batches(self, sizes: tuple[int, ...]) -> Iterator[MicroBatch]:
        """Rows in order, `sizes` at a time."""
        masks: Sequence[Tensor | None] = (
            (None,) * len(sizes) if self.mask_BT is None else self.mask_BT.split(sizes)
        )
        for inputs_BT, targets_BT, mask_BT in zip(
            self.inputs_BT.split(sizes), self.targets_BT.split(sizes), masks, strict=True
        ):
            scored_N = (targets_BT.flatten() != IGNORED).nonzero()[:, 0]
            yield MicroBatch(inputs_BT, targets_BT, scored_N, mask_BT=mask_BT)


class MaskedSequences:
    """Endless numbered training samples of a split, each with tokens of its own hidden, other ones
    in every epoch (Liu et al. 2019, section 4.1).

    A sample is [CLS] and `sequence_length - 1` positions. Layout stream: tokens that follow each
    other, across documents, whose [SEP] stand between them (Liu et al. 2019, full sentences).
    Layout document: one document and its [SEP], padded.

    Args:
        split: Tokens to draw from; documents end with [SEP].
        sequence_length: Positions of a sequence (T).
        layout: stream or document.
        long_documents: What becomes of a document with more than T - 2 tokens, in layout document.
        rules: How tokens are hidden; its seed is that of the order, too.

    Raises:
        DataError: as `TokenSequences`; and from `batch`, where its sequences hold nothing but
            special tokens.
    """

    def __init__(
        self,
        split: TokenSplit,
        sequence_length: int,
        layout: Literal["stream", "document"],
        long_documents: Literal["error", "truncate", "split", "drop"],
        rules: MaskingRules,
    ) -> None:
        # [CLS] takes one position of every sequence.
        self._unmasked = TokenSequences(
            split, sequence_length - 1, layout, long_documents, rules.seed
        )
        self._sequence_length, self._rules = sequence_length, rules

    def __len__(self) -> int:
        """Sequences of one epoch; the same for every epoch."""
        return len(self._unmasked)

    def batch(self, first_sample: int, count: int) -> MaskedBatch:
        """Samples `first_sample` to `first_sample + count - 1`, a pure function of the seed and
        these numbers.
        """
        numbers_B = np.arange(first_sample, first_sample + count)
        batch = masked(
            self._unmasked.batch(first_sample, count), self._sequence_length, self._rules, numbers_B
        )
        if not batch.num_target_tokens:
            raise DataError(
                f"the training sequences {first_sample + 1} to {first_sample + count} are empty"
                " documents; leave such documents out."
            )
        return batch


def masked_evaluation_batches(
    split: TokenSplit,
    sequence_length: int,
    batch_size: int,
    rules: MaskingRules,
    max_sequences: int | None = None,
) -> Iterator[MaskedBatch]:
    """Windows end to end that hold every token of the split but the very first, with a fixed choice
    of hidden ones.

    Args:
        split: Tokens to score.
        sequence_length: Positions of a window (T), [CLS] included.
        batch_size: Windows per batch; the last batch may hold fewer.
        rules: How tokens are hidden.
        max_sequences: Only this many windows, spread evenly over the split; what is hidden in them
            depends on how many.

    Raises:
        DataError: fewer than two tokens; ValueError: batch_size or max_sequences out of range.
    """
    done = 0
    for plain in evaluation_batches(
        split, sequence_length - 1, sequence_length - 1, batch_size, max_sequences
    ):
        numbers_B = np.arange(done, done + len(plain.inputs_BT))
        done += len(numbers_B)
        yield masked(plain, sequence_length, rules, numbers_B, scoring=True)


def masked(
    plain: Batch,
    limit: int,
    rules: MaskingRules,
    numbers_B: Ints,
    *,
    scoring: bool = False,
) -> MaskedBatch:
    """[CLS] and what follows each position of a plain batch, `IGNORED` being padding, with hidden
    tokens.

    Args:
        plain: Sequences of at most `limit` - 1 positions, or of `limit`, of which the last then
            falls away.
        limit: Positions of a row at most.
        rules: How tokens are hidden.
        numbers_B: The numbers of the samples.
        scoring: See `MaskingRules.hide`.
    """
    tokens_BT = plain.targets_BT[:, : limit - 1]
    width = padded_width(tokens_BT.shape[1] + 1, limit)
    rows_BT = F.pad(
        F.pad(tokens_BT, (1, 0), value=CLS_ID), (0, width - tokens_BT.shape[1] - 1), value=IGNORED
    )
    is_text_BT = rows_BT != IGNORED
    inputs_BT, targets_BT = rules.hide(
        torch.where(is_text_BT, rows_BT, PAD_ID).numpy(), numbers_B, scoring=scoring
    )
    return MaskedBatch(
        torch.from_numpy(inputs_BT),
        torch.from_numpy(targets_BT),
        None if bool(is_text_BT.all()) else is_text_BT.long(),
    )
