"""Every token is scored once, and the numbers are those of the plain definition."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from fixture_types import Refuses
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from brimful.base.errors import RequestError
from brimful.data.tokens import TokenSplit
from brimful.evaluation import likelihood
from brimful.evaluation.likelihood import Likelihood, Scoring, score_split
from brimful.model.okadfa.modeling import OkadfaConfig, OkadfaForCausalLM

CPU = torch.device("cpu")


def score(model: PreTrainedModel, split: TokenSplit, **changes: object) -> Likelihood:
    of_windows = {"context": 16} | {
        name: changes.pop(name) for name in ("context", "stride") if name in changes
    }
    how = Scoring(**{"batch_size": 3, "chunk_tokens": 7, "device": CPU} | changes)
    return score_split(model, split, how, **of_windows)


def by_definition(model: PreTrainedModel, split: TokenSplit, context: int, stride: int) -> float:
    """Nats of all tokens but the first, one after the other, each from the window that has to score
    it.
    """
    ids = torch.from_numpy(split.tokens_N.astype(np.int64))
    nats = 0.0
    for target in range(1, len(ids)):
        window = 0 if target <= context else -(-(target - context) // stride)
        with torch.no_grad():
            logits_V = model(ids[None, window * stride : target], use_cache=False).logits[0, -1]
        nats -= float(functional.log_softmax(logits_V.double(), -1)[ids[target]])
    return nats


@pytest.mark.parametrize("stride", [None, 16, 5, 1])
@pytest.mark.parametrize("count", [2, 17, 18, 75])
def test_the_loss_is_that_of_the_definition(
    model: PreTrainedModel, splits, count: int, stride: int | None
) -> None:
    split = splits.random(count)
    scores = score(model, split, stride=stride)
    nats = by_definition(model, split, 16, stride or 16)
    assert scores.tokens == count - 1
    assert scores.window_tokens_N.sum() == count - 1
    assert scores.loss == pytest.approx(nats / (count - 1), rel=1e-5)
    assert scores.perplexity == pytest.approx(math.exp(nats / (count - 1)), rel=1e-4)
    assert scores.bits_per_byte == pytest.approx(nats / math.log(2) / (4 * count), rel=1e-5)
    assert scores.bytes == 4 * count
    assert len(scores.window_nats_N) == scores.windows


@pytest.mark.parametrize("stride", [16, 5])
def test_a_model_that_reads_without_limit_is_scored_in_windows_of_the_length_asked_for(
    splits, stride: int
) -> None:
    model, split = (
        OkadfaForCausalLM(
            OkadfaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        ).eval(),
        splits.random(75),
    )
    scores = score(model, split, stride=stride)
    assert scores.windows == 1 + -(-(74 - 16) // stride)
    assert scores.loss == pytest.approx(by_definition(model, split, 16, stride) / 74, rel=1e-5)


def test_a_model_that_knows_nothing_scores_the_logarithm_of_its_vocabulary(
    model: PreTrainedModel, splits
) -> None:
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    scores = score(model, splits.random(200))
    assert scores.loss == pytest.approx(math.log(50), rel=1e-6)
    assert scores.loss_interval is not None
    assert scores.loss_interval.high - scores.loss_interval.low < 1e-6


def test_the_interval_surrounds_the_value_in_both_units(model: PreTrainedModel, splits) -> None:
    scores = score(model, splits.random(500))
    assert scores.loss_interval is not None
    assert scores.bits_per_byte_interval is not None
    assert scores.loss_interval.low < scores.loss < scores.loss_interval.high
    assert (
        scores.bits_per_byte_interval.low
        < scores.bits_per_byte
        < scores.bits_per_byte_interval.high
    )


@pytest.mark.parametrize(("batch_size", "chunk_tokens"), [(1, 1), (2, 1000), (64, 16)])
def test_batch_and_chunk_sizes_change_nothing(
    model: PreTrainedModel, splits, batch_size: int, chunk_tokens: int
) -> None:
    split = splits.random(150)
    changed, usual = (
        score(model, split, batch_size=batch_size, chunk_tokens=chunk_tokens),
        score(model, split),
    )
    np.testing.assert_allclose(changed.window_nats_N, usual.window_nats_N, rtol=1e-5)


def test_some_windows_stand_for_their_share_of_the_bytes(model: PreTrainedModel, splits) -> None:
    scores = score(model, splits.random(161, 1), max_windows=4)
    assert (scores.windows, scores.tokens) == (4, 64)
    assert scores.bytes == round(4 * 161 * 64 / 160)
    assert scores.bits_per_byte == pytest.approx(
        scores.loss * 64 / math.log(2) / (4 * 161 * 64 / 160)
    )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 5.56 GB)"),
    ],
)
def test_running_out_of_memory_halves_the_batch_and_scores_only_what_failed_again(
    model: PreTrainedModel, splits, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    split, rows_seen = splits.random(400), []
    usual = score(model, split)
    real = likelihood.token_losses

    def small_device(
        hidden_BTD: Tensor,
        weight_VD: Tensor,
        targets_BT: Tensor,
        *,
        chunk_tokens: int,
        softcap: float | None,
    ) -> Tensor:
        rows_seen.append(len(targets_BT))
        if len(rows_seen) > 1 and len(targets_BT) > 2:
            raise error
        return real(hidden_BTD, weight_VD, targets_BT, chunk_tokens=chunk_tokens, softcap=softcap)

    monkeypatch.setattr(likelihood, "token_losses", small_device)
    scores = score(model, split, batch_size=8)
    np.testing.assert_allclose(scores.window_nats_N, usual.window_nats_N, rtol=1e-5)
    assert rows_seen == [8, 8, 4] + [2] * 8 + [1]
    assert (usual.batch_sizes, scores.batch_sizes) == ((3,), (8, 4, 2))


def test_when_not_even_one_window_fits_the_error_says_what_needs_less(
    model: PreTrainedModel, splits, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    def no_memory(*_: object, **__: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(likelihood, "token_losses", no_memory)
    model.train()
    with refuses(RequestError, names=["2.00", "16", "plan.loss_chunk"]):
        score(model, splits.random(100), batch_size=4)
    assert model.training


def test_autocast_stays_close(model: PreTrainedModel, splits) -> None:
    split = splits.random(300)
    assert score(model, split, autocast_dtype=torch.bfloat16).loss == pytest.approx(
        score(model, split).loss, rel=0.02
    )


def test_scoring_a_training_model_leaves_dropout_out_and_puts_it_back(
    model: PreTrainedModel, splits
) -> None:
    split = splits.random(100)
    usual = score(model, split).loss
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    assert score(model.train(), split).loss == usual
    assert model.training


def test_progress_counts_target_tokens_up_to_all(model: PreTrainedModel, splits) -> None:
    told: list[tuple[str, int, int | None]] = []
    score(model, splits.random(101), progress=lambda *report: told.append(report))
    assert told == [("evaluate", 48, 100), ("evaluate", 96, 100), ("evaluate", 100, 100)]


def test_the_record_is_json_and_complete(model: PreTrainedModel, splits) -> None:
    record = json.loads(json.dumps(score(model, splits.random(100)).to_json(), allow_nan=False))
    assert set(record) == {
        "loss",
        "perplexity",
        "bits_per_byte",
        "loss_interval",
        "bits_per_byte_interval",
        "tokens",
        "bytes",
        "documents",
        "seconds",
        "tokens_per_second",
        "context",
        "stride",
        "windows",
        "batch_sizes",
    }
    assert record["tokens_per_second"] == pytest.approx(record["tokens"] / record["seconds"])
    assert len(record["loss_interval"]) == 2


def test_perplexity_per_word_spreads_all_nats_over_the_words(
    model: PreTrainedModel, splits
) -> None:
    split = dataclasses.replace(splits.random(101), num_words=40)
    record = score(model, split).to_json()
    assert record["words"] == 40
    assert record["perplexity_per_word"] == pytest.approx(math.exp(record["loss"] * 100 / 40))
    part = score(model, split, max_windows=1).to_json()
    assert part["words"] == round(40 * 16 / 100)


def test_a_broken_model_is_recorded_as_broken_never_as_a_number(
    model: PreTrainedModel, splits
) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    record = json.loads(json.dumps(score(model, splits.random(100)).to_json(), allow_nan=False))
    assert record["loss"] is None
    assert record["loss_interval"] is None
    assert record["nonfinite"] == {"loss": "nan", "perplexity": "nan", "bits_per_byte": "nan"}


@pytest.mark.parametrize(
    "changes",
    [
        {"context": 17},
        {"context": 8, "stride": 9},
        {"stride": 0},
        {"batch_size": 0},
    ],
)
def test_requests_out_of_range_say_the_rule(
    model: PreTrainedModel, splits, changes: dict[str, object], refuses: Refuses
) -> None:
    with refuses(RequestError):
        score(model, splits.random(100), **changes)


def test_a_split_with_nothing_to_predict_is_refused(
    model: PreTrainedModel, splits, refuses: Refuses
) -> None:
    with refuses(RequestError, names=["1 tokens"]):
        score(model, splits.of([3]))


def test_a_head_with_a_bias_is_refused_instead_of_scored_without_it(
    model: PreTrainedModel, splits, refuses: Refuses
) -> None:
    model.get_output_embeddings().bias = torch.nn.Parameter(torch.ones(50))
    with refuses(RequestError, names=["bias"]):
        score(model, splits.random(100))
