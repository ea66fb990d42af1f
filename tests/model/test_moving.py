"""Copies to a device."""

import torch

from brimful.model.moving import moved


def test_a_copy_has_the_values_and_the_device() -> None:
    tensor = torch.arange(3)

    assert torch.equal(moved(tensor, torch.device("cpu")), tensor)
    assert moved(tensor, torch.device("meta")).device.type == "meta"
