"""The same training without brimful, in a process of its own: a plain loop of PyTorch, or
transformers' Trainer, on tokens drawn at random.

    python -m brimful.prove.plain_training '{"trainer": "loop", "model": "FOLDER", ...}'

Prints the result as one line of JSON. Tokens have no meaning and need none: the time of a step on
full rows does not depend on them.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, TrainerCallback

from brimful.hardware.stopwatch import synchronize
from brimful.training.memory_errors import attempt, give_back_memory

FIRST_STEPS = 3
"""Left out of the figures: they compile and allocate."""
LOOP, TRAINER = "loop", "trainer"


@dataclass(frozen=True)
class PlainJob:
    """A training to time.

    Attributes:
        trainer: LOOP or TRAINER.
        model: Folder whose config says the shape; the weights are random.
        device: Device as torch names it.
        sequences: Sequences of an update.
        micro_batch: Sequences of a pass to begin with. The largest divisor of `sequences` that is
            no larger is taken, and a smaller one where memory runs out.
        steps: Updates in all, more than `FIRST_STEPS`.
        precision: "fp32", "bf16" or "fp16": of autocast.
        compiled: Whether the model is compiled.
        threads: Threads of the processor; None: as many as torch takes.
    """

    trainer: str
    model: str
    device: str
    sequences: int
    sequence_length: int
    micro_batch: int
    steps: int
    precision: str
    compiled: bool
    threads: int | None = None

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The type that products are computed in; None for the weights' own."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)

    def command(self, module: str = "brimful.prove.plain_training") -> list[str]:
        """Return the arguments of Python that run this job, as a module does."""
        return ["-m", module, json.dumps(asdict(self))]


@dataclass(frozen=True)
class PlainResult:
    """What came of it: the micro-batch that ran, and seconds of an update (median)."""

    micro_batch: int
    step_time_s: float


def time_job(job: PlainJob) -> PlainResult:
    """Train for the job's steps, with micro-batches as large as memory allows.

    Raises:
        RuntimeError: memory does not hold one sequence.
    """
    run = {LOOP: _loop, TRAINER: _trainer}[job.trainer]
    return time_the_largest(job.sequences, job.micro_batch, job.device, partial(run, job))


def time_the_largest(
    sequences: int, micro_batch: int, device: str, run: Callable[[int, list[float]], None]
) -> PlainResult:
    """Train with the largest micro-batch that memory allows.

    Args:
        sequences: Sequences of an update; micro-batches divide them.
        micro_batch: The largest that is tried.
        device: Device as torch names it.
        run: Trains with a micro-batch, and adds the seconds of every update to a list.

    Raises:
        RuntimeError: memory does not hold one sequence.
    """
    for size in (size for size in range(micro_batch, 0, -1) if not sequences % size):
        seconds: list[float] = []
        failure = attempt(partial(run, size, seconds))
        if failure is None:
            return PlainResult(size, statistics.median(seconds[FIRST_STEPS:]))
        give_back_memory(torch.device(device))
    raise RuntimeError("memory does not hold one sequence")


class Clock(TrainerCallback):  # type: ignore[misc]
    """Adds the seconds of every update of a Trainer to a list."""

    def __init__(self, device: torch.device, seconds: list[float]) -> None:
        self._device, self._seconds, self._began = device, seconds, 0.0

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Begin to time an update."""
        synchronize(self._device)
        self._began = time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        """Note how long it took."""
        synchronize(self._device)
        self._seconds.append(time.perf_counter() - self._began)


def _model_of(job: PlainJob) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(job.model))
    return model


def _loop(job: PlainJob, micro_batch: int, seconds: list[float]) -> None:
    """The loop that PyTorch's own guides show: autocast, a fused optimizer, a compiled model."""
    device = torch.device(job.device)
    model: nn.Module = _model_of(job).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=job.precision == "fp16")
    if job.compiled:
        model = torch.compile(model)  # type: ignore[assignment]
    passes = job.sequences // micro_batch
    for _ in range(job.steps):
        ids_BT = torch.randint(0, 256, (job.sequences, job.sequence_length), device=device)
        synchronize(device)
        began = time.perf_counter()
        for part_BT in ids_BT.chunk(passes):
            with _autocast(job, device):
                loss: Tensor = model(input_ids=part_BT, labels=part_BT).loss / passes
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        synchronize(device)
        seconds.append(time.perf_counter() - began)


def _autocast(job: PlainJob, device: torch.device) -> Any:
    dtype = job.autocast_dtype
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


class _Rows(Dataset[Mapping[str, Tensor]]):
    """Rows of random tokens."""

    def __init__(self, count: int, length: int) -> None:
        self._ids_NT = torch.randint(0, 256, (count, length))

    def __len__(self) -> int:
        return len(self._ids_NT)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        return {"input_ids": self._ids_NT[index], "labels": self._ids_NT[index]}


def _trainer(job: PlainJob, micro_batch: int, seconds: list[float]) -> None:
    """transformers' Trainer with what its guide to training on one GPU advises: 16 bits, a fused
    optimizer, a compiled model.
    """
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415 - these need accelerate

    device = torch.device(job.device)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=job.sequences // micro_batch,
            max_steps=job.steps,
            learning_rate=1e-4,
            bf16=job.precision == "bf16",
            fp16=job.precision == "fp16",
            torch_compile=job.compiled,
            optim="adamw_torch_fused",
            use_cpu=device.type == "cpu",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        rows = _Rows(job.sequences * 2, job.sequence_length)
        clock = Clock(device, seconds)
        Trainer(_model_of(job), arguments, train_dataset=rows, callbacks=[clock]).train()


def main() -> None:
    """Run the job of the command line."""
    job = PlainJob(**json.loads(sys.argv[1]))
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    print(json.dumps(asdict(time_job(job))))


if __name__ == "__main__":
    main()
