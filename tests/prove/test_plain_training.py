"""The trainings that a run is timed beside."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config

from brimful.prove import plain_training
from brimful.prove.plain_training import LOOP, TRAINER, PlainJob, main, time_job


@pytest.fixture
def job(tmp_path: Path) -> PlainJob:
    """Six updates of a model of one block."""
    shape = GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=1, n_positions=16)
    shape.save_pretrained(tmp_path / "model")
    return PlainJob(
        trainer=LOOP,
        model=str(tmp_path / "model"),
        device="cpu",
        sequences=6,
        sequence_length=16,
        micro_batch=4,
        steps=6,
        precision="bf16",
        compiled=False,
    )


@pytest.mark.parametrize("trainer", [LOOP, TRAINER])
def test_a_step_is_timed_with_passes_of_one_size(job: PlainJob, trainer: str) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")

    result = time_job(replace(job, trainer=trainer))

    assert result.micro_batch == 3
    assert result.step_time_s > 0


def test_memory_that_runs_out_makes_passes_smaller(
    job: PlainJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def autocast(*_: object) -> torch.autocast:
        tried.append(1)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return torch.autocast("cpu", torch.bfloat16)

    monkeypatch.setattr(plain_training, "_autocast", autocast)

    assert time_job(job).micro_batch == 2

    monkeypatch.setattr(plain_training, "_autocast", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        time_job(job)


def test_a_process_prints_one_line(
    job: PlainJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["plain_training", json.dumps(asdict(job))])

    main()

    assert json.loads(capsys.readouterr().out)["micro_batch"] == 3
