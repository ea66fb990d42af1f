"""The loss of rewarded answers against its papers' formulas on whole logits, and against TRL."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from preference_losses import gradients_of, small_model
from torch import Tensor

from brimful.data.examples import ExampleSplit
from brimful.recipe.rewards import RewardsRecipe
from brimful.selection.answer_journal import DrawnAnswer
from brimful.selection.answer_rounds import AnswerBatch, Round
from brimful.training.loop import accumulate_gradients
from brimful.training.method import Network, find_method, hidden_states_of
from brimful.training.methods.grpo import WATCHED, advantages_of
from brimful.training.precision import Precision

CPU, ANSWERS, GROUP, LENGTH, MOST = torch.device("cpu"), 6, 3, 30, 14
REWARDS_QG = np.array([[1.0, 0.0, 0.5], [0.0, 0.0, 2.0]])
APART = 0.3
"""Nats by which the weights that drew the answers differ: ratios are clipped on both sides."""
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "with kl": {"kl": 0.2, "clip": 0.1},
    "dr_grpo": {"loss": "dr_grpo"},
    "dapo": {"loss": "dapo"},
    "gspo": {"loss": "gspo", "clip": 0.05, "clip_high": 0.07},
    "weighted": {"weight_cap": 1.1},
}


@pytest.fixture(scope="module")
def drawn() -> Round:
    return drawn_round()


def drawn_round() -> Round:
    """Return answers of many lengths, drawn by other weights than those that learn."""
    generator = np.random.default_rng(3)
    tokens, is_target, lengths, answers = [], [], [], []
    old, sampled = [], []
    for number in range(ANSWERS):
        prompt = generator.integers(0, 280, generator.integers(2, 9))
        answer = generator.integers(0, 280, generator.integers(1, MOST))
        tokens += [prompt, answer]
        is_target += [np.zeros(len(prompt), bool), np.ones(len(answer), bool)]
        lengths.append(len(prompt) + len(answer))
        near = -np.log(280) + APART * generator.standard_normal((2, len(answer)))
        old.append(near[0].astype(np.float32).tolist())
        sampled.append(near[1].astype(np.float32).tolist())
        ids = answer.tolist()
        answers.append(DrawnAnswer("q", number, ids, sampled[-1], "end_of_text", ""))
    split = ExampleSplit(
        np.concatenate(tokens).astype(np.uint32),
        np.concatenate(is_target),
        np.concatenate([[0], np.cumsum(lengths)]),
        0,
        (),
    )
    found = {"old": old, "watched": dict.fromkeys(WATCHED, 0.5)}
    scale = RewardsRecipe().resolved.scale
    advantages_A = advantages_of(REWARDS_QG, scale).ravel()
    every_A = np.ones(ANSWERS, bool)
    return Round(0, split, answers, found, advantages_A, every_A, every_A)


def _model(folder: Path) -> Any:
    return small_model(folder, adapters_std=0.3, seed=5)


def _whole_log_probs(model: Any, split: ExampleSplit) -> list[Tensor]:
    """Log-probability of each token of each answer, from whole logits of one answer at a time."""
    found = []
    for start, end in zip(split.offsets_E, split.offsets_E[1:], strict=False):
        ids = torch.from_numpy(split.tokens_N[start:end].astype(np.int64))
        is_target = torch.from_numpy(split.is_target_N[start:end])
        shares = model(input_ids=ids[None]).logits[0, :-1].double().log_softmax(-1)
        found.append(shares.gather(1, ids[1:, None])[:, 0][is_target[1:]])
    return found


def _by_formula(
    rules: RewardsRecipe,
    log_probs: list[Tensor],
    drawn: Round,
    reference: list[Tensor],
) -> Tensor:
    """The loss as the papers have it, answer by answer in fp64."""
    losses = []
    for number, now in enumerate(log_probs):
        old = torch.tensor(drawn.found["old"][number], dtype=torch.float64)
        sampled = torch.tensor(drawn.answers[number].log_probs, dtype=torch.float64)
        advantage = float(drawn.advantages_A[number])
        ratio = (now - old).exp()
        if rules.loss == "gspo":  # Zheng et al. 2025, equation 7
            ratio = (now - old).mean().exp().expand_as(now)
        low, high = rules.clip or 0, rules.clip_high or 0
        clipped = torch.clip(ratio, 1 - low, 1 + high)
        each = -torch.minimum(ratio * advantage, clipped * advantage)
        if rules.weight_cap:
            each = each * (old - sampled).exp().clip(max=rules.weight_cap)
        if rules.kl:
            away = reference[number] - now
            each = each + rules.kl * (away.exp() - away - 1)
        losses.append(each)
    if rules.average == "token":  # Yu et al. 2025, equation 12
        return torch.cat(losses).mean()
    if rules.average == "constant":  # Liu et al. 2025, listing 1
        return torch.stack([each.sum() / MOST for each in losses]).mean()
    return torch.stack([each.mean() for each in losses]).mean()


def _by_brimful(
    model: Any, rules: RewardsRecipe, drawn: Round, layout: Any, size: int
) -> tuple[float, dict[str, Tensor], dict[str, list[float]]]:
    """Mean loss, gradients and noted values of a step in micro-batches of a size."""
    divisor = ANSWERS
    if rules.average == "token":
        divisor = sum(len(each.token_ids) for each in drawn.answers)
    batch = AnswerBatch.of(drawn, np.arange(ANSWERS), divisor, rules, LENGTH, layout)
    noted: dict[str, list[float]] = {}

    def note(name: str, values: Tensor, counts: Tensor) -> None:
        noted.setdefault(name, []).extend(values[counts > 0].tolist())

    model.zero_grad()
    network = Network(model, hidden_states_of(model), loss_chunk=5, note=note)
    options = {"rewards": rules.model_dump(mode="json")}
    method = find_method("grpo").with_options(options)
    pieces = list(batch.micro_batches((size,)))
    scale = torch.tensor(1 / batch.loss_divisor)
    loss = accumulate_gradients(network, method, Precision("fp32"), CPU, pieces, scale)
    assert len(pieces) > 1 or size == ANSWERS
    return float(loss) / batch.loss_divisor, gradients_of(model), noted


def _assert_equal(
    found: dict[str, Tensor], expected: dict[str, Tensor], most: float = 2e-6
) -> None:
    assert found.keys() == expected.keys()
    whole = torch.cat([each.flatten() for each in expected.values()])
    apart = torch.cat([(found[key] - each).flatten() for key, each in expected.items()])
    assert whole.any()
    assert apart.norm() <= most * whole.norm()


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradients_are_the_formulas_packed_and_padded_for_any_micro_batch(
    variant: str, drawn: Round, tmp_path: Path
) -> None:
    """The reference: the adapters switched off."""
    rules = RewardsRecipe(max_new_tokens=MOST, **VARIANTS[variant]).resolved
    model = _model(tmp_path / "own")
    reference = small_model(tmp_path / "reference", adapters_std=None)
    with torch.no_grad():
        of_reference = _whole_log_probs(reference, drawn.split)
    expected = _by_formula(rules, _whole_log_probs(model, drawn.split), drawn, of_reference)
    expected.backward()
    expected_gradients = gradients_of(model)

    for layout, size in itertools.product(("packed", "padded"), (1, 2, ANSWERS)):
        found, gradients, noted = _by_brimful(model, rules, drawn, layout, size)

        case = f"{layout}, {size} at once"
        assert found == pytest.approx(expected.item(), rel=2e-6, abs=1e-7), case
        _assert_equal(gradients, expected_gradients)
        assert ("kl" in noted) == (variant == "with kl")
        if variant == "grpo":
            assert 0 < np.mean(noted["clipped"]) < 1
            assert noted["reward"] == [0.5] * ANSWERS


def by_trl(
    model: Any, reference: Any, rules: RewardsRecipe, drawn: Round
) -> tuple[float, dict[str, Tensor], dict[str, Any]]:
    """Loss, gradients and metrics of TRL's own function, which gets log-probabilities from whole
    logits here.
    """
    import trl

    model.zero_grad()
    with torch.no_grad():
        of_reference = _table(_whole_log_probs(reference, drawn.split))
    old, sampled = _table(drawn.found["old"]), _table([each.log_probs for each in drawn.answers])
    mask = _table([np.ones(len(each.token_ids)) for each in drawn.answers])
    told: dict[str, Any] = {
        key: []
        for key in (
            "kl",
            "entropy",
            "clip_ratio/low_mean",
            "clip_ratio/high_mean",
            "clip_ratio/region_mean",
            "clip_ratio/low_min",
            "clip_ratio/high_max",
        )
    }
    config = {"use_bias_correction_kl": False, "delta": None, "steps_per_generation": 1}
    own = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda model, *_, **__: (
            _table(_whole_log_probs(model, drawn.split)),
            torch.zeros_like(mask),
            None,
        ),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        args=SimpleNamespace(**config),
        aux_loss_enabled=False,
        beta=rules.kl,
        current_gradient_accumulation_steps=1,
        epsilon_low=rules.clip,
        epsilon_high=rules.clip_high,
        importance_sampling_level="sequence" if rules.loss == "gspo" else "token",
        loss_type="grpo" if rules.loss == "gspo" else rules.loss,
        max_completion_length=MOST,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=rules.weight_cap is not None,
        vllm_importance_sampling_correction=True,
        _entropy_bonus_enabled=False,
        _metrics={"train": told},
    )
    inputs = {
        "prompt_ids": torch.zeros(ANSWERS, 1),
        "prompt_mask": torch.ones(ANSWERS, 1),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": torch.from_numpy(drawn.advantages_A),
        "old_per_token_logps": old,
        "ref_per_token_logps": of_reference,
        "importance_sampling_ratio": (old - sampled).exp().clamp(max=rules.weight_cap or 1.0),
        "num_items_in_batch": mask.sum(),
    }
    expected = trl.GRPOTrainer._compute_loss(own, model, inputs)
    expected.backward()
    return float(expected.detach()), gradients_of(model), told


TOLERANCES = {torch.float32: 2e-6, torch.float64: 5e-7}
"""In doubles all is as near as shares and advantages allow, which are kept in singles: what is
further apart in singles is rounding, as a loss is the small difference of large terms.
"""


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.filterwarnings("ignore")  # of TRL's own
def test_loss_and_gradients_are_those_of_trl(
    variant: str,
    dtype: torch.dtype,
    drawn: Round,
    tmp_path: Path,
) -> None:
    rules = RewardsRecipe(max_new_tokens=MOST, **VARIANTS[variant]).resolved
    model = _model(tmp_path / "own").to(dtype)
    reference = small_model(tmp_path / "reference", adapters_std=None).to(dtype)
    expected, expected_gradients, told = by_trl(model, reference, rules, drawn)

    found, gradients, noted = _by_brimful(model, rules, drawn, "packed", 2)

    apart = TOLERANCES[dtype]
    assert found == pytest.approx(expected, rel=apart, abs=1e-7)
    _assert_equal(gradients, expected_gradients, apart)
    if rules.kl:
        assert np.mean(noted["kl"]) == pytest.approx(told["kl"][-1], rel=1e-6)
    if rules.loss != "gspo":
        clipped = told["clip_ratio/region_mean"][-1]
        assert np.mean(noted["clipped"]) == pytest.approx(clipped, rel=1e-6)


def _table(rows: list[Any]) -> Tensor:
    """Values of answers, padded on the right; gradients pass."""
    tensors = [torch.as_tensor(row, dtype=torch.float64) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_are_those_of_trl(scale: str) -> None:
    """As its `_generate_and_score_completions` computes them."""
    rewards = torch.from_numpy(REWARDS_QG.ravel())
    means = rewards.view(-1, GROUP).mean(1).repeat_interleave(GROUP)
    deviation = {
        "group": rewards.view(-1, GROUP).std(1).repeat_interleave(GROUP) + 1e-4,
        "batch": rewards.std() + 1e-4,
        "none": torch.ones(()),
    }[scale]

    found: NDArray[np.float32] = advantages_of(REWARDS_QG, scale)

    assert found.ravel().tolist() == pytest.approx(((rewards - means) / deviation).tolist(), 1e-6)


def test_worse_answers_weigh_as_much_as_the_recipe_says() -> None:
    whole = advantages_of(REWARDS_QG, "group")

    weighed = advantages_of(REWARDS_QG, "group", 0.25)

    assert (whole < 0).any()
    np.testing.assert_allclose(weighed, np.where(whole < 0, 0.25 * whole, whole), rtol=1e-6)


def test_groups_of_equal_rewards_have_no_advantage() -> None:
    assert not advantages_of(np.ones((2, 4)), "group").any()
