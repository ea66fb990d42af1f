"""Devices compared in a notebook: from plans, and from what the driver says."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RecipeError
from brimful.chains.plans import survey
from brimful.notebook import devices
from brimful.notebook.device_plans import views
from brimful.notebook.pages import Page
from brimful.recipe import load
from brimful.report.terminal import told_of


def test_gpu_and_plan_ask_once_for_the_same_recipe(
    recipe_file: Any, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def ask(module: str, words: Sequence[str]) -> list[Page]:
        asked.append(words)
        return [Page("<p>on all", "on all"), Page("<p>on this", "on this")]

    monkeypatch.setattr(devices, "pages_of", ask)
    devices.gpu(str(recipe_file), on=["Tesla T4", "Small"])
    devices.plan(str(recipe_file), on=["Tesla T4", "Small"])

    assert asked == [("here,Tesla T4,Small", str(recipe_file))]
    assert shown.text.endswith("on all\non this")
    assert 'srcdoc="&lt;p&gt;on all"' in shown.html
    with pytest.raises(RecipeError, match="did you mean 'quickstart'"):
        devices.plan("quikstart")


def test_this_machine_stands_first_and_once(recipe_file: Any) -> None:
    here, *others = (each.device.name for each in survey(load(str(recipe_file)), "here,Tesla T4"))
    everywhere, alone = views(str(recipe_file), ["seed=2"], "here,Tesla T4,here")

    told = told_of(everywhere).plain
    assert [line.split("  ")[0] for line in told.split("Numbers\n")[1].splitlines()[1:3]] == [
        here,
        *others,
    ]
    assert "2 of 2 devices fit" in told
    closely = told_of(alone).plain
    assert f"Fits {here}: " in closely
    for said in ("weights", "optimizer states", "micro_batch", "precision", "in all"):
        assert said in closely


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
