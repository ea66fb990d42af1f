"""What is hidden in a sequence depends on the seed and its number only, in the shares that BERT
has.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.data.batches import IGNORED, MicroBatch
from brimful.data.masking import (
    MaskedBatch,
    MaskedSequences,
    MaskingRules,
    masked_evaluation_batches,
)
from brimful.data.tokens import TokenSplit
from brimful.model.description import CLS_ID, ENCODER_TOKENS, MASK_ID, PAD_ID, SEP_ID

MakeSplit = Callable[..., TokenSplit]

VOCABULARY, LENGTH = 500, 16
RULES = MaskingRules(0.25, VOCABULARY, seed=7)
FIRST = len(ENCODER_TOKENS)


@pytest.fixture
def split() -> MakeSplit:
    """Documents with the given numbers of tokens, ids counting upwards from the first ordinary one;
    each ends with [SEP].
    """

    def make(*lengths: int) -> TokenSplit:
        ids: list[int] = []
        offsets = [0]
        for length in lengths:
            ids += [
                *(FIRST + (len(ids) + place) % (VOCABULARY - FIRST) for place in range(length)),
                SEP_ID,
            ]
            offsets.append(len(ids))
        return TokenSplit(
            np.array(ids, dtype="<u2"),
            np.array(offsets, dtype="<u8"),
            sum(lengths),
            sum(lengths),
            len(lengths),
        )

    return make


def _plain(batch: MaskedBatch | MicroBatch) -> torch.Tensor:
    """The rows before anything was hidden."""
    return torch.where(batch.targets_BT == IGNORED, batch.inputs_BT, batch.targets_BT)


def _equal(one: MaskedBatch, other: MaskedBatch) -> bool:
    return torch.equal(one.inputs_BT, other.inputs_BT) and torch.equal(
        one.targets_BT, other.targets_BT
    )


def test_a_stream_sample_is_cls_and_the_tokens_that_follow_each_other(
    split: MakeSplit,
) -> None:
    batch = MaskedSequences(split(70, 70), LENGTH, "stream", "error", RULES).batch(0, 8)
    text = split(70, 70).tokens_N.astype(int).tolist()

    rows = _plain(batch).tolist()
    assert batch.mask_BT is None
    for row in rows:
        assert row[0] == CLS_ID
        assert len(row) == LENGTH
        assert any(text[start : start + LENGTH - 1] == row[1:] for start in range(len(text)))


def test_a_document_sample_is_cls_document_sep_and_padding_that_attention_does_not_see(
    split: MakeSplit,
) -> None:
    batch = MaskedSequences(split(3, 5, 9), LENGTH, "document", "error", RULES).batch(0, 3)

    assert batch.mask_BT is not None
    assert batch.inputs_BT.shape == (3, LENGTH)
    assert sorted(batch.mask_BT.sum(1).tolist()) == [5, 7, 11]
    for row, mask in zip(_plain(batch), batch.mask_BT.bool(), strict=True):
        inside = row[mask].tolist()
        assert inside[0] == CLS_ID
        assert inside[-1] == SEP_ID
        assert min(inside[1:-1]) >= FIRST
        assert (row[~mask] == PAD_ID).all()


def test_special_tokens_are_never_hidden_and_the_share_is_that_of_the_others(
    split: MakeSplit,
) -> None:
    batch = MaskedSequences(split(2, 5, 9, 14, 1), LENGTH, "document", "error", RULES).batch(0, 5)

    for plain, targets in zip(_plain(batch), batch.targets_BT, strict=True):
        hidden = targets != IGNORED
        assert (plain[hidden] >= FIRST).all()
        assert hidden.sum() == max(1, round(0.25 * int((plain >= FIRST).sum())))


def test_of_the_hidden_tokens_eight_in_ten_are_masks_and_one_is_random_and_one_itself(
    split: MakeSplit,
) -> None:
    batch = MaskedSequences(
        split(30_000), 128, "stream", "error", MaskingRules(0.3, VOCABULARY, seed=1)
    ).batch(0, 200)
    hidden = batch.targets_BT != IGNORED
    shown, truth = batch.inputs_BT[hidden], batch.targets_BT[hidden]
    count = len(truth)

    masks, kept = int((shown == MASK_ID).sum()), int((shown == truth).sum())
    random = shown[(shown != MASK_ID) & (shown != truth)]
    for number, share in (
        (masks, 0.8),
        (kept, 0.1),
        (len(random), 0.1),
    ):  # a random token is the true one once in 500
        assert number / count == pytest.approx(
            share, abs=4 * (share * (1 - share) / count) ** 0.5 + 0.001
        )
    assert random.min() >= FIRST
    assert random.max() < VOCABULARY
    assert len(random.unique()) > 0.7 * VOCABULARY
    assert torch.equal(batch.inputs_BT[~hidden], _plain(batch)[~hidden])


def test_a_sample_is_the_same_whatever_batch_it_comes_in_and_other_tokens_are_hidden_in_the_next_epoch(
    split: MakeSplit,
) -> None:
    for layout in ("stream", "document"):
        sequences = MaskedSequences(split(*range(3, 15)), LENGTH, layout, "error", RULES)
        whole = sequences.batch(0, 2 * len(sequences))
        for first, count in ((0, 3), (3, 1), (len(sequences) - 1, 2)):
            part = sequences.batch(first, count)
            width = part.inputs_BT.shape[1]
            assert torch.equal(part.inputs_BT, whole.inputs_BT[first : first + count, :width])
            assert torch.equal(part.targets_BT, whole.targets_BT[first : first + count, :width])
    by_document = {tuple(plain.tolist()): [] for plain in _plain(whole)}
    for plain, targets in zip(_plain(whole), whole.targets_BT, strict=True):
        by_document[tuple(plain.tolist())].append(tuple((targets != IGNORED).tolist()))
    assert all(len(places) == 2 for places in by_document.values())
    assert sum(first != second for first, second in by_document.values()) > len(by_document) / 2


def test_another_seed_hides_other_tokens_in_training_and_the_same_ones_in_scoring(
    split: MakeSplit,
) -> None:
    text, other = split(100), MaskingRules(0.25, VOCABULARY, seed=8)

    assert not _equal(
        *(
            MaskedSequences(text, LENGTH, "stream", "error", rules).batch(0, 4)
            for rules in (RULES, other)
        )
    )
    for one, two in zip(
        *(masked_evaluation_batches(text, LENGTH, 4, rules) for rules in (RULES, other)),
        strict=True,
    ):
        assert _equal(one, two)


@pytest.mark.parametrize("sizes", [(6,), (3, 3), (1,) * 6, (4, 2)], ids=str)
@pytest.mark.parametrize("layout", ["stream", "document"])
def test_micro_batches_are_the_rows_in_order_and_name_every_target(
    split: MakeSplit, layout: str, sizes: tuple[int, ...]
) -> None:
    batch = MaskedSequences(split(4, 9, 13, 6), LENGTH, layout, "error", RULES).batch(0, 6)
    micros = list(batch.micro_batches(sizes))

    assert [len(micro.inputs_BT) for micro in micros] == list(sizes)
    for name in ("inputs_BT", "targets_BT", *(["mask_BT"] if layout == "document" else [])):
        assert torch.equal(
            torch.cat([getattr(micro, name) for micro in micros]), getattr(batch, name)
        )
    for micro in micros:
        assert (
            micro.scored_N.tolist() == np.flatnonzero(micro.targets_BT.numpy() != IGNORED).tolist()
        )
    assert (
        sum(len(micro.scored_N) for micro in micros)
        == batch.num_target_tokens
        == batch.loss_divisor
    )


def test_scoring_reads_every_token_but_the_first_once_and_hides_the_same_whatever_the_batch_size(
    split: MakeSplit,
) -> None:
    text = split(50, 41)
    batches = list(masked_evaluation_batches(text, LENGTH, 3, RULES))
    by_one = list(masked_evaluation_batches(text, LENGTH, 1, RULES))

    rows = [row for batch in batches for row in _plain(batch).tolist()]
    assert [
        token for row in rows for token in row if token not in (CLS_ID, PAD_ID)
    ] == text.tokens_N[1:].tolist()
    assert all(row[0] == CLS_ID for row in rows)
    for name in ("inputs_BT", "targets_BT"):
        assert torch.equal(
            *(torch.cat([getattr(batch, name) for batch in some]) for some in (batches, by_one))
        )


def test_windows_spread_over_the_split_are_scored_where_not_all_are(
    split: MakeSplit,
) -> None:
    (batch,) = masked_evaluation_batches(split(300), LENGTH, 8, RULES, max_sequences=5)

    assert len(batch.inputs_BT) == 5
    assert _plain(batch)[-1].max() > 280


def test_sequences_of_empty_documents_alone_are_told(split: MakeSplit, refuses: Refuses) -> None:
    sequences = MaskedSequences(split(0, 0), LENGTH, "document", "error", RULES)

    with refuses(DataError):
        sequences.batch(0, 2)


def test_a_document_without_room_for_cls_and_sep_is_too_long(
    split: MakeSplit,
    refuses: Refuses,
) -> None:
    assert len(MaskedSequences(split(LENGTH - 2), LENGTH, "document", "error", RULES)) == 1
    with refuses(DataError, names=["15"]):
        MaskedSequences(split(LENGTH - 1), LENGTH, "document", "error", RULES)
