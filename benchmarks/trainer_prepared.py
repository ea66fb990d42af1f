"""What `brimful.prepare` does to a training: its losses, and the CPU time of the callback.

    TRL/bin/python benchmarks/trainer_prepared.py losses
    TRL/bin/python benchmarks/trainer_prepared.py overhead [--rounds 9] [--steps 20]

The environment is that of trainer_jobs.py. Losses: 20 steps of the untouched trainer beside those
of one that was prepared for a device whose memory lies between what two rows and what eight rows
need at a time, so that it has to be divided; fp32, the same weights, rows and effective batch.

Overhead: one training in which the callback is on in every other block of `BLOCK` steps; CPU time
per step, one thread, median of each kind; a ratio for each of so many trainings, and the CPU time
inside the callback over all. Writing the page at the end is timed apart.
"""

import argparse
import dataclasses
import io
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import brimful
from brimful.base.units import MIB
from brimful.hardware import catalog
from brimful.hardware.device import Device
from record import ratio_interval, summary, write_record
from trainer_jobs import decoder, llama, plain, rows_of, sft

STEPS, EFFECTIVE_BATCH, BLOCK = 20, 8, 5
QUIET = Console(file=io.StringIO())
Make = Callable[[], Any]


def _trainers() -> dict[str, Make]:
    settings = {
        "max_steps": STEPS,
        "per_device_train_batch_size": EFFECTIVE_BATCH,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "learning_rate": 1e-3,
    }
    fp32 = {"bf16": False, **settings}
    return {
        "Trainer, padded rows": lambda: plain(
            decoder(llama()), rows_of((40, 200), 200), **settings
        ),
        "SFTTrainer": lambda: sft(decoder(llama()), **fp32),
        "SFTTrainer, packing": lambda: sft(decoder(llama()), packing=True, max_length=256, **fp32),
    }


def _losses(trainer: Any) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _between(make: Make) -> tuple[Device, str]:
    """A device that holds two rows at a time and not eight, and its verdict on eight."""
    device = catalog.get("NVIDIA L4")
    needed = []
    for micro_batch in (2, EFFECTIVE_BATCH):
        trainer = make()
        trainer.args.per_device_train_batch_size = trainer._train_batch_size = micro_batch
        trainer.args.gradient_accumulation_steps = EFFECTIVE_BATCH // micro_batch
        plan = brimful.prepare(trainer, device, keeps_division=True, console=QUIET)
        needed.append(plan.footprint.allocated.value + plan.footprint.terms[CONTEXT])
    # The context may take 75 MiB more or less, and a plan leaves a tenth free.
    middle = (needed[0] / 0.9 + 75 * MIB + needed[1]) / 2
    small = dataclasses.replace(device, memory_bytes=int(middle))
    plan = brimful.prepare(make(), small, keeps_division=True, console=QUIET)
    return small, plan.footprint.verdict


CONTEXT = "CUDA context and libraries"


def compare_losses(name: str, make: Make) -> dict[str, Any]:
    """Train untouched and prepared."""
    untouched = _losses(make())
    device, verdict = _between(make)
    trainer = make()
    plan = brimful.prepare(trainer, device, console=QUIET)
    prepared = _losses(trainer)
    differences = [abs(a / b - 1) for a, b in zip(prepared, untouched, strict=True)]
    row = {
        "trainer": name,
        "steps": len(untouched),
        "memory_mib": round(device.memory_bytes / MIB),
        "before": {"division": plan.before, "verdict": verdict},
        "after": {
            "division": (plan.micro_batch, plan.passes),
            "verdict": plan.footprint.verdict,
        },
        "first_and_last_loss": [untouched[0], untouched[-1]],
        "largest_relative_difference": max(differences),
    }
    print(row, flush=True)
    return row


class _InBlocks(brimful.BrimfulCallback):
    """On in every other block of steps; notes the CPU time of each step, and its own."""

    def __init__(self, report: Path) -> None:
        super().__init__(report)
        self.steps_s: dict[bool, list[float]] = {True: [], False: []}
        self.own_s, self._last_s, self.page_s = 0.0, 0.0, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        super().on_train_begin(args, state, control, **more)
        self._last_s = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        is_on = state.global_step // BLOCK % 2 == 0
        before_s = time.process_time()
        if is_on:
            super().on_step_end(args, state, control, **more)
        now_s = time.process_time()
        self.own_s += now_s - before_s
        self.steps_s[is_on].append(now_s - self._last_s)
        self._last_s = now_s

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **more: Any
    ) -> None:
        before_s = time.process_time()
        super().on_train_end(args, state, control, model, **more)
        self.page_s = time.process_time() - before_s


def overhead(rounds: int, steps: int) -> dict[str, Any]:
    """Return how long steps take with and without the callback."""
    on, off, shares, pages = [], [], [], []
    for _ in range(rounds):
        callback = _InBlocks(Path(tempfile.mkdtemp()) / "report.html")
        trainer = plain(
            decoder(llama()),
            max_steps=steps,
            options={"callbacks": [callback]},
            optim="adamw_torch",
        )
        trainer.train()
        kept = {kind: values[1:] for kind, values in callback.steps_s.items()}
        on.append(statistics.median(kept[True]))
        off.append(statistics.median(kept[False]))
        shares.append(callback.own_s / sum(callback.steps_s[True]))
        pages.append(callback.page_s)
    result = {
        "rounds": rounds,
        "steps": steps,
        "step_cpu_s_without": summary(off),
        "with_over_without": ratio_interval(on, off),
        "share_of_cpu_time_inside": summary(shares),
        "page_cpu_s": summary(pages),
    }
    print(result, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("losses", "overhead"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if options.part == "losses":
        rows = [compare_losses(name, make) for name, make in _trainers().items()]
        print(write_record("trainer_losses", {"effective_batch": EFFECTIVE_BATCH, "rows": rows}))
    else:
        print(write_record("trainer_overhead", overhead(options.rounds, options.steps)))


if __name__ == "__main__":
    main()
