"""The losses of pairs of answers against their papers' formulas, written out on whole logits."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fixture_types import MakeRecipe
from preference_losses import gradients_of, small_model, trainer_of_trl, whole_log_probs
from torch import Tensor

from brimful.base.types import JsonDict
from brimful.data.batches import IGNORED, MicroBatch
from brimful.data.example_batches import ExampleSequences
from brimful.data.examples import ExampleSplit
from brimful.data.formats import Example
from brimful.kinds.pairs import PairSequences
from brimful.model.packed_attention import NAME, register
from brimful.recipe import Recipe
from brimful.recipe.preference import PreferenceRecipe
from brimful.training.loop import accumulate_gradients
from brimful.training.method import Network, find_method, hidden_states_of
from brimful.training.methods.dpo import named_values, pair_losses
from brimful.training.precision import Precision

CPU, PAIRS, LENGTH = torch.device("cpu"), 6, 24


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def _odds(log_share: Tensor) -> Tensor:
    share = torch.exp(log_share)
    return share / (1 - share)


# Of each loss: policy and reference log-probabilities and tokens of the chosen (w) and of the
# rejected answer (n), float64 -> the loss of a pair, without the loss of method sft.
Formula = Callable[..., Tensor]
FORMULAS: dict[str, tuple[JsonDict, Formula]] = {
    # Rafailov et al. 2023, equation 7
    "sigmoid": (
        {"beta": 0.3},
        lambda w, n, rw, rn, tw, tn: -torch.log(_sigmoid(0.3 * (w - rw) - 0.3 * (n - rn))),
    ),
    # ... with labels flipped with probability 0.2 (its appendix; conservative DPO)
    "smoothed": (
        {"loss": "sigmoid", "beta": 0.3, "label_smoothing": 0.2},
        lambda w, n, rw, rn, tw, tn: (
            -0.8 * torch.log(_sigmoid(0.3 * (w - rw - n + rn)))
            - 0.2 * torch.log(_sigmoid(-0.3 * (w - rw - n + rn)))
        ),
    ),
    # ... of log-probabilities per token
    "per token": (
        {"loss": "sigmoid", "beta": 0.3, "per_token": True},
        lambda w, n, rw, rn, tw, tn: -torch.log(_sigmoid(0.3 * ((w - rw) / tw - (n - rn) / tn))),
    ),
    # Zhao et al. 2023, with the reference of DPO
    "hinge": (
        {"beta": 0.3},
        lambda w, n, rw, rn, tw, tn: torch.clamp(1 - 0.3 * (w - rw - n + rn), min=0),
    ),
    # Azar et al. 2023, equation 17, tau 0.3
    "ipo": (
        {"beta": 0.3},
        lambda w, n, rw, rn, tw, tn: ((w - rw) / tw - (n - rn) / tn - 1 / 0.6) ** 2,
    ),
    # Chowdhury et al. 2024, equation 12
    "robust": (
        {"beta": 0.3, "label_smoothing": 0.1},
        lambda w, n, rw, rn, tw, tn: (
            (
                -0.9 * torch.log(_sigmoid(0.3 * (w - rw - n + rn)))
                + 0.1 * torch.log(_sigmoid(-0.3 * (w - rw - n + rn)))
            )
            / 0.8
        ),
    ),
    # Meng et al. 2024, equation 6
    "simpo": (
        {"margin": 0.5},
        lambda w, n, rw, rn, tw, tn: -torch.log(_sigmoid(2.0 * w / tw - 2.0 * n / tn - 0.5)),
    ),
    # Hong et al. 2024, equations 6 and 7
    "orpo": (
        {"beta": 0.25},
        lambda w, n, rw, rn, tw, tn: (
            -0.25 * torch.log(_sigmoid(torch.log(_odds(w / tw) / _odds(n / tn))))
        ),
    ),
    # Xu et al. 2024, equation 3
    "cpo": ({}, lambda w, n, rw, rn, tw, tn: -torch.log(_sigmoid(0.1 * w - 0.1 * n))),
}
SFT_WEIGHTS = {"orpo": 1.0, "cpo": 1.0}


@pytest.fixture(scope="module")
def split() -> ExampleSplit:
    """Six pairs of answers of many lengths to prompts of many lengths."""
    generator = np.random.default_rng(3)
    tokens, is_target, lengths = [], [], []
    for _ in range(PAIRS):
        prompt = generator.integers(0, 280, generator.integers(2, 9))
        for _ in range(2):
            answer = generator.integers(0, 280, generator.integers(1, 14))
            tokens += [prompt, answer]
            is_target += [np.zeros(len(prompt), bool), np.ones(len(answer), bool)]
            lengths.append(len(prompt) + len(answer))
    examples = tuple(Example("", "", "", "") for _ in lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens_N = np.concatenate(tokens).astype(np.uint32)
    return ExampleSplit(tokens_N, np.concatenate(is_target), offsets, 1, examples)


def _rules(name: str) -> PreferenceRecipe:
    changes = {"loss": name} | FORMULAS[name][0]
    return PreferenceRecipe(**changes)


def _recipe(tuning: MakeRecipe, rules: PreferenceRecipe, *changes: str) -> Recipe:
    given = {key: getattr(rules, key) for key in rules.model_fields_set}
    said = [f"preference.{key}={str(value).lower()}" for key, value in given.items()]
    shape = [f"sequence_length={LENGTH}", f"batch.sequences={PAIRS}"]
    return tuning("method=dpo", *shape, *said, *changes)


@pytest.mark.long_but("sigmoid", "hinge", "simpo")
@pytest.mark.parametrize("name", FORMULAS)
def test_loss_and_gradients_are_the_formulas_in_any_layout_for_any_micro_batch(
    name: str, split: ExampleSplit, tuning: MakeRecipe, tmp_path: Path
) -> None:
    """The reference: the adapters switched off."""
    model = small_model(tmp_path / "own", adapters_std=0.1).double()
    rules = _rules(name)
    recipe = _recipe(tuning, rules)
    with torch.no_grad():
        reference, _ = whole_log_probs(
            small_model(tmp_path / "reference", adapters_std=None).double(), split
        )
    log_probs, tokens = whole_log_probs(model, split)
    pairs = [each[place::2] for each in (log_probs, reference, tokens) for place in (0, 1)]
    expected = FORMULAS[name][1](*pairs).mean()
    weight = SFT_WEIGHTS.get(name, 0.0)
    expected = expected - weight * log_probs[::2].sum() / tokens[::2].sum()
    expected.backward()
    expected_gradients = gradients_of(model)
    whole = torch.cat([each.flatten() for each in expected_gradients.values()])

    register()
    model.set_attn_implementation(NAME)
    network = Network(model, hidden_states_of(model), loss_chunk=5)
    method = find_method("dpo").with_options(recipe.loss_options)
    for layout, size in itertools.product(("packed", "padded", "shared"), (1, 2, PAIRS)):
        case = f"{layout}, {size} at once"
        batch = PairSequences(split, recipe, layout, {}).batch(0, PAIRS)  # type: ignore[arg-type]
        pieces = list(batch.micro_batches((size,)))
        model.zero_grad()
        loss = accumulate_gradients(
            network, method, Precision("fp32"), CPU, pieces, torch.tensor(1 / batch.loss_divisor)
        )

        assert batch.loss_divisor == PAIRS
        assert len(pieces) > 1 or size == PAIRS
        assert loss.item() / PAIRS == pytest.approx(expected.item(), rel=1e-6, abs=0), case
        found = gradients_of(model)
        assert found.keys() == expected_gradients.keys()
        difference = torch.cat(
            [(found[key] - grad).flatten() for key, grad in expected_gradients.items()]
        )
        # Weights of the loss of method sft are kept in fp32.
        assert difference.norm() <= 2e-7 * whole.norm(), case


@pytest.mark.parametrize("name", ["sigmoid", "hinge", "ipo", "robust"])
@pytest.mark.filterwarnings("ignore")  # of TRL's own
def test_loss_and_gradients_are_those_of_trl(
    name: str, split: ExampleSplit, tuning: MakeRecipe, tmp_path: Path
) -> None:
    """TRL rounds log-probabilities to fp32."""
    model = small_model(tmp_path / "own", adapters_std=0.1).double()
    recipe = _recipe(tuning, _rules(name))
    settings = {"beta": 0.1, "loss_type": [name]} | FORMULAS[name][0]
    trainer, theirs = trainer_of_trl(
        "DPO",
        model,
        tmp_path / "own",
        {"prompt": "a", "chosen": " b", "rejected": " c"},
        per_device_train_batch_size=PAIRS,
        **settings,
    )
    parts = []
    for start, end in itertools.pairwise(split.offsets_E):
        ids, is_target = split.tokens_N[start:end], split.is_target_N[start:end]
        parts.append((ids[~is_target].tolist(), ids[is_target].tolist()))
    rows = [
        {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}
        for (prompt, chosen), (_, rejected) in zip(parts[::2], parts[1::2], strict=True)
    ]
    expected = trainer.compute_loss(trainer.model, trainer.data_collator(rows))
    expected.backward()

    batch = PairSequences(split, recipe, "padded", {}).batch(0, PAIRS)
    loss = accumulate_gradients(
        Network(model, hidden_states_of(model), loss_chunk=5),
        find_method("dpo").with_options(recipe.loss_options),
        Precision("fp32"),
        CPU,
        list(batch.micro_batches((2,))),
        torch.tensor(1 / batch.loss_divisor),
    )

    assert loss.item() / PAIRS == pytest.approx(expected.item(), rel=1e-5)
    found = gradients_of(model)
    whole = torch.cat([theirs[key].grad.flatten() for key in found])
    apart = torch.cat([(theirs[key].grad - grad).flatten() for key, grad in found.items()])
    assert apart.norm() <= 1e-5 * whole.norm()


def test_kept_log_probabilities_give_the_loss_of_a_reference_in_every_pass(
    split: ExampleSplit, tuning: MakeRecipe, tmp_path: Path
) -> None:
    model = small_model(tmp_path / "own", adapters_std=0.1)
    with torch.no_grad():
        reference, _ = whole_log_probs(
            small_model(tmp_path / "reference", adapters_std=None), split
        )
    kept = {"train": reference.float().numpy()}
    losses = []
    for source in ("in_passes", "kept"):
        recipe = _recipe(tuning, PreferenceRecipe(), f"preference.reference={source}")
        (micro,) = PairSequences(split, recipe, "padded", kept).batch(0, PAIRS).micro_batches((99,))
        network = Network(model, hidden_states_of(model), loss_chunk=64)
        method = find_method("dpo").with_options(recipe.loss_options)
        losses.append(method.loss_sum(network, micro).detach())

    assert losses[0] != pytest.approx(PAIRS * math.log(2), rel=1e-2)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)


def test_pairs_of_a_loss_without_reference_run_one_pass(
    split: ExampleSplit, tuning: MakeRecipe, tmp_path: Path
) -> None:
    """And it needs no adapters."""
    model = small_model(tmp_path / "own", adapters_std=None)
    passes: list[MicroBatch] = []
    states = hidden_states_of(model)

    def counted(micro: MicroBatch) -> Tensor:
        passes.append(micro)
        return states(micro)

    recipe = _recipe(tuning, _rules("simpo"), "adapter=null")
    (micro,) = PairSequences(split, recipe, "packed", {}).batch(0, PAIRS).micro_batches((99,))
    find_method("dpo").with_options(recipe.loss_options).loss_sum(
        Network(model, counted, loss_chunk=64), micro
    )

    assert len(passes) == 1


def test_a_pass_without_targets_has_no_loss(
    split: ExampleSplit, tuning: MakeRecipe, tmp_path: Path
) -> None:
    model = small_model(tmp_path / "own", adapters_std=0.1)
    recipe = _recipe(tuning, PreferenceRecipe(sft_weight=0.5))
    (micro,) = PairSequences(split, recipe, "padded", {}).batch(0, PAIRS).micro_batches((99,))
    noted: list[Tensor] = []
    network = Network(
        model,
        hidden_states_of(model),
        loss_chunk=64,
        note=lambda name, values, counts: noted.append(counts),
    )

    loss = find_method("dpo").with_options(recipe.loss_options).loss_sum(network, micro.uncounted())
    loss.backward()

    assert loss == 0
    assert not any(each.any() for each in noted)
    assert not any(each.any() for each in gradients_of(model).values())


def test_rewards_are_beta_times_log_ratios_and_displaced_pairs_are_counted() -> None:
    log_probs = torch.tensor([-4.0, -6.0, -9.0, -3.0])
    reference = torch.tensor([-5.0, -5.0, -8.0, -2.5])

    _, rewards = pair_losses(PreferenceRecipe().resolved, log_probs, torch.ones(4), reference)
    named = named_values(log_probs, reference, rewards)

    torch.testing.assert_close(rewards, torch.tensor([0.1, -0.1, -0.1, -0.05]))
    torch.testing.assert_close(named["margin"], torch.tensor([0.2, -0.05]))
    assert named["accuracy"].tolist() == [1, 0]
    assert named["displaced"].tolist() == [0, 0]
    assert named["kl"].tolist() == [(1 + 1) / 4, (1 + 0.25) / 4]
    assert "kl" not in named_values(log_probs, None, rewards)
    fallen = named_values(torch.tensor([-6.0, -4.0, -12.0, -2.0]), reference, rewards)
    assert fallen["displaced"].tolist() == [1, 0]


def test_log_odds_are_finite_where_a_token_is_certain() -> None:
    shares = torch.tensor([0.0, -1e-8, -80.0, -0.5], requires_grad=True)

    losses, _ = pair_losses(PreferenceRecipe(loss="orpo").resolved, shares, torch.ones(4), None)
    losses.sum().backward()

    assert losses.isfinite().all()
    assert shares.grad is not None
    assert shares.grad.isfinite().all()


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_both_answers_of_a_pair_are_in_one_pass(
    layout: str, split: ExampleSplit, tuning: MakeRecipe
) -> None:
    recipe = _recipe(tuning, PreferenceRecipe())
    sequences = PairSequences(split, recipe, layout, {})  # type: ignore[arg-type]
    batch = sequences.batch(0, PAIRS)
    pieces = list(batch.micro_batches((2,)))

    counts = sorted(
        count for micro in pieces for count in micro.kept["tokens_R"].chunk(2)[0].tolist()
    )
    expected = np.add.reduceat(split.is_target_N.astype(int), split.offsets_E[:-1])
    assert counts == sorted(expected[::2].tolist())
    assert sum(int((micro.targets_BT != IGNORED).sum()) for micro in pieces) == expected.sum()
    for micro in pieces:
        assert micro.inputs_BT.numel() <= 2 * 2 * LENGTH
        if micro.lengths_E is None:
            assert ((micro.targets_BT != IGNORED).sum(1) == micro.kept["tokens_R"]).all()
    passes = sequences.positions_of_passes(0, PAIRS, 2 * LENGTH)
    assert passes == [-(-micro.inputs_BT.numel() // 2) for micro in pieces]


def test_samples_of_one_example_are_as_before(split: ExampleSplit) -> None:
    single, double = (ExampleSequences(split, LENGTH, "padded", 0, each) for each in (1, 2))

    assert (len(single), len(double)) == (2 * PAIRS, PAIRS)
    numbers = double.examples(0, PAIRS)
    assert (numbers[1::2] == numbers[::2] + 1).all()
    assert sorted(numbers) == list(range(2 * PAIRS))
