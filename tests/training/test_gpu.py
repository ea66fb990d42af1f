"""The loop on a CUDA device: every precision learns, and a stopped run ends as an undisturbed one."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from brimful import pipeline
from brimful.base.rundir import read_journal
from brimful.recipe import Recipe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def _losses(folder: Path) -> list[float]:
    return [record["loss"] for record in read_journal(folder / "metrics.jsonl") if record["kind"] == "step"]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("compiled", ["true", "false"])
def test_training_on_a_gpu_follows_the_cpu(tiny: Callable[..., Recipe], precision: str, compiled: str) -> None:
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("no native bf16")
    on_gpu = tiny("plan.device=cuda", f"plan.precision={precision}", f"plan.compile={compiled}", "run.name=gpu")
    gpu = _losses(pipeline.train(on_gpu, Console(file=StringIO())).folder)
    cpu = _losses(pipeline.train(tiny("run.name=cpu"), Console(file=StringIO())).folder)
    assert gpu == pytest.approx(cpu, rel=1e-3 if precision == "fp32" else 3e-2)
    assert gpu[-1] < gpu[0]
