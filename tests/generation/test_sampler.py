"""Tokens are drawn from the distribution that was asked for."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.generation.sampler import (
    GREEDY,
    SamplingSettings,
    checked,
    next_token,
    penalised,
    sample_seeds,
    uniform_numbers,
)
from brimful.recipe import SampleRecipe

NUM_DRAWS = 20_000
LOGITS_V = torch.tensor([2.0, -1.0, 0.5, 1.5, 0.0, -3.0, 1.0, -0.5, 0.25, -2.0])


def asked_for(settings: SamplingSettings) -> np.ndarray:
    """The distribution by its definition, one token after the other."""
    logits = LOGITS_V.double().numpy() / settings.temperature
    probabilities = np.exp(logits) / np.exp(logits).sum()
    order = np.argsort(-probabilities)[: settings.top_k]
    within_k = probabilities[order].sum()
    kept, mass = [], 0.0
    for token in order:
        kept.append(token)
        mass += probabilities[token] / within_k
        if mass >= settings.top_p:
            break
    kept = [token for token in kept if probabilities[token] >= settings.min_p * probabilities.max()]
    wanted = np.zeros_like(probabilities)
    wanted[kept] = probabilities[kept] / probabilities[kept].sum()
    return wanted


def draw(settings: SamplingSettings, seed: int = 3) -> np.ndarray:
    ids_B = next_token(
        LOGITS_V.expand(NUM_DRAWS, -1),
        settings,
        uniform_numbers([seed] * NUM_DRAWS, range(NUM_DRAWS)),
    )
    return np.bincount(ids_B.numpy(), minlength=len(LOGITS_V))


def fits(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """Chi-square test at 1 in 10,000 (quantile by Wilson and Hilferty's approximation); impossible
    tokens must not occur.
    """
    possible = probabilities > 0
    if counts[~possible].any():
        return False
    expected = NUM_DRAWS * probabilities[possible]
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = max(possible.sum() - 1, 1)
    return bool(
        statistic < freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(1.0, None, 1.0),
        SamplingSettings(0.6, None, 1.0),
        SamplingSettings(1.7, None, 1.0),
        SamplingSettings(1.0, 4, 1.0),
        SamplingSettings(1.0, None, 0.8),
        SamplingSettings(0.9, 6, 0.7),
        SamplingSettings(1.0, 1000, 0.95),
        SamplingSettings(1.0, None, 1.0, min_p=0.2),
        SamplingSettings(1.2, 6, 0.9, min_p=0.3),
    ],
    ids=str,
)
def test_draws_follow_the_model_within_the_filters(settings: SamplingSettings) -> None:
    assert fits(draw(settings), asked_for(settings))


def test_the_chi_square_test_notices_a_temperature_that_is_a_little_off() -> None:
    assert not fits(
        draw(SamplingSettings(1.0, None, 1.0)), asked_for(SamplingSettings(1.08, None, 1.0))
    )


def test_top_p_applies_after_top_k_renormalised() -> None:
    """Within the top 2 the first holds 0.62: enough for top_p 0.6, although it holds only 0.37 of
    the whole.
    """
    assert set(np.flatnonzero(draw(SamplingSettings(1.0, 2, 0.6)))) == {0}
    assert set(np.flatnonzero(draw(SamplingSettings(1.0, None, 0.6)))) == {0, 3}


@pytest.mark.parametrize(
    "settings",
    [
        GREEDY,
        SamplingSettings(1e-9, None, 1.0),
        SamplingSettings(1e-300, None, 1.0),
        SamplingSettings(1e-300, 5, 0.5),
        SamplingSettings(1.0, 1, 1.0),
        SamplingSettings(1.0, None, 1e-9),
    ],
    ids=str,
)
def test_greedy_and_its_limits_take_the_likeliest_token(settings: SamplingSettings) -> None:
    logits_BV = torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        next_token(logits_BV, settings, uniform_numbers(range(50), [0] * 50)), logits_BV.argmax(-1)
    )


@pytest.mark.parametrize(
    "settings", [SamplingSettings(1.0, None, 1.0), SamplingSettings(0.8, 50, 0.9)], ids=str
)
def test_a_row_draws_the_same_token_alone_and_in_a_batch(settings: SamplingSettings) -> None:
    logits_BV = torch.randn(16, 300, generator=torch.Generator().manual_seed(1))
    together = next_token(logits_BV, settings, uniform_numbers(range(16), [5] * 16))
    alone = [
        next_token(logits_BV[row : row + 1], settings, uniform_numbers([row], [5])).item()
        for row in range(16)
    ]
    assert together.tolist() == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
@pytest.mark.parametrize(
    "settings", [SamplingSettings(1.0, None, 1.0), SamplingSettings(1.0, None, 0.7)], ids=str
)
@pytest.mark.parametrize("width", [4, 1000])
def test_the_ends_of_the_uniform_range_never_draw_a_token_without_probability(
    uniform: float, settings: SamplingSettings, width: int
) -> None:
    logits_BV = torch.full((1, width), -math.inf)
    logits_BV[0, 1:3] = torch.tensor([1.0, 0.3])
    assert next_token(logits_BV, settings, np.array([uniform])).item() == (
        1 if uniform == 0.0 else 2
    )


@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(0.7, None, 1.0),
        SamplingSettings(2.0, None, 0.9),
        SamplingSettings(2.0, None, 0.999),
    ],
    ids=str,
)
def test_wide_vocabularies_are_searched_as_a_running_sum_over_all_tokens_says(
    settings: SamplingSettings,
) -> None:
    """Blocks, and the few likeliest tokens that are looked at first, change nothing."""
    logits_BV = 3 * torch.randn(60, 5003, generator=torch.Generator().manual_seed(2))
    uniform_B = uniform_numbers(range(60), [0] * 60)
    probabilities, order = (
        (logits_BV.double() / settings.temperature).softmax(-1),
        torch.arange(5003).expand(60, -1),
    )
    if settings.top_p < 1:
        probabilities, order = probabilities.sort(descending=True)
        probabilities[probabilities.cumsum(-1) - probabilities >= settings.top_p] = 0
    cumulative = probabilities.cumsum(-1)
    rank = torch.searchsorted(
        cumulative, torch.from_numpy(uniform_B)[:, None] * cumulative[:, -1:], right=True
    )
    assert torch.equal(next_token(logits_BV, settings, uniform_B), order.gather(1, rank)[:, 0])


def test_uniform_numbers_are_uniform_and_depend_on_seed_and_number_alone() -> None:
    numbers = np.stack([uniform_numbers([seed] * 2000, range(2000)) for seed in range(20)])
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    assert abs(np.corrcoef(numbers) - np.eye(20)).max() < 0.1
    assert abs(np.corrcoef(numbers[:, 1:].ravel(), numbers[:, :-1].ravel())[0, 1]) < 0.02
    counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
    assert ((counts - 800) ** 2 / 800).sum() < 95
    assert uniform_numbers([3, 4], [7, 9]).tolist() == [numbers[3, 7], numbers[4, 9]]
    assert uniform_numbers([-1], [0]) == uniform_numbers([2**64 - 1], [0])


def test_the_penalty_lowers_what_was_said_whatever_its_sign() -> None:
    logits_BV, said_BV = torch.tensor([[2.0, -2.0, 1.0]]), torch.tensor([[True, True, False]])
    assert penalised(logits_BV, said_BV, 2.0).tolist() == [[1.0, -4.0, 1.0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "settings", [GREEDY, SamplingSettings(1.0, None, 1.0)], ids=["greedy", "sampled"]
)
def test_logits_that_are_not_finite_are_refused(bad: float, settings: SamplingSettings) -> None:
    logits_BV = torch.zeros(2, 5)
    logits_BV[1, 3] = bad
    with pytest.raises(RequestError, match="not finite"):
        checked(next_token(logits_BV, settings, np.array([0.1, 0.2])))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((1.0, None, 1.0, 1.1), "min_p"),
        ((1.0, None, 1.0, 0.0, 0.0), "repetition_penalty"),
        ((-0.1, None, 1.0), "temperature"),
        ((math.nan, None, 1.0), "temperature"),
        ((1.0, 0, 1.0), "top_k"),
        ((1.0, None, 0.0), "top_p"),
        ((1.0, None, 1.1), "top_p"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(
    values: Any, named: str, refuses: Refuses
) -> None:
    with refuses(RequestError, names=[named]):
        SamplingSettings(*values)


def test_settings_come_from_the_recipe() -> None:
    assert SamplingSettings.from_recipe(
        SampleRecipe(temperature=0.5, top_k=None, top_p=0.9)
    ) == SamplingSettings(0.5, None, 0.9)


def test_more_samples_leave_the_seeds_of_the_first_as_they_were() -> None:
    assert sample_seeds(1, 5) == sample_seeds(1, 50)[:5]
    assert len(set(sample_seeds(1, 50) + sample_seeds(2, 50))) == 100
