"""A contestant's own side: it works between requests, and answers them."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

QUIET: dict[str, Any] = {
    "max_steps": 100_000,
    "use_cpu": True,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 10_000,
    "dataloader_pin_memory": False,
}
"""Arguments of a Trainer that trains until its worker ends it, and neither logs nor saves."""
TUNING: dict[str, Any] = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.0,
    "adam_beta2": 0.95,
    "max_grad_norm": 1.0,
}
"""Optimizer settings of other trainers, as in the recipes that brimful trains beside them."""
LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": "all-linear"}
"""Adapters of peft, as in those recipes."""


class Worker:
    """Works on one thread. Standard output holds answers alone; what libraries print goes to
    standard error.

    Requests: `losses N` and `run N` make N steps and are answered with their losses, or with CPU
    seconds and the work done; `tell` with what is known at the end; anything else ends it.

    Args:
        name: Whom it works as.
        folder: Holds what was prepared for all contestants.
        warm_up_steps: Come before the first answer, which holds CPU and wall seconds until then.
    """

    def __init__(self, name: str, folder: Path, warm_up_steps: int = 0) -> None:
        import torch

        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        torch.set_num_threads(1)
        self.name, self.folder = name, folder
        self.precision = ""
        """Of its products."""
        self.model: Any = None
        """What is trained."""
        self.steps = 0
        """Optimizer steps so far."""
        self._request, self._until = "warm up", warm_up_steps
        self._losses: list[float] = []
        self._before_bytes = 0
        self._began = (self.cpu_s(), 0.0)
        self._began_s = time.perf_counter()

    def done(self) -> float:
        """All that was worked through so far, in the unit of the comparison."""
        return self.steps

    def tell(self) -> dict[str, Any]:
        """What the result has of this contestant beside speed."""
        return {}

    def cpu_s(self) -> float:
        """CPU seconds so far, of this process and of children that ended."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    def peak_bytes(self) -> int:
        """The most memory that it has held."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def begin(self, model: Any, precision: str) -> None:
        """The model is there; what comes on top is training's."""
        self.model, self.precision, self._before_bytes = model, precision, self.peak_bytes()

    def stop(self) -> None:
        """End what the contestant started beside itself."""

    def after_step(self, loss: Callable[[], float]) -> None:
        """Called after every optimizer step; waits between requests."""
        self.steps += 1
        if self._request == "losses":
            self._losses.append(loss())
        if self.steps < self._until:
            return
        cpu_s, done = self._began
        if self._request == "warm up":
            wall_s = time.perf_counter() - self._began_s
            self.answer({"cpu_s": self.cpu_s() - cpu_s, "wall_s": wall_s})
        elif self._request == "losses":
            self.answer(self._losses)
        else:
            self.answer((self.cpu_s() - cpu_s, self.done() - done))
        self._request, steps = self._next_request()
        self._until = self.steps + steps
        self._began = (self.cpu_s(), self.done())

    def serve(self, work: Callable[[int], tuple[float, float]], about: object = None) -> None:
        """Work that has no steps: each `run` is answered with its seconds and what was done.

        Args:
            about: First answer.
        """
        self.answer(about)
        while True:
            self.answer(work(self._next_request()[1]))

    def answer(self, value: object) -> None:
        """Write an answer."""
        self._answers.write(json.dumps(value) + "\n")
        self._answers.flush()

    def _next_request(self) -> tuple[str, int]:
        while True:
            word, _, number = sys.stdin.readline().strip().partition(" ")
            if word == "tell":
                memory = {"peak_bytes": self.peak_bytes(), "before_bytes": self._before_bytes}
                self.answer({"memory": memory, "precision": self.precision, **self.tell()})
            elif word in ("run", "losses"):
                return word, int(number)
            else:
                self.stop()
                os._exit(0)


def train_with(
    worker: Worker,
    trainer: type[Any],
    arguments: Any,
    model: Any,
    rows: Any,
    **more: Any,
) -> None:
    """Train with a class of transformers' Trainer that keeps its latest loss and waits after every
    step.
    """
    import torch
    import transformers

    latest: list[torch.Tensor] = []

    class Remembering(trainer):  # type: ignore[misc]
        def training_step(self, *arguments: Any, **options: Any) -> torch.Tensor:
            latest[:] = [super().training_step(*arguments, **options)]
            return latest[0]

    class Gate(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            worker.after_step(latest[0].item)

    made = Remembering(model=model, args=arguments, train_dataset=rows, callbacks=[Gate()], **more)
    worker.begin(made.model, "bf16" if arguments.bf16 else "fp32")
    made.train()


def tune_with_trl(
    worker: Worker,
    trainer: type[Any],
    config: type[Any],
    rows: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    **more: Any,
) -> None:
    """Train the model in the worker's folder `base` with a trainer of TRL.

    Args:
        config: Class of its arguments.
        settings: Arguments beside those that all trainers get; `dtype` is that of the weights.
        more: What this trainer alone takes; `loading` is for `from_pretrained`.
    """
    import datasets
    import transformers

    values = {**QUIET, **TUNING, **settings}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        worker.folder / "base",
        dtype=values.pop("dtype", "float32"),
        **more.pop("loading", {}),
    )
    train_with(
        worker,
        trainer,
        config(output_dir=str(worker.folder / "trl"), **values),
        model,
        datasets.Dataset.from_list(list(rows)),
        processing_class=transformers.AutoTokenizer.from_pretrained(worker.folder / "base"),
        **more,
    )


def adapters() -> dict[str, Any]:
    """What a trainer of TRL takes for LoRA."""
    import peft

    return {"peft_config": peft.LoraConfig(**LORA, task_type="CAUSAL_LM")}


def train_with_brimful(
    worker: Worker, changes: Sequence[str], watched: Callable[[Any], Any] = lambda setup: setup
) -> None:
    """Run `brimful train` on the recipe in the worker's folder, as a user does, but for what would
    stop it from waiting between steps.

    Args:
        watched: Gets what a session starts from, and returns it as it shall start.
    """
    from brimful.base.env import keep_few_kernels, wait_politely

    wait_politely()
    keep_few_kernels()
    from rich.console import Console

    from brimful.chains import pipeline, training_session
    from brimful.recipe import load
    from brimful.training import loop, session
    from brimful.training.meter import Meter

    losses: list[float] = []
    meters: list[Meter] = []
    run_session = training_session.run_session  # type: ignore[attr-defined]
    guarded_update = loop.guarded_update  # type: ignore[attr-defined]

    def started(setup: Any) -> Any:
        worker.begin(setup.model, setup.plan.precision)
        return run_session(watched(setup))

    def note(record: Mapping[str, Any]) -> None:
        if record["kind"] == "step":
            losses.append(record["loss"])

    def metered(journal: Any, listeners: Any, **options: Any) -> Meter:
        meters.append(Meter(journal, [*listeners, note], **options))
        return meters[-1]

    def loss() -> float:
        meters[-1].flush()
        return losses[-1]

    is_first = True

    def updated(*arguments: Any, **options: Any) -> Any:
        """Between two updates lies one step: that is where the worker waits."""
        nonlocal is_first
        if not is_first:
            worker.after_step(loss)
        is_first = False
        return guarded_update(*arguments, **options)

    for module, name, function in (
        (training_session, "run_session", started),
        (session, "Meter", metered),
        (loop, "guarded_update", updated),
    ):
        setattr(module, name, function)
    own = f"run={{folder: {worker.folder}/runs, name: run-{os.getpid()}, patience: null, loggers: []}}"
    recipe = load(str(worker.folder / "recipe.yaml"), [*changes, own, "checkpoint.every=5000"])
    pipeline.train(recipe, Console(file=sys.stderr, width=200))
