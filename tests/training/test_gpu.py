"""The loop on a CUDA device: every precision learns, and a stopped run ends as an undisturbed
one.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from finished_runs import records_of, train
from fixture_types import MakeRecipe

from brimful.classification.classifier import load_classifier
from brimful.recipe import load
from brimful.training import session
from brimful.training.method import Method

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def _losses(folder: Path) -> list[float]:
    return [record["loss"] for record in records_of(folder, "step")]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("compiled", ["true", "false"])
@pytest.mark.parametrize("method", ["pretrain", "feedback"])
def test_training_on_a_gpu_follows_the_cpu(
    tiny: MakeRecipe, precision: str, compiled: str, method: str
) -> None:
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("no native bf16")
    on_gpu = tiny(
        "plan.device=cuda",
        f"plan.precision={precision}",
        f"plan.compile={compiled}",
        f"method={method}",
        "run.name=gpu",
    )
    gpu = _losses(train(on_gpu))
    cpu = _losses(train(tiny(f"method={method}", "run.name=cpu")))
    assert gpu == pytest.approx(cpu, rel=1e-3 if precision == "fp32" else 3e-2)
    assert gpu[-1] < gpu[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_classifier_learns_on_a_gpu_and_predicts_alike_everywhere(
    labels_recipe_file: Path, precision: str
) -> None:
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("no native bf16")
    recipe = load(str(labels_recipe_file), ["plan.device=cuda", f"plan.precision={precision}"])
    folder = train(recipe)

    gpu, cpu = (
        load_classifier(folder, torch.device(device)).logits(
            ["the cat sees", "win cash now now", "free"]
        )
        for device in ("cuda", "cpu")
    )

    assert _losses(folder)[-1] < _losses(folder)[0]
    np.testing.assert_allclose(gpu, cpu, atol=5e-2)


def test_a_device_that_really_refuses_memory_is_survived(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (
        "plan.device=cuda",
        "plan.precision=fp32",
        "plan.compile=false",
        "plan.micro_batch=64",
        "batch.sequences=64",
        "sequence_length=256",
    )
    free = _losses(train(tiny(*options, "training.steps=3", "run.name=free")))
    real = session.find_method

    def find_method(name: str) -> Method:
        """The device has 48 MiB more than weights need; 64 sequences need more than 100."""
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(
            (torch.cuda.memory_reserved() + (48 << 20)) / total_bytes
        )
        return real(name)

    monkeypatch.setattr(session, "find_method", find_method)
    try:
        folder = train(tiny(*options, "training.steps=3", "run.name=limited"))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert _losses(folder) == pytest.approx(free, rel=1e-4)
    assert next(record["from"] for record in records_of(folder, "out_of_memory")) == [64]
