"""The loss of judged answers against its papers' formulas on whole logits, and against TRL."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import MakeRecipe
from preference_losses import gradients_of, small_model, trainer_of_trl, whole_log_probs
from torch import Tensor

from brimful.data.examples import ExampleSplit
from brimful.data.formats import Example
from brimful.kinds.judged import JudgedSequences, mismatched
from brimful.recipe import Recipe
from brimful.training.loop import accumulate_gradients
from brimful.training.method import Network, find_method, hidden_states_of, measured
from brimful.training.methods.kto import DESIRED
from brimful.training.precision import Precision

CPU, ANSWERS, LENGTH = torch.device("cpu"), 6, 24
BETA, GOOD, BAD = 0.3, 1.5, 0.5
"""None of them a default, so that none is left out unseen."""
SAID = [
    "method=kto",
    f"sequence_length={LENGTH}",
    f"batch.sequences={ANSWERS}",
    f"preference.beta={BETA}",
    f"preference.desirable_weight={GOOD}",
    f"preference.undesirable_weight={BAD}",
]


@pytest.fixture(scope="module")
def split() -> ExampleSplit:
    """Answers of many lengths to prompts of many lengths, of which four are desired."""
    generator = np.random.default_rng(3)
    tokens, is_target, lengths, examples = [], [], [], []
    for number in range(ANSWERS):
        prompt = generator.integers(0, 280, generator.integers(2, 9))
        answer = generator.integers(0, 280, generator.integers(1, 14))
        tokens += [prompt, answer]
        is_target += [np.zeros(len(prompt), bool), np.ones(len(answer), bool)]
        lengths.append(len(prompt) + len(answer))
        examples.append(Example(f"prompt {number}", "", "", "", desired=number % 3 != 1))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens_N = np.concatenate(tokens).astype(np.uint32)
    return ExampleSplit(tokens_N, np.concatenate(is_target), offsets, 1, tuple(examples))


def _model(folder: Path) -> Any:
    """In doubles, and adapted so that its answers have become likelier on the whole, which the KL has to see."""
    return small_model(folder, adapters_std=0.3, seed=5).double()


def _by_brimful(
    model: Any, recipe: Recipe, split: ExampleSplit, layout: Any, size: int
) -> tuple[float, dict[str, Tensor], dict[str, list[float]]]:
    """Mean loss, gradients and noted values of a step in micro-batches of a size."""
    others = None if recipe.preference.loss else mismatched(split, LENGTH)  # type: ignore[union-attr]
    batch = JudgedSequences(split, others, recipe, layout, {}).batch(0, ANSWERS)
    noted: dict[str, list[float]] = {}

    def note(name: str, values: Tensor, counts: Tensor) -> None:
        noted.setdefault(name, []).extend(values[counts > 0].tolist())

    model.zero_grad()
    model.train()
    network = Network(model, hidden_states_of(model), loss_chunk=5, note=note)
    method = find_method("kto").with_options(recipe.loss_options)
    precision, divisor = Precision("fp32"), batch.loss_divisor
    before = batch.measured.micro_batches((size,))
    network = measured(network, method, precision, CPU, before, divisor)
    pieces = list(batch.micro_batches((size,)))
    loss = accumulate_gradients(
        network, method, precision, CPU, pieces, torch.tensor(1 / batch.loss_divisor)
    )
    assert batch.loss_divisor == ANSWERS
    assert len(pieces) > 1 or size == ANSWERS
    return float(loss) / ANSWERS, gradients_of(model), noted


def _assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    whole = torch.cat([each.flatten() for each in expected.values()])
    apart = torch.cat([(found[key] - each).flatten() for key, each in expected.items()])
    # Norms and positions are in fp32 within the model.
    assert apart.norm() <= 5e-7 * whole.norm()


@pytest.mark.long_but(
    "kto-1-packed", "kto-2-padded", "apo_zero_unpaired-1-packed", "apo_zero_unpaired-2-padded"
)
@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("size", [1, 2, ANSWERS])
@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired"])
def test_loss_and_gradients_are_the_formulas_packed_and_padded_for_any_micro_batch(
    loss: str,
    size: int,
    layout: str,
    split: ExampleSplit,
    tuning: MakeRecipe,
    tmp_path: Path,
) -> None:
    """The reference: the adapters switched off. Its distance is that of the whole step."""
    model = _model(tmp_path / "own")
    reference = small_model(tmp_path / "reference", adapters_std=None).double()
    others = mismatched(split, LENGTH)
    with torch.no_grad():
        of_reference, _ = whole_log_probs(reference, split)
        of_others, _ = whole_log_probs(reference, others)
        distance = (whole_log_probs(model, others)[0] - of_others).mean().clamp(min=0)
    point = distance if loss == "kto" else torch.zeros(())
    values = []
    for number, ratio in enumerate(whole_log_probs(model, split)[0] - of_reference):
        if split.examples[number].desired:  # Ethayarajh et al. 2024, equations 7 and 8
            values.append(GOOD * (1 - torch.sigmoid(BETA * (ratio - point))))
        else:
            values.append(BAD * (1 - torch.sigmoid(BETA * (point - ratio))))
    expected = torch.stack(values).mean()
    expected.backward()
    expected_gradients = gradients_of(model)

    said = SAID if loss == "kto" else [*SAID, f"preference.loss={loss}"]
    found, gradients, noted = _by_brimful(model, tuning(*said), split, layout, size)

    assert found == pytest.approx(float(expected.detach()), rel=1e-6)
    _assert_equal(gradients, expected_gradients)
    if loss == "kto":
        assert noted["kl"] == pytest.approx([float(distance)] * ANSWERS, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired"])
@pytest.mark.filterwarnings("ignore")  # of TRL's own
def test_loss_rewards_and_gradients_are_those_of_trl(
    loss: str, layout: str, split: ExampleSplit, tuning: MakeRecipe, tmp_path: Path
) -> None:
    """With all answers in one batch of TRL's, which takes the distance of each batch by itself; and
    in micro-batches of two here.
    """
    model = _model(tmp_path / "own")
    rows = [
        {
            "prompt_ids": split.tokens_N[start:end][~is_target].tolist(),
            "completion_ids": split.tokens_N[start:end][is_target].tolist(),
            "label": example.desired,
        }
        for start, end, example in zip(
            split.offsets_E, split.offsets_E[1:], split.examples, strict=False
        )
        for is_target in [split.is_target_N[start:end]]
    ]
    trainer, theirs = trainer_of_trl(
        "KTO",
        model,
        tmp_path / "own",
        {"prompt": "a", "completion": " b", "label": True},
        loss_type=loss,
        beta=BETA,
        desirable_weight=GOOD,
        undesirable_weight=BAD,
        per_device_train_batch_size=ANSWERS,
    )
    if loss == "kto":  # as TRL's `_prepare_dataset` does it
        for number, row in enumerate(rows):
            row["KL_completion_ids"] = rows[number - 1]["completion_ids"]
    expected = trainer.compute_loss(trainer.model, trainer.data_collator(rows))
    expected.backward()

    said = SAID if loss == "kto" else [*SAID, f"preference.loss={loss}"]
    found, gradients, noted = _by_brimful(model, tuning(*said), split, layout, 2)

    assert found == pytest.approx(float(expected.detach()), rel=1e-6)
    _assert_equal(gradients, {key: theirs[key].grad for key in gradients})
    told = trainer._metrics["train"]
    for key in ("chosen", "rejected"):
        # A small difference of sums as large as this mean, which are exact to 1e-6 of themselves.
        nats = abs(np.mean(noted[f"log_prob_{key}"]))
        mean = np.mean(noted[f"reward_{key}"])
        assert mean == pytest.approx(told[f"rewards/{key}"][-1], abs=1e-6 * BETA * nats)
        assert nats == pytest.approx(abs(told[f"logps/{key}"][-1]), rel=1e-6)
    if loss == "kto":
        assert noted["kl"][0] == pytest.approx(told["kl"][-1], abs=1e-6 * nats)
        assert told["kl"][-1] > 0


def test_a_pass_without_targets_has_no_loss(
    split: ExampleSplit, tuning: MakeRecipe, tmp_path: Path
) -> None:
    model, recipe = _model(tmp_path / "own"), tuning(*SAID)
    (micro,) = (
        JudgedSequences(split, None, recipe, "padded", {}).batch(0, ANSWERS).micro_batches((99,))
    )
    assert sorted(micro.kept[DESIRED].tolist()) == [-1, -1, 1, 1, 1, 1]
    network = Network(model, hidden_states_of(model), loss_chunk=64, of_step=torch.tensor(0.2))

    loss = find_method("kto").with_options(recipe.loss_options).loss_sum(network, micro.uncounted())
    loss.backward()

    assert loss == 0
    assert not any(each.any() for each in gradients_of(model).values())
