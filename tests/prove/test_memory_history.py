"""A training's requests for memory beside the model of the allocator."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config

from brimful.prove.memory_history import MODULE, main
from brimful.prove.plain_training import LOOP, PlainJob

BEFORE, ASKED = 7 << 40, 3 << 20


def _job(folder: Path, device: str) -> PlainJob:
    """Five updates of a model of one block."""
    shape = GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=1, n_positions=16)
    shape.save_pretrained(folder / "model")
    return PlainJob(
        trainer=LOOP,
        model=str(folder / "model"),
        device=device,
        sequences=4,
        sequence_length=16,
        micro_batch=4,
        steps=5,
        precision="bf16",
        compiled=False,
    )


def _printed(job: PlainJob, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", job.command(MODULE)[1:])
    main()
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def test_the_history_of_a_training_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a CPU, where torch keeps no history: one request is given in place of it."""
    recorded: list[Any] = []
    events = [
        {"action": "segment_alloc", "addr": BEFORE, "size": 20 << 20},
        {"action": "alloc", "addr": BEFORE, "size": ASKED},
        {"action": "free_completed", "addr": BEFORE, "size": ASKED},
    ]
    segment = {
        "address": BEFORE,
        "total_size": 20 << 20,
        "blocks": [{"size": 20 << 20, "state": "inactive"}],
    }
    snapshot = {"segments": [segment], "device_traces": [events]}
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_: recorded.append(1))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: snapshot)

    printed = _printed(_job(tmp_path, "cpu"), monkeypatch, capsys)

    assert recorded == [1]
    assert printed["requests"] == printed["same_reserved"] == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_model_meets_the_allocator_of_this_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = _printed(_job(tmp_path, "cuda:0"), monkeypatch, capsys)

    assert printed["same_reserved"] == printed["requests"] > 100
    assert printed["modelled_bytes"] == printed["peak_reserved_bytes"]
