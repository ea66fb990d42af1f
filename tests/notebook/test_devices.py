"""Devices compared in a notebook: from what `brimful plan --json` says, and from what the driver
says.
"""

import json
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RecipeError
from brimful.notebook import devices


def test_gpu_and_plan_ask_once_for_the_same_recipe(
    entries: list[dict[str, Any]], recipe_file: Any, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def ask(words: list[str]) -> str:
        asked.append(words)
        return json.dumps({"devices": [entries[0], entries[1], entries[0]]})

    monkeypatch.setattr(devices, "run_command", ask)
    devices.gpu(str(recipe_file), on=["Tesla T4", "Small"])
    devices.plan(str(recipe_file), on=["Tesla T4", "Small"])

    assert asked == [["plan", str(recipe_file), "--json", "--on", "here,Tesla T4,Small"]]
    assert shown.text.count("\nTesla T4  ") == 1, (
        "this device does not stand among the others again"
    )
    assert "tiny on Tesla T4: fits" in shown.text
    with pytest.raises(RecipeError, match="did you mean 'quickstart'"):
        devices.plan("quikstart")


def test_without_a_driver_there_is_no_gpu_and_a_way_to_one(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    devices.gpu()

    assert "no GPU here. In Colab: Runtime > Change runtime type" in shown.text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Tesla T4", "has no bf16"),
        (b"NVIDIA L4", "computes in bf16"),
        ("NVIDIA X9", "the catalog has no such GPU"),
    ],
)
def test_a_gpu_is_named_with_its_memory_and_what_it_cannot_do(
    name: str | bytes,
    said: str,
    shown: Any,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    fakes = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: name,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=16 * 1024**3, used=1024**3),
    }
    for function, fake in fakes.items():
        monkeypatch.setattr(pynvml, function, fake)
    devices.gpu()

    assert shown.text == snapshot
    assert said in shown.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpus_that_the_driver_counts_are_those_that_torch_sees() -> None:
    assert torch.cuda.get_device_properties(0).name in {gpu.name for gpu in devices.gpus()}
