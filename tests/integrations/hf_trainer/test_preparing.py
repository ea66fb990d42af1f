"""A prepared Trainer trains as it would have, in passes that fit."""

import dataclasses
import importlib.util
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixture_types import Make, Refuses
from rich.console import Console

import brimful
from brimful.base.errors import DeviceError, PlanError, RequestError
from brimful.base.types import JsonDict
from brimful.hardware import catalog
from brimful.hardware.device import Device

STEPS = 20


def _small_gpu(mib: float) -> Device:
    """A GPU of the catalog with so much memory; its context takes 143 MiB of that, plus or minus
    75.
    """
    return dataclasses.replace(catalog.get("NVIDIA L4"), memory_bytes=int(mib * 2**20))


@pytest.fixture
def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def losses() -> Callable[[Any], list[float]]:
    def trained(trainer: Any) -> list[float]:
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    return trained


LOGS = {"logging_strategy": "steps", "logging_steps": 1, "max_steps": STEPS}


@pytest.mark.long
def test_the_losses_are_those_of_the_untouched_trainer(
    make_trainer: Make,
    small_model: Make,
    rows: Make,
    quiet: Console,
    losses: Callable[[Any], list[float]],
) -> None:
    settings = {"per_device_train_batch_size": 8, "learning_rate": 1e-2, **LOGS}
    settings["train_dataset"] = rows(160, shortest=5)
    untouched = losses(make_trainer(small_model(vocab_size=20_000), **settings))
    trainer = make_trainer(small_model(vocab_size=20_000), **settings)
    plan = brimful.prepare(trainer, _small_gpu(283), console=quiet)
    prepared = losses(trainer)

    assert plan.before == (8, 1)
    assert 1 <= plan.micro_batch < 8
    assert len(prepared) == STEPS
    assert prepared == pytest.approx(untouched, rel=1e-5)
    assert untouched[-1] < untouched[0] - 0.1


def test_a_trainer_that_would_not_fit_is_made_to_fit(
    make_trainer: Make, small_model: Make, quiet: Console
) -> None:
    wide = {"vocab_size": 60_000, "hidden_size": 64}
    trainer = make_trainer(small_model(**wide), per_device_train_batch_size=32)
    device = _small_gpu(480)
    kept = brimful.prepare(trainer, device, keeps_division=True, console=quiet)
    plan = brimful.prepare(trainer, device, console=quiet)

    assert (kept.micro_batch, kept.footprint.verdict) == (32, "does not fit")
    assert plan.footprint.verdict == "fits"
    assert plan.micro_batch < 32
    assert plan.micro_batch * plan.passes == 32
    args = trainer.args
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (
        plan.micro_batch,
        plan.passes,
    )
    assert trainer._train_batch_size == plan.micro_batch
    assert "would need" in plan.reason
    assert plan.reason in plan.explain()


def test_the_effective_batch_is_divided_by_whole_numbers_only(
    make_trainer: Make, small_model: Make, quiet: Console
) -> None:
    wide = small_model(vocab_size=60_000, hidden_size=64)
    trainer = make_trainer(wide, per_device_train_batch_size=31)
    plan = brimful.prepare(trainer, _small_gpu(480), console=quiet)

    assert (plan.micro_batch, plan.passes) == (1, 31)


def test_a_device_that_holds_not_one_row_is_told_with_what_would_take_less(
    make_trainer: Make,
    small_model: Make,
    refuses: Refuses,
    quiet: Console,
) -> None:
    trainer = make_trainer(small_model(vocab_size=60_000, hidden_size=64))
    with refuses(PlanError, names=["activation_checkpointing=True", "LoRA", "optimizer states"]):
        brimful.prepare(trainer, _small_gpu(200), console=quiet)

    assert (trainer.args.per_device_train_batch_size, trainer._train_batch_size) == (4, 4)


@pytest.mark.parametrize(
    ("model", "rows_of_a_pass", "advised"),
    [
        ({}, 64, {"activation_checkpointing": True}),
        ({"hidden_size": 128, "intermediate_size": 512}, 2, {"optim": "adamw_8bit"}),
    ],
)
def test_the_advice_takes_less(
    make_trainer: Make,
    small_model: Make,
    quiet: Console,
    model: dict[str, int],
    rows_of_a_pass: int,
    advised: JsonDict,
) -> None:
    peaks = []
    for settings in ({}, advised):
        trainer = make_trainer(
            small_model(**model), per_device_train_batch_size=rows_of_a_pass, **settings
        )
        plan = brimful.prepare(trainer, keeps_division=True, console=quiet)
        peaks.append(plan.footprint.allocated.value)

    assert peaks[1] < 0.9 * peaks[0]


def test_a_prepared_trainer_has_one_callback_of_the_newest_plan(
    make_trainer: Make, quiet: Console
) -> None:
    trainer = make_trainer()
    for _ in range(2):
        plan = brimful.prepare(trainer, keeps_division=True, console=quiet)
    added = [
        each
        for each in trainer.callback_handler.callbacks
        if isinstance(each, brimful.BrimfulCallback)
    ]

    assert [each._plan for each in added] == [plan]


def test_what_was_done_is_said(make_trainer: Make, snapshot: Any) -> None:
    told = io.StringIO()
    trainer = make_trainer(per_device_train_batch_size=2, gradient_accumulation_steps=4)
    brimful.prepare(trainer, "Tesla T4", console=Console(file=told, width=200))

    assert told.getvalue() == snapshot


def test_what_a_user_may_not_expect_is_noted(
    make_trainer: Make, rows: Make, quiet: Console, snapshot: Any
) -> None:
    trainer = make_trainer(
        options={"eval_dataset": rows(4)},
        eval_strategy="epoch",
        torch_compile=True,
        dataloader_drop_last=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
    )
    trainer.model_accepts_loss_kwargs = False  # as of models that take the mean of a micro-batch
    plan = brimful.prepare(trainer, console=quiet)

    unnoted = make_trainer(options={"eval_dataset": rows(4)})
    kept = brimful.prepare(unnoted, keeps_division=True, console=quiet)

    assert kept.notes == ()
    assert plan.changes
    assert list(plan.notes) == snapshot
    assert all(note in plan.explain() for note in plan.notes)


def test_without_accelerate_it_says_how_to_get_it(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    trainer, find = make_trainer(), importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "accelerate" else find(name)
    )
    with refuses(RequestError):
        brimful.prepare(trainer)


def test_what_cannot_be_prepared_is_refused(make_trainer: Make, refuses: Refuses) -> None:
    with refuses(RequestError, names=["train_dataset"]):
        brimful.prepare(make_trainer(train_dataset=None))
    with refuses(RequestError, names=["auto_find_batch_size"]):
        brimful.prepare(make_trainer(auto_find_batch_size=True))
    with refuses(RequestError, names=["watching"]):
        brimful.prepare(torch.nn.Linear(1, 1))
    with refuses(RequestError, names=["margin"]):
        brimful.prepare(make_trainer(), margin="wide")  # type: ignore[arg-type]
    with refuses(DeviceError):
        brimful.prepare(make_trainer(), "Tesla T5")


def test_sharded_and_parallel_trainers_are_refused(make_trainer: Make, refuses: Refuses) -> None:
    for name in ("is_deepspeed_enabled", "is_fsdp_enabled"):
        trainer = make_trainer()
        setattr(trainer, name, True)  # as the Trainer has it where it is configured
        with refuses(RequestError, names=["BrimfulCallback"]):
            brimful.prepare(trainer)


def test_a_trainer_that_trained_is_refused(make_trainer: Make, refuses: Refuses) -> None:
    trainer = make_trainer(max_steps=1)
    trainer.train()
    with refuses(RequestError, names=["trained already"]):
        brimful.prepare(trainer)
