"""A declared step's model with values: small, varied, and packed where the step says so."""

import pytest
import torch
from fixture_types import MakeStep

from brimful.planning.step import Lora
from brimful.rehearsal.models import config_of, count_parameters, meta_model
from brimful.rehearsal.real_models import real_model


@pytest.mark.parametrize("adapter", [None, Lora(4)])
def test_a_real_model_has_the_declared_parameters_with_small_values(
    step: MakeStep, adapter: Lora | None
) -> None:
    spec = step(cuda=False, adapter=adapter)
    config = config_of(spec)

    model = real_model(spec, config)

    assert count_parameters(model) == count_parameters(meta_model(spec, config))
    for parameter in model.parameters():
        assert 0 < parameter.detach().abs().max() < 0.2
        assert parameter.numel() == 1 or parameter.detach().std() > 0.005
    assert all(not buffer.any() for buffer in model.buffers() if buffer.dtype is torch.float32)
