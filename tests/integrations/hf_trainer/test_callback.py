"""The callback measures a training, changes nothing of it and writes a page."""

import logging
from pathlib import Path
from unittest import TestCase

import pytest
import torch
from fixture_types import Make

import brimful


def test_alone_it_measures_and_changes_nothing(make_trainer: Make, tmp_path: Path) -> None:
    weights = []
    callback = brimful.BrimfulCallback(tmp_path / "report.html")
    for added in ([], [callback]):
        trainer = make_trainer(options={"callbacks": added})
        trainer.train()
        weights.append(trainer.model.state_dict())

    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert callback.measured is not None
    assert len(callback.measured.step_times_s) == 3
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "LlamaForCausalLM" in page
    assert "3 optimizer steps" in page
    assert "Nothing was predicted" in page


def test_a_prepared_trainer_writes_predicted_beside_measured(
    make_trainer: Make, tmp_path: Path
) -> None:
    trainer = make_trainer()
    plan = brimful.prepare(trainer)
    trainer.train()

    page = (tmp_path / "out" / "brimful-report.html").read_text(encoding="utf-8")
    assert "1 prediction: error" in page
    assert plan.reason in page
    assert page.count("<script") == 1


def test_evaluations_and_checkpoints_are_no_part_of_a_step(
    make_trainer: Make, rows: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = []
    callback = brimful.BrimfulCallback()
    monkeypatch.setattr(callback, "_leave_out", lambda: left_out.append(1))
    settings = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps"}
    trainer = make_trainer(
        options={"callbacks": [callback], "eval_dataset": rows(4)}, save_steps=3, **settings
    )
    trainer.train()

    assert len(left_out) == 3 + 1


def test_a_page_that_cannot_be_written_does_not_end_the_training(
    make_trainer: Make, tmp_path: Path
) -> None:
    (tmp_path / "a file").write_text("")
    callback = brimful.BrimfulCallback(tmp_path / "a file" / "report.html")
    trainer = make_trainer(options={"callbacks": [callback]}, max_steps=1)
    with TestCase().assertLogs(level=logging.WARNING) as logged:
        trainer.train()

    assert trainer.state.global_step == 1
    assert "the report was not written" in "".join(logged.output)
