"""Held-out answers: every example's own loss, whatever goes through the model together."""

import numpy as np
import pytest
import torch
from fixture_types import Refuses
from transformers import PreTrainedModel

from brimful.base.errors import RequestError
from brimful.base.types import Progress
from brimful.data.examples import ExampleSplit
from brimful.data.formats import Example
from brimful.evaluation.completions import score_examples
from brimful.evaluation.likelihood import Likelihood, Scoring

LENGTHS, PROMPT = (9, 4, 12, 6, 6), 2


@pytest.fixture
def split() -> ExampleSplit:
    drawn = np.random.default_rng(3)
    is_target = np.concatenate([np.arange(length) >= PROMPT for length in LENGTHS])
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int64)
    examples = tuple(Example("a", "b", f"row {number}", "a") for number in range(len(LENGTHS)))
    return ExampleSplit(
        drawn.integers(0, 50, sum(LENGTHS)).astype(np.uint32), is_target, offsets, 100, examples
    )


def _scored(
    model: PreTrainedModel,
    split: ExampleSplit,
    budget: int,
    most: int | None = None,
    progress: Progress | None = None,
) -> Likelihood:
    how = Scoring(chunk_tokens=4, device=torch.device("cpu"), max_windows=most, progress=progress)
    return score_examples(model, split, how, budget_tokens=budget)


@pytest.mark.parametrize("budget", [1, 16, 1000])
def test_each_example_has_the_loss_that_it_has_alone(
    model: PreTrainedModel, split: ExampleSplit, budget: int
) -> None:
    score = _scored(model, split, budget)

    for number, length in enumerate(LENGTHS):
        start = int(split.offsets_E[number])
        ids = torch.from_numpy(split.tokens_N[start : start + length].astype(np.int64))[None]
        log_probabilities = model(ids).logits[0, :-1].log_softmax(-1)
        expected = (
            -log_probabilities[torch.arange(length - 1), ids[0, 1:]][PROMPT - 1 :].sum().item()
        )
        assert score.window_nats_N[number] == pytest.approx(expected, rel=1e-4)
    assert score.window_tokens_N.tolist() == [length - PROMPT for length in LENGTHS]
    assert score.loss == pytest.approx(score.window_nats_N.sum() / score.tokens)
    assert score.bytes == 100


def test_a_subset_is_spread_and_its_bytes_are_estimated(
    model: PreTrainedModel, split: ExampleSplit
) -> None:
    score = _scored(model, split, 1000, most=2)

    assert score.windows == 2
    assert score.tokens == LENGTHS[0] + LENGTHS[-1] - 2 * PROMPT
    assert score.bytes == round(100 * score.tokens / split.num_target_tokens)


@pytest.mark.parametrize(("most", "count"), [(None, len(LENGTHS)), (2, 2), (1000, len(LENGTHS))])
def test_progress_ends_with_all_examples_that_there_are(
    model: PreTrainedModel, split: ExampleSplit, most: int | None, count: int
) -> None:
    told: list[tuple[str, int, int | None]] = []
    _scored(model, split, 16, most, lambda *values: told.append(values))

    assert told[-1] == ("evaluate", count, count)


def test_nothing_to_score_is_an_error(model: PreTrainedModel, refuses: Refuses) -> None:
    empty = ExampleSplit(
        np.zeros(0, np.uint32), np.zeros(0, np.bool_), np.zeros(1, np.int64), 0, ()
    )

    with refuses(RequestError):
        _scored(model, empty, 16)
