"""A step's time is predicted where rates are known."""

import dataclasses

import torch
from fixture_types import Make

from brimful.hardware import catalog
from brimful.integrations.hf_trainer.rates import predicted_step
from brimful.rehearsal.foreign import plan_model


def test_more_passes_take_longer_and_unknown_rates_give_nothing(
    small_model: Make,
) -> None:
    device = catalog.get("Tesla T4")
    ids_BT = torch.zeros((2, 16), dtype=torch.int64)
    batch = {"input_ids": ids_BT, "labels": ids_BT}
    memory = plan_model(small_model(), batch, device=device, accumulates=True)
    one, three = (predicted_step(memory.work_at, (2,) * count, device, "fp32") for count in (1, 3))
    unknown = dataclasses.replace(device, name="unknown", dense_flop_per_s={})

    assert one is not None
    assert three is not None
    assert one.low < one.value < one.high
    assert 1 < three.value / one.value < 3.1
    assert predicted_step(memory.work_at, (2,), unknown, "fp32") is None
