"""One real step: from given weights, sequences and states, with any options."""

from dataclasses import replace

import pytest
import torch
from fixture_types import MakeRecipe

from brimful.data.batches import IGNORED
from brimful.data.masking import MaskedBatch
from brimful.rehearsal import one_step
from brimful.rehearsal.one_step import StepOptions, mean_squares, sequences_of, take_step
from brimful.rehearsal.reduced import Reduced
from brimful.training.precision import Precision

CPU = torch.device("cpu")
PLAIN = StepOptions(
    precision="fp32",
    attention="eager",
    recompute=False,
    compile=False,
    optimizer="for_loop",
    loss_chunk=32,
    micro_batches=(1,) * 8,
)


@pytest.fixture
def reduced(tiny: MakeRecipe) -> Reduced:
    return Reduced(tiny(), 50, (8,), 256, ())


def test_sequences_end_at_different_lengths_and_depend_on_the_seed(
    reduced: Reduced, tiny: MakeRecipe
) -> None:
    batch = sequences_of(reduced)
    targets_B = (batch.targets_BT != IGNORED).sum(dim=1)
    assert batch.inputs_BT.shape == (8, 32)
    assert 16 <= int(targets_B.min()) < int(targets_B.max()) <= 32
    assert torch.equal(batch.inputs_BT, sequences_of(reduced).inputs_BT)
    assert not torch.equal(
        batch.inputs_BT, sequences_of(replace(reduced, recipe=tiny("seed=7"))).inputs_BT
    )


def test_the_same_manner_gives_the_same_step(reduced: Reduced) -> None:
    first, second = take_step(reduced, PLAIN, CPU), take_step(reduced, PLAIN, CPU)
    assert first.loss == second.loss
    assert all(torch.equal(first.updates[name], second.updates[name]) for name in first.updates)
    assert all(update.abs().max() > 0 for update in first.updates.values())


def test_the_step_is_that_of_the_recipes_method_with_its_options(
    reduced: Reduced, tiny: MakeRecipe
) -> None:
    method = "method=feedback"
    backpropagated, *fed_back = (
        take_step(replace(reduced, recipe=recipe), PLAIN, CPU)
        for recipe in (tiny(), tiny(method), tiny(method, "feedback.matrix=identity"))
    )
    name = "model.layers.0.mlp.up_proj.weight"
    gradients = [stepped.gradients[name].flatten() for stepped in (backpropagated, *fed_back)]

    assert len({stepped.loss for stepped in (backpropagated, *fed_back)}) == 1
    for one, other in zip(gradients, gradients[1:] + gradients[:1], strict=True):
        assert (one - other).norm() > 0.01 * one.norm()


def test_the_update_starts_from_given_states(reduced: Reduced) -> None:
    own = take_step(reduced, PLAIN, CPU)
    smaller = take_step(
        reduced,
        PLAIN,
        CPU,
        {name: 100 * value for name, value in mean_squares(own.gradients).items()},
    )
    name = "model.layers.0.mlp.up_proj.weight"
    assert smaller.updates[name].norm() < 0.2 * own.updates[name].norm()


def test_a_step_that_overflows_in_fp16_is_done_again_with_half_the_loss_scale(
    reduced: Reduced, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(PLAIN, precision="fp16")
    calm = take_step(reduced, options, CPU)
    monkeypatch.setattr(Precision, "initial_loss_scale", 2.0**24)
    overflowing = take_step(reduced, options, CPU)
    assert calm.skipped == 0
    assert overflowing.skipped > 0
    assert overflowing.loss == pytest.approx(calm.loss, rel=1e-4)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in overflowing.gradients.values())


def test_a_step_that_is_never_finite_ends_without_an_update(
    reduced: Reduced, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = one_step.accumulate_gradients
    monkeypatch.setattr(
        one_step, "accumulate_gradients", lambda *arguments: real(*arguments) * float("nan")
    )
    step = take_step(reduced, PLAIN, CPU)
    assert step.skipped == 1
    assert all(not update.any() for update in step.updates.values())


def test_an_encoders_step_has_hidden_tokens_and_padding_and_is_the_same_in_pieces(
    tiny: MakeRecipe,
) -> None:
    encoder = Reduced(
        tiny("method=mlm", "model.architecture=modernbert", "data.masked_share=0.3"),
        50,
        (8,),
        256,
        (),
    )
    batch = sequences_of(encoder)
    whole, pieces = (
        take_step(encoder, replace(PLAIN, attention="sdpa", micro_batches=sizes), CPU)
        for sizes in ((8,), (3, 3, 2))
    )

    assert isinstance(batch, MaskedBatch)
    assert batch.inputs_BT.shape == (8, 32)
    assert batch.mask_BT is not None
    assert whole.loss == pytest.approx(pieces.loss, rel=1e-5)
    for name, gradient in whole.gradients.items():
        torch.testing.assert_close(gradient, pieces.gradients[name], rtol=1e-3, atol=1e-6)
