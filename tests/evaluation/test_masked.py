"""The loss of hidden tokens over a whole split is that of transformers, whatever the batch, and no
record calls it a perplexity.
"""

import numpy as np
import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from brimful.base.errors import RequestError
from brimful.data.masking import MaskingRules, masked_evaluation_batches
from brimful.data.tokens import TokenSplit
from brimful.evaluation.likelihood import Likelihood, Scoring
from brimful.evaluation.masked import score_masked
from brimful.model.build import build

CPU, CONTEXT, VOCABULARY = torch.device("cpu"), 16, 60
RULES = MaskingRules(0.2, VOCABULARY, seed=3)


@pytest.fixture
def model(tiny: MakeRecipe) -> PreTrainedModel:
    recipe = tiny(
        "method=mlm",
        "model.architecture=modernbert",
        "model.dropout=0.2",
        f"sequence_length={CONTEXT}",
    )
    return build(recipe, vocabulary=VOCABULARY, end_of_text_id=0, attention="sdpa", device=CPU)


@pytest.fixture
def split() -> TokenSplit:
    tokens = np.random.default_rng(0).integers(4, VOCABULARY, 200).astype("<u2")
    tokens[[70, 199]] = 2
    return TokenSplit(tokens, np.array([0, 71, 200], "<u8"), 500, 480, 2)


def _score(
    model: PreTrainedModel, split: TokenSplit, batch_size: int = 4, most: int | None = None
) -> Likelihood:
    return score_masked(
        model,
        split,
        RULES,
        Scoring(batch_size=batch_size, chunk_tokens=7, device=CPU, max_windows=most),
        context=CONTEXT,
    )


def test_the_loss_is_the_mean_over_all_hidden_tokens_of_all_windows(
    model: PreTrainedModel, split: TokenSplit
) -> None:
    scored = _score(model, split)

    model.eval()
    nats, tokens = 0.0, 0
    for batch in masked_evaluation_batches(split, CONTEXT, 1, RULES):
        with torch.no_grad():
            logits_BTV = model(input_ids=batch.inputs_BT, attention_mask=batch.mask_BT).logits
        nats += float(
            F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets_BT.flatten(), reduction="sum")
        )
        tokens += batch.num_target_tokens
    assert scored.tokens == tokens == int(scored.window_tokens_N.sum())
    assert scored.loss == pytest.approx(nats / tokens, rel=1e-5)
    assert scored.loss_interval is not None
    assert scored.loss_interval.low < scored.loss < scored.loss_interval.high


@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_the_batch_size_changes_nothing_and_the_model_stays_in_training_mode(
    model: PreTrainedModel, split: TokenSplit, batch_size: int
) -> None:
    model.train()
    one, other = _score(model, split), _score(model, split, batch_size)

    np.testing.assert_allclose(one.window_nats_N, other.window_nats_N, rtol=1e-4)
    assert one.loss == pytest.approx(other.loss, rel=1e-5)
    assert model.training


def test_the_record_says_masked_and_holds_no_perplexity(
    model: PreTrainedModel, split: TokenSplit
) -> None:
    record = _score(model, split).to_json()

    assert (record["kind"], record["masked_share"], record["documents"], record["context"]) == (
        "masked",
        0.2,
        2,
        CONTEXT,
    )
    assert {
        "loss",
        "loss_interval",
        "tokens",
        "seconds",
        "tokens_per_second",
        "windows",
        "batch_sizes",
    } <= set(record)
    assert not {"perplexity", "bits_per_byte", "bits_per_byte_interval", "bytes", "stride"} & set(
        record
    )


def test_a_loss_that_is_not_finite_is_told_in_words(
    model: PreTrainedModel, split: TokenSplit
) -> None:
    with torch.no_grad():
        model.head.norm.weight.fill_(torch.nan)

    assert _score(model, split).to_json()["nonfinite"] == {"loss": "nan"}


def test_fewer_windows_can_be_scored(model: PreTrainedModel, split: TokenSplit) -> None:
    assert _score(model, split, most=3).windows == 3 < _score(model, split).windows


def test_a_last_window_with_nothing_but_the_end_of_a_document_is_no_window(
    model: PreTrainedModel,
) -> None:
    tokens = np.array(
        [*range(5, 5 + CONTEXT), 2], "<u2"
    )  # 15 tokens follow the first, then [SEP] alone
    scored = _score(model, TokenSplit(tokens, np.array([0, len(tokens)], "<u8"), 16, 16, 1))

    assert scored.windows == 1


@pytest.mark.parametrize("tokens", [[5], [2, 2, 2]])
def test_a_split_without_text_is_refused(
    model: PreTrainedModel, tokens: list[int], refuses: Refuses
) -> None:
    with refuses(RequestError):
        _score(
            model, TokenSplit(np.array(tokens, "<u2"), np.array([0, len(tokens)], "<u8"), 1, 1, 1)
        )
