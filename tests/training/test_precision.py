"""Arithmetic of a step: what runs in 16 bits, and when the loss is scaled."""

import pytest
import torch

from brimful.training.precision import FP16_INITIAL_SCALE, FP16_NORM_SPIKE, Precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_matrix_products_run_in_the_named_type_and_weights_stay_fp32(
    name: str, dtype: torch.dtype
) -> None:
    linear = torch.nn.Linear(4, 4)
    with Precision(name).autocast(CPU):
        product = linear(torch.ones(2, 4))

    assert product.dtype == dtype
    assert linear.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "scales", "scale", "spike"),
    [
        ("fp32", False, 1.0, float("inf")),
        ("bf16", False, 1.0, float("inf")),
        ("fp16", True, FP16_INITIAL_SCALE, FP16_NORM_SPIKE),
    ],
)
def test_only_fp16_scales_its_loss_and_watches_for_spikes(
    name: str, scales: bool, scale: float, spike: float
) -> None:
    precision = Precision(name)

    assert (precision.scales_loss, precision.initial_loss_scale, precision.norm_spike) == (
        scales,
        scale,
        spike,
    )
