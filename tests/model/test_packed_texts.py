"""Texts end to end in one row get the logits and gradients of one text at a time."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from brimful.base.types import JsonDict
from brimful.model.description import PACKABLE_ENCODERS
from brimful.model.packed_texts import NAME, attend_within, groups_of, logits_of_packed
from brimful.model.registered import register

LENGTHS = (30, 17, 16, 9, 9, 2, 1)
VALUES: JsonDict = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 3,
}
OWN_VALUES: dict[str, JsonDict] = {
    "electra": {"embedding_size": 16},
    "modernbert": {"layer_types": ["full_attention"] * 2},
    "modernbert, mean": {"layer_types": ["full_attention"] * 2, "classifier_pooling": "mean"},
}


@pytest.fixture(autouse=True)
def _known() -> None:
    register()


def _model(kind: str) -> PreTrainedModel:
    """A tiny classifier, large enough that attention decides something."""
    config = AutoConfig.for_model(kind.partition(",")[0], **VALUES | OWN_VALUES.get(kind, {}))
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForSequenceClassification.from_config(
        config, attn_implementation=NAME
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model.eval()


def _texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, 60, (length,), generator=generator) for length in LENGTHS]


def _gradients(model: PreTrainedModel, logits_BC: Tensor) -> Iterator[Tensor]:
    model.zero_grad()
    F.cross_entropy(logits_BC, torch.arange(len(LENGTHS)) % 3).backward()
    yield from (
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    )


@pytest.mark.parametrize("kind", sorted(PACKABLE_ENCODERS | {"modernbert, mean"}))
def test_packed_texts_learn_what_they_learn_one_at_a_time(kind: str) -> None:
    model, texts = _model(kind), _texts()
    row_N = torch.cat([*texts, torch.full((5,), 1)])

    packed_BC = logits_of_packed(model, row_N[None], torch.tensor([*LENGTHS, 5]), len(LENGTHS))
    alone_BC = torch.cat([model(input_ids=text[None]).logits for text in texts])

    torch.testing.assert_close(packed_BC, alone_BC, rtol=1e-4, atol=1e-5)
    for made, expected in zip(
        _gradients(model, packed_BC), _gradients(model, alone_BC), strict=True
    ):
        torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-6)


def test_attention_drops_as_many_weights_as_asked_and_keeps_their_mean() -> None:
    torch.manual_seed(0)
    lengths = (40,) * 50
    heads = torch.zeros(2000, 2, 4)
    values = torch.ones(2000, 2, 4)

    attended = attend_within(heads, heads, values, lengths, scale=1.0, dropout=0.25)

    assert attended.mean().item() == pytest.approx(1.0, abs=0.02)
    # Of 40 equal weights those that are kept weigh 1 / 0.75 each.
    kept_per_query = attended[..., 0] * 40 * 0.75
    assert kept_per_query.mean().item() == pytest.approx(30, abs=0.6)
    assert kept_per_query.std().item() == pytest.approx((40 * 0.25 * 0.75) ** 0.5, rel=0.1)


def test_gradients_of_attention_are_those_of_its_formula_with_dropout() -> None:
    """The same masks are drawn again for every evaluation."""
    generator = torch.Generator().manual_seed(3)
    heads = [
        torch.randn(14, 2, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    ]

    def attended(*heads: Tensor) -> Tensor:
        torch.manual_seed(7)
        return attend_within(*heads, (6, 5, 3), scale=0.6, dropout=0.3)

    torch.autograd.gradcheck(attended, heads)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_every_position_has_a_place_of_its_own(lengths: list[int]) -> None:
    groups = groups_of(tuple(lengths), 2)

    assert [groups[0].begin, groups[-1].end] == [0, 2 * sum(lengths)]
    assert all(one.end == other.begin for one, other in pairwise(groups))
    for group in groups:
        taken = group.sources_S[group.places].tolist()
        assert taken == list(range(group.begin, group.end))
        assert (group.sources_S == 2 * sum(lengths)).sum() == len(group.sources_S) - len(taken)
