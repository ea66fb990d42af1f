"""Texts through a classifier: padding and passes change nothing but rounding, order is kept, memory
that runs out makes passes smaller.
"""

from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import Make, Refuses
from numpy.typing import NDArray
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaForSequenceClassification,
)

from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.classification.forward import ClassifierForward, keep_body_in
from brimful.data.labelled_batches import Passes

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=48,
        num_labels=3,
    )
    return BertForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def ids() -> list[NDArray[np.uint32]]:
    random = np.random.default_rng(0)
    return [
        random.integers(1, 50, length).astype(np.uint32) for length in random.integers(1, 40, 30)
    ]


@pytest.mark.parametrize("budget", [1, 64, 100_000])
def test_every_text_gets_the_logits_it_has_alone(
    model: BertForSequenceClassification, ids: list[NDArray[np.uint32]], budget: int
) -> None:
    with torch.inference_mode():
        alone = torch.cat(
            [model(input_ids=torch.from_numpy(each.astype(np.int64))[None]).logits for each in ids]
        )

    together = ClassifierForward(model, Passes(0, 40, 64), budget, CPU).logits(ids)

    np.testing.assert_allclose(together, alone.numpy(), atol=2e-6)


def test_no_texts_give_no_logits(model: BertForSequenceClassification) -> None:
    assert ClassifierForward(model, Passes(0, 40, 64), 64, CPU).logits([]).shape == (0, 3)


def _small(holds: int) -> Make:
    def refuse(module: Any, args: Any, kwargs: JsonDict) -> None:
        if len(kwargs["input_ids"]) > holds:
            raise torch.OutOfMemoryError("CUDA out of memory (for the test)")

    return refuse


def test_memory_that_runs_out_makes_passes_smaller_and_loses_nothing(
    model: BertForSequenceClassification, ids: list[NDArray[np.uint32]]
) -> None:
    expected = ClassifierForward(model, Passes(0, 40, 64), 100_000, CPU).logits(ids)
    told: list[int] = []
    hook = model.register_forward_pre_hook(_small(3), with_kwargs=True)
    try:
        forward = ClassifierForward(model, Passes(0, 40, 64), 100_000, CPU)
        found = forward.logits(ids, lambda what, done, total: told.append(done))
    finally:
        hook.remove()

    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert forward.budgets[0] == 100_000
    assert sorted(forward.budgets, reverse=True) == forward.budgets
    assert len(forward.budgets) > 2
    assert told[-1] == len(ids)


def test_one_text_that_does_not_fit_is_told(
    model: BertForSequenceClassification, ids: list[NDArray[np.uint32]], refuses: Refuses
) -> None:
    hook = model.register_forward_pre_hook(_small(0), with_kwargs=True)
    try:
        with refuses(RequestError):
            ClassifierForward(model, Passes(0, 40, 64), 64, CPU).logits(ids)
    finally:
        hook.remove()


def test_a_body_in_bf16_still_ranks_every_text(
    model: BertForSequenceClassification, ids: list[NDArray[np.uint32]]
) -> None:
    exact = ClassifierForward(model, Passes(0, 40, 64), 64, CPU).logits(ids)
    in_bf16 = ClassifierForward(model, Passes(0, 40, 64), 64, CPU, torch.bfloat16).logits(ids)

    np.testing.assert_allclose(in_bf16, exact, atol=0.02)
    assert len(np.unique(in_bf16[:, 0])) == len(np.unique(exact[:, 0]))
    with torch.inference_mode():
        assert model(input_ids=torch.tensor([[1, 2]])).logits.dtype == torch.float32


@pytest.mark.parametrize("kind", [BertForSequenceClassification, LlamaForSequenceClassification])
def test_weights_kept_in_bf16_change_no_bit(kind: Any, ids: list[NDArray[np.uint32]]) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = kind.config_class(vocab_size=50, num_attention_heads=2, pad_token_id=0, **sizes)
    model = kind(config).eval()
    forward = ClassifierForward(model, Passes(0, 40, 64), 64, CPU, torch.bfloat16)
    expected = forward.logits(ids)

    keep_body_in(model, torch.bfloat16)

    np.testing.assert_array_equal(forward.logits(ids), expected)
