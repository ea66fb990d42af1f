"""Tokens are drawn from the distribution that was asked for."""

import math

import numpy as np
import pytest
import torch

from brimful.base.errors import RequestError
from brimful.generation.sampler import GREEDY, SamplingSettings, next_token, sample_seeds
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
    wanted = np.zeros_like(probabilities)
    wanted[kept] = probabilities[kept] / probabilities[kept].sum()
    return wanted


def draw(settings: SamplingSettings, seed: int = 3) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    ids_B = next_token(LOGITS_V.expand(NUM_DRAWS, -1), settings, [generator] * NUM_DRAWS)
    return np.bincount(ids_B.numpy(), minlength=len(LOGITS_V))


def fits(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """Chi-square test at 1 in 10,000 (quantile by Wilson and Hilferty's approximation); impossible tokens must not occur."""
    possible = probabilities > 0
    if counts[~possible].any():
        return False
    expected = NUM_DRAWS * probabilities[possible]
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = max(possible.sum() - 1, 1)
    return bool(statistic < freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3)


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
    ],
    ids=str,
)
def test_draws_follow_the_model_within_the_filters(settings: SamplingSettings) -> None:
    assert fits(draw(settings), asked_for(settings))


def test_the_chi_square_test_notices_a_temperature_that_is_a_little_off() -> None:
    assert not fits(draw(SamplingSettings(1.0, None, 1.0)), asked_for(SamplingSettings(1.08, None, 1.0)))


def test_top_p_applies_after_top_k_renormalised() -> None:
    """Within the top 2 the first holds 0.62: enough for top_p 0.6, although it holds only 0.37 of the whole."""
    assert set(np.flatnonzero(draw(SamplingSettings(1.0, 2, 0.6)))) == {0}
    assert set(np.flatnonzero(draw(SamplingSettings(1.0, None, 0.6)))) == {0, 3}


@pytest.mark.parametrize(
    "settings", [GREEDY, SamplingSettings(1e-9, None, 1.0), SamplingSettings(1.0, 1, 1.0), SamplingSettings(1.0, None, 1e-9)], ids=str
)
def test_greedy_and_its_limits_take_the_likeliest_token(settings: SamplingSettings) -> None:
    logits_BV = torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    generators = [torch.Generator().manual_seed(row) for row in range(50)]
    assert torch.equal(next_token(logits_BV, settings, generators), logits_BV.argmax(-1))


@pytest.mark.parametrize("settings", [SamplingSettings(1.0, None, 1.0), SamplingSettings(0.8, 50, 0.9)], ids=str)
def test_a_row_draws_the_same_token_alone_and_in_a_batch(settings: SamplingSettings) -> None:
    logits_BV = torch.randn(16, 300, generator=torch.Generator().manual_seed(1))
    together = next_token(logits_BV, settings, [torch.Generator().manual_seed(seed) for seed in range(16)])
    alone = [next_token(logits_BV[row : row + 1], settings, [torch.Generator().manual_seed(row)]).item() for row in range(16)]
    assert together.tolist() == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
@pytest.mark.parametrize("settings", [SamplingSettings(1.0, None, 1.0), SamplingSettings(1.0, None, 0.7)], ids=str)
def test_the_ends_of_the_uniform_range_never_draw_a_token_without_probability(
    uniform: float, settings: SamplingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(uniform, dtype=torch.float64))
    logits_BV = torch.tensor([[-math.inf, 1.0, 0.3, -math.inf]])
    assert next_token(logits_BV, settings, [torch.Generator()]).item() == (1 if uniform == 0.0 else 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(1.0, None, 1.0)], ids=["greedy", "sampled"])
def test_logits_that_are_not_finite_are_refused(bad: float, settings: SamplingSettings) -> None:
    logits_BV = torch.zeros(2, 5)
    logits_BV[1, 3] = bad
    with pytest.raises(RequestError, match="not finite"):
        next_token(logits_BV, settings, [torch.Generator()] * 2)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((-0.1, None, 1.0), "temperature"),
        ((math.nan, None, 1.0), "temperature"),
        ((1.0, 0, 1.0), "top_k"),
        ((1.0, None, 0.0), "top_p"),
        ((1.0, None, 1.1), "top_p"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(values: tuple[float, int | None, float], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        SamplingSettings(*values)


def test_settings_come_from_the_recipe() -> None:
    assert SamplingSettings.from_recipe(SampleRecipe(temperature=0.5, top_k=None, top_p=0.9)) == SamplingSettings(0.5, None, 0.9)


def test_more_samples_leave_the_seeds_of_the_first_as_they_were() -> None:
    assert sample_seeds(1, 5) == sample_seeds(1, 50)[:5]
    assert len(set(sample_seeds(1, 50) + sample_seeds(2, 50))) == 100
