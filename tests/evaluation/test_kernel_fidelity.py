"""What is said of an attention layer holds for what the layer computes."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from brimful.data.batches import Batch
from brimful.evaluation.kernel_fidelity import AttentionLayer, measure_attention
from brimful.model.okadfa.modeling import OkadfaAttention, attentions_of

MakeModel = Callable[..., PreTrainedModel]


@pytest.fixture
def batch() -> Batch:
    ids_BT = torch.randint(0, 50, (3, 33), generator=torch.Generator().manual_seed(0))
    return Batch(ids_BT[:, :-1], ids_BT[:, 1:])


def layers(model: PreTrainedModel, *batches: Batch) -> tuple[AttentionLayer, ...]:
    found = measure_attention(model, batches)
    assert found is not None
    return found.layers


def set_to_identity(linear: nn.Linear, factor: float = 1.0) -> None:
    with torch.no_grad():
        linear.weight.copy_(factor * torch.eye(len(linear.weight)))
        linear.bias.zero_()


def test_norms_are_those_of_the_layer_itself(model_of: MakeModel, batch: Batch) -> None:
    for attention in ("kernel", "softmax"):
        model = model_of(attention=attention).eval()
        first: OkadfaAttention = attentions_of(model)[0]
        set_to_identity(first.o_proj)
        set_to_identity(first.v_proj)
        read: list[torch.Tensor] = []
        written: list[torch.Tensor] = []
        handle = first.register_forward_hook(
            lambda module, args, out, r=read, w=written: (r.append(args[0]), w.append(out), None)[
                -1
            ]
        )
        with torch.no_grad():
            model(batch.inputs_BT)
        handle.remove()

        assert layers(model, batch)[0].output_norm == pytest.approx(
            float(written[0].norm() / read[0].norm()), rel=1e-4
        )


def test_more_features_come_closer_to_softmax_attention(model_of: MakeModel, batch: Batch) -> None:
    few, many = (
        layers(model_of(features=features, temperature=4.0), batch) for features in (4, 512)
    )

    assert all(
        (one.cosine or 0) < (other.cosine or 0) for one, other in zip(few, many, strict=True)
    )
    assert all(
        (each.cosine or 0) > 0.95 and each.norm_ratio == pytest.approx(1, abs=0.1) for each in many
    )
    assert [each.name for each in many] == ["block 1", "block 2"]
    assert many[0].temperatures == pytest.approx([4.0, 4.0])


def test_softmax_attention_is_no_estimate_of_itself(model_of: MakeModel, batch: Batch) -> None:
    found = measure_attention(model_of(attention="softmax"), [batch])

    assert found is not None
    assert found.mean_cosine is None
    assert all(each.norm_ratio is None and 0.05 < each.output_norm < 2 for each in found.layers)


def test_a_layer_whose_attention_adds_nothing_is_dead(model_of: MakeModel, batch: Batch) -> None:
    model = model_of()
    with torch.no_grad():
        attentions_of(model)[1].v_proj.weight.zero_()
    found = measure_attention(model, [batch])

    assert found is not None
    assert found.dead == ("block 2",)


def test_violation_is_zero_for_orthogonal_rows_and_counts_per_head(
    model_of: MakeModel, batch: Batch
) -> None:
    model = model_of()
    first = attentions_of(model)[0]
    set_to_identity(first.q_proj)
    set_to_identity(first.k_proj, 2.0)  # W W^T - I = 3 I, its square 9 per row

    assert (
        layers(model, batch)[0].violation,
        layers(model, batch)[0].worst_violation,
    ) == pytest.approx((4.5, 9.0))


def test_nothing_is_left_on_the_model_and_batches_add_up(model_of: MakeModel, batch: Batch) -> None:
    model = model_of(dropout=0.5).train()
    halves = [
        Batch(batch.inputs_BT[:1], batch.targets_BT[:1]),
        Batch(batch.inputs_BT[1:], batch.targets_BT[1:]),
    ]

    assert layers(model, *halves)[1].cosine == pytest.approx(
        layers(model, batch)[1].cosine, abs=1e-5
    )
    assert model.training
    assert not any(each._forward_pre_hooks for each in attentions_of(model))


def test_other_architectures_have_no_such_layers(model_of: MakeModel, batch: Batch) -> None:
    assert measure_attention(model_of(architecture="llama"), [batch]) is None
