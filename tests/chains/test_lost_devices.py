"""Devices that answer, and those that do not any more."""

import pytest
import torch

from brimful.chains.lost_devices import answering, cuda_devices, looking_at


def test_names_are_those_that_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda_devices(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7,2")
    assert cuda_devices(2) == ["5", "GPU-7"]


def test_the_processor_cannot_be_lost() -> None:
    assert looking_at("cpu", 2)() is None


def test_a_device_that_is_not_there_does_not_answer() -> None:
    assert answering(["63"]) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_that_is_there_answers_beside_one_that_is_not() -> None:
    assert answering(["0", "63"]) == ["0"]
    assert looking_at("auto", 1)() == cuda_devices(1)
