"""`brimful.prepare(trainer)`: plan a Hugging Face or TRL Trainer with its own step, set its
micro-batch, and have it measured.
"""

import importlib.util
from pathlib import Path
from typing import Any

from rich.console import Console

from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.hardware.device import Device
from brimful.integrations.hf_trainer.callback import BrimfulCallback
from brimful.integrations.hf_trainer.fitting import TrainerPlan, device_of, plan_trainer
from brimful.planning.survey import Margin

MARGINS = ("conservative", "balanced", "tight")


def prepare(
    trainer: Any,
    device: Device | str = "auto",
    margin: Margin = "balanced",
    *,
    report: str | Path | None = None,
    keeps_division: bool = False,
    console: Console | None = None,
) -> TrainerPlan:
    """Plan a Trainer before it trains, set its micro-batch and accumulation at the same effective
    batch, and add a `BrimfulCallback`.

    The plan is of the trainer's own step: its model, collator, loss, optimizer, mixed precision and
    recomputation, rehearsed without values on the largest micro-batch of the run. Random states,
    weights and data order stay as they are.

    Args:
        trainer: A transformers Trainer or one of its subclasses, not trained yet.
        device: "auto" for the trainer's own, a name of the catalog, or a Device.
        margin: How much of the memory may be used, as in a recipe's `plan.margin`.
        report: The page to write after the training; None: brimful-report.html in the output
            folder.
        keeps_division: Predict and measure, and leave micro-batch and accumulation as they are.
        console: Where to say what was done; None: standard output.

    Raises:
        RequestError: not such a trainer, or it cannot be prepared as it is.
        PlanError: its step cannot be traced, or not even one row at a time fits.
        DeviceError: no such device.
    """
    _refuse_unusable(trainer, margin)
    plan = plan_trainer(trainer, device_of(trainer, device), margin, keeps=keeps_division)
    args = trainer.args
    args.per_device_train_batch_size = plan.micro_batch
    args.gradient_accumulation_steps = plan.passes
    trainer._train_batch_size = plan.micro_batch  # copied from the arguments when it was made
    trainer.pop_callback(BrimfulCallback)
    trainer.add_callback(BrimfulCallback(report, plan=plan))
    (console or Console()).print(plan.explain(), markup=False, highlight=False, soft_wrap=True)
    return plan


def _refuse_unusable(trainer: Any, margin: str) -> None:
    if importlib.util.find_spec("accelerate") is None:
        raise RequestError(
            "prepare needs accelerate, which transformers' Trainer needs, too."
            f" {how_to_install('trainer')}"
        )
    from transformers import Trainer  # noqa: PLC0415 - needs accelerate

    if not isinstance(trainer, Trainer):
        raise RequestError(
            f"prepare takes a transformers Trainer or a subclass of it, got"
            f" {type(trainer).__name__}. For a loop of your own use brimful.watching(model,"
            " optimizer)."
        )
    if margin not in MARGINS:
        raise RequestError(f"margin is one of {', '.join(MARGINS)}; got {margin!r}.")
    for is_so, problem in _problems(trainer):
        if is_so:
            raise RequestError(f"{type(trainer).__name__} cannot be prepared: {problem}")


def _problems(trainer: Any) -> list[tuple[bool, str]]:
    """What a trainer must not be like, each with what to do about it."""
    args, measured = trainer.args, "add brimful.BrimfulCallback() instead, which only measures."
    return [
        (
            trainer.train_dataset is None,
            "it has no train_dataset, whose rows decide its memory. Give it train_dataset=....",
        ),
        (
            trainer.state.global_step > 0 or hasattr(trainer.model, "_original_forward"),
            "it has trained already. Make a new Trainer, and prepare it before train().",
        ),
        (
            args.auto_find_batch_size,
            "auto_find_batch_size=True changes the micro-batch while it trains. Set it to False:"
            " prepare finds one that fits before the first step.",
        ),
        (
            trainer.is_deepspeed_enabled,
            f"DeepSpeed divides its memory, which is not traced. Or {measured}",
        ),
        (
            trainer.is_fsdp_enabled,
            f"FSDP divides its memory, which is not traced. Or {measured}",
        ),
        (
            args.world_size > 1 or args.n_gpu > 1,
            "it trains on several devices, of which one is traced. Plan on one"
            f" (CUDA_VISIBLE_DEVICES=0), and give all the division that was found; or {measured}",
        ),
        (
            args.use_liger_kernel,
            f"use_liger_kernel replaces operators by kernels that cannot be traced. Or {measured}",
        ),
    ]
