"""Contestants of a paired timing: each a process of its own that trains step by step on request,
asked in turns.
"""

import contextlib
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from brimful.training.state import Progress


OURS, KEPT = "brimful", ", memory kept"
"""How names of brimful's contestants begin; and how those of others end that get its setting of the
allocator.
"""
_MEMORY_KEPT = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_MAX_": "0"}
"""To glibc what `brimful.hardware.host.keep_freed_memory` asks for."""


def and_memory_kept(names: Sequence[str]) -> list[str]:
    """Each contestant of another library twice: as it comes, and with brimful's setting of the
    allocator.
    """
    return [name + kept for name in names for kept in ("", KEPT)]


def setting(name: str) -> str:
    """The contestant's name without what its environment alone decides."""
    return name.removesuffix(KEPT)


def allocator_variables(name: str) -> dict[str, str]:
    """What a contestant's environment tells the allocator: brimful's is as its commands start;
    others have that, too, and keep freed memory as brimful does by itself, if they are asked to.
    """
    from brimful.base.env import WHOLE_HEAP

    if name.startswith(OURS):
        return dict(WHOLE_HEAP)
    return {**_MEMORY_KEPT, **WHOLE_HEAP} if name.endswith(KEPT) else {}


def fastest(seconds: Mapping[str, Sequence[float]]) -> str:
    """The contestant of another library that takes the fewest seconds in the median; brimful's
    where there is no other.
    """
    others = [name for name in seconds if not name.startswith(OURS)]
    return min(others or seconds, key=lambda name: statistics.median(seconds[name]))


QUIET: dict[str, Any] = {
    "max_steps": 100_000,
    "use_cpu": True,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 10_000,
    "dataloader_pin_memory": False,
}
"""Arguments of a Trainer that trains until its worker stops it, and neither logs nor saves."""
TUNING: dict[str, Any] = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.0,
    "adam_beta2": 0.95,
    "max_grad_norm": 1.0,
}
"""Optimizer settings of TRL's trainers, as in the recipes that brimful tunes beside them."""
LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": "all-linear"}
"""Adapters of peft, as in those recipes."""


class Contestant:
    """A process that answers requests, one line each, in JSON.

    Args:
        name: Whom it trains as.
        folder: Gets its log.
        command: Starts it; its first answer says that it is ready.
        environment: Variables beside this process's own and those of `allocator_variables`.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = open(folder / f"{hashlib.sha1(name.encode()).hexdigest()}.log", "w")  # noqa: SIM115, S324
        variables = {**os.environ, **allocator_variables(name), **(environment or {})}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=variables,
        )
        self.start = self._answer()

    def ask(self, request: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        return self._answer()

    def quit(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("quit\n")
        self._process.stdin.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} died:\n{Path(self._log.name).read_text()[-3000:]}")
        return json.loads(line)


def interleaved(
    contestants: Sequence[Contestant], rounds: int, loads: list[float]
) -> Iterator[Contestant]:
    """Every contestant once a round, forwards and backwards in turn; the machine's load goes into
    `loads` before each round.
    """
    for number in range(rounds):
        loads.append(os.getloadavg()[0])
        yield from contestants if number % 2 == 0 else reversed(contestants)


class Talk:
    """The contestant's own side of the talk, on one thread: standard output holds answers alone, and
    what libraries print goes to standard error.
    """

    def __init__(self) -> None:
        import torch

        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        torch.set_num_threads(1)

    def write(self, value: object) -> None:
        """Answer a request."""
        self._answers.write(json.dumps(value) + "\n")
        self._answers.flush()

    def serve(self, requests: Mapping[str, Callable[[str], object]]) -> None:
        """Answer requests until one comes that is not known, such as `quit`.

        Args:
            requests: By its first word, what makes an answer from the rest of it.
        """
        while True:
            word, _, rest = sys.stdin.readline().strip().partition(" ")
            if word not in requests:
                return
            self.write(requests[word](rest))


def left_padded(prompts: Sequence[list[int]], padding: int) -> "dict[str, torch.Tensor]":
    """Prompts of any length as transformers' `generate` takes them."""
    import torch

    longest = max(map(len, prompts))
    return {
        "input_ids": torch.tensor(
            [[padding] * (longest - len(prompt)) + prompt for prompt in prompts]
        ),
        "attention_mask": torch.tensor(
            [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        ),
    }


class Worker:
    """The contestant's own side: on one thread, it waits between optimizer steps for requests and
    answers them.

    What libraries print goes to standard error, so that standard output holds answers alone.
    Requests: `losses N` and `run N` make N steps and are answered with all losses so far, or with
    CPU seconds and the work done (see `work_done`); `memory`, with the most that the process held, and
    what it held at most before training; `quit`; whatever else `asked` knows.

    Args:
        name: Whom it trains as.
        folder: Holds what was prepared for all contestants.
        warm_up_steps: Come before the first answer, which holds the CPU and wall seconds until
            then.
    """

    def __init__(self, name: str, folder: Path, warm_up_steps: int) -> None:
        self._talk = Talk()
        self.name, self.folder = name, folder
        self.precision = ""
        """Of its products."""
        self.model: Callable[[], Any]
        """What is trained."""
        self.reference_cpu_s = 0.0
        """What was computed once, before training, of a model that the trained one is compared with.
        """
        self.steps = 0
        """Optimizer steps so far."""
        self._left, self._is_ready, self._wants_losses = warm_up_steps, False, False
        self._losses: list[float] = []
        self._before_bytes = 0
        self._began, self._done, self._start = (
            time.process_time(),
            0,
            (time.process_time(), time.perf_counter()),
        )

    def work_done(self) -> int:
        """All that was worked through so far, in the unit of the benchmark."""
        return self.steps

    def note_memory(self) -> None:
        """The model is there; what comes on top is training's."""
        self._before_bytes = _peak_bytes()

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """Time what is computed before training."""
        began_s = time.process_time()
        yield
        self.reference_cpu_s = time.process_time() - began_s

    def asked(self, word: str) -> Any:
        """The answer to another request."""
        if word == "memory":
            return {"peak_bytes": _peak_bytes(), "before_bytes": self._before_bytes}
        if word in {"precision", "reference_cpu_s"}:
            return getattr(self, word)
        raise SystemExit(f"{self.name} knows no request {word!r}")

    def after_step(self, loss: Callable[[], float]) -> bool:
        """Called after every optimizer step; blocks between requests; False once asked to quit."""
        self.steps += 1
        self._left -= 1
        if self._is_ready and self._wants_losses:
            self._losses.append(loss())
        if self._left > 0:
            return True
        if not self._is_ready:
            self.answer(
                {
                    "cpu_s": time.process_time() - self._start[0],
                    "wall_s": time.perf_counter() - self._start[1],
                }
            )
        else:
            self.answer(
                self._losses
                if self._wants_losses
                else (time.process_time() - self._began, self.work_done() - self._done)
            )
        self._is_ready = True
        return self._take_request()

    def _take_request(self) -> bool:
        while True:
            word, _, number = sys.stdin.readline().strip().partition(" ")
            if word in {"", "quit"}:
                return False
            if word in {"losses", "run"}:
                self._left, self._wants_losses, self._done, self._began = (
                    int(number),
                    word == "losses",
                    self.work_done(),
                    time.process_time(),
                )
                return True
            self.answer(self.asked(word))

    def answer(self, value: object) -> None:
        self._talk.write(value)


def _peak_bytes() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def step_by_step(trainer: type[Any], worker: Worker) -> tuple[type[Any], Any]:
    """A class of transformers' Trainer that keeps its latest loss, and a callback that has the
    worker wait after every step.
    """
    import torch
    import transformers

    latest: list[torch.Tensor] = []

    class Remembering(trainer):  # type: ignore[misc]
        def training_step(self, *arguments: Any, **options: Any) -> torch.Tensor:
            latest[:] = [super().training_step(*arguments, **options)]
            return latest[0]

    class Gate(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not worker.after_step(latest[0].item):
                control.should_training_stop = True

    return Remembering, Gate()


def trainer_of_trl(
    worker: Worker,
    trainer: type[Any],
    config: type[Any],
    rows: str,
    settings: Mapping[str, Any],
    **more: Any,
) -> Any:
    """A trainer of TRL that tunes the model in the worker's folder `base` with adapters, and waits
    after every step.

    Args:
        config: Class of its arguments.
        rows: File in the worker's folder, of rows in JSON.
        settings: Arguments beside those that all trainers get; `dtype` is that of the weights.
        more: What this trainer alone takes.
    """
    import datasets
    import peft
    import transformers

    values = {**QUIET, **TUNING, **settings}
    worker.precision = "bf16" if values.get("bf16", True) else "fp32"
    stepwise, gate = step_by_step(trainer, worker)
    return stepwise(
        model=transformers.AutoModelForCausalLM.from_pretrained(
            worker.folder / "base", dtype=values.pop("dtype", "float32")
        ),
        args=config(output_dir=str(worker.folder / "trl"), **values),
        train_dataset=datasets.Dataset.from_list(json.loads((worker.folder / rows).read_text())),
        processing_class=transformers.AutoTokenizer.from_pretrained(worker.folder / "base"),
        callbacks=[gate],
        peft_config=peft.LoraConfig(**LORA, task_type="CAUSAL_LM"),
        **more,
    )


def planned(recipe: Any, source: str) -> tuple[Any, Any]:
    """The data of a recipe that tunes the model in a folder, and the plan that brimful derives for
    it on this machine.
    """
    from brimful.chains.devices import facts_of, here
    from brimful.kinds.run_data import gather
    from brimful.planning.derive import derive
    from brimful.rehearsal.kept_traces import kept_traces

    device, data = here(recipe), gather(recipe, source)
    with kept_traces() as traces:
        facts = facts_of(
            device,
            measures=True,
            vocabulary=len(data.tokenizer),
            train_sequences=data.train_rows,
            fill=data.fill,
            scored=data.scored,
            longest_pass_of=data.longest_pass_of("cpu"),
        )
        plan = derive(data.planned, device, traces, facts)
    print(plan.explain(), file=sys.stderr)
    return data, plan


def train_ours(
    worker: Worker, recipe: Any, plan: Any, network: Any, sequences: Any, draw: Any = None
) -> None:
    """brimful's own loop on a CPU; nothing but steps is made, with what is drawn for them, and the
    worker waits after every one.
    """
    import torch

    from brimful.base.rundir import Journal
    from brimful.training.loop import Parts, train
    from brimful.training.meter import Meter
    from brimful.training.method import find_method
    from brimful.training.optim import build_optimizer
    from brimful.training.precision import Precision
    from brimful.training.state import Progress

    worker.precision = plan.precision
    device, precision, latest = torch.device("cpu"), Precision(plan.precision), [0.0]
    with Journal(worker.folder / f"{os.getpid()}.jsonl") as journal:

        def note(record: Mapping[str, Any]) -> None:
            if record["kind"] == "step":
                latest.append(record["loss"])

        meter = Meter(journal, [note], device=device, total_steps=1)

        def loss() -> float:
            meter.flush()
            return latest[-1]

        def drawn(parts: Parts, progress: Progress) -> bool:
            for parameter in parts.parameters:
                parameter.grad = None
            with torch.compiler.set_stance("force_eager" if plan.compile else "default"):
                return draw(progress.samples_consumed, lambda: False) is not None

        drawing: dict[str, Any] = {}
        if draw is not None:
            drawing = {"draw": drawn, "loader_workers": 0}
        parts = Parts(
            recipe=recipe,
            network=network,
            method=find_method(recipe.method).with_options(recipe.loss_options),
            optimizer=build_optimizer(network.model, recipe.optimizer, variant=plan.optimizer),
            precision=precision,
            device=device,
            sequences=sequences,
            micro_batches=plan.micro_batches,
            total_steps=recipe.training.steps or 0,
            evaluate_every=10**9,
            meter=meter,
            evaluate=dict,
            save=lambda progress: None,
            restore_last_good=lambda: Progress.fresh(precision, device),
            checkpoint_due=lambda progress: False,
            should_stop=_StopWhenAsked(worker, loss),
            **drawing,
        )
        train(parts, Progress.fresh(precision, device))


def tune_ours(worker: Worker, recipe: Any) -> None:
    """Tune the model in the worker's folder `base` under the plan that brimful derives for one
    thread of this machine; `worker.model` is set before the first step.
    """
    from brimful.base.env import keep_few_kernels, wait_politely

    wait_politely()
    keep_few_kernels()
    import torch

    from brimful.hardware.host import keep_freed_memory
    from brimful.kinds.run_data import ScoringOptions
    from brimful.planning.step import EVALUATION_FACTOR
    from brimful.training.method import Network, compiled, hidden_states_of

    data, plan = planned(recipe, str(worker.folder / "base"))
    keep_freed_memory()
    device = torch.device("cpu")
    model = data.build(plan, device)
    model.train()
    worker.model = lambda: model
    worker.note_memory()
    hidden_states = (
        compiled(model, shape=(0, 0), say=print) if plan.compile else hidden_states_of(model)
    )
    rows = EVALUATION_FACTOR * plan.micro_batches[0]
    with worker.reference():
        options = ScoringOptions(plan=plan, device=device, rows=rows)
        folder = Path(tempfile.mkdtemp(dir=worker.folder))
        data.keep_reference(model, folder, data.fingerprints, options)
    network = Network(model, hidden_states, plan.loss_chunk)
    draw = data.draw if recipe.kind.draws_answers else None
    train_ours(worker, recipe, plan, network, data.sequences(plan), draw)


class _StopWhenAsked:
    """The loop asks before every step whether to stop: that is where the worker waits for its next
    request.
    """

    def __init__(self, worker: Worker, loss: Callable[[], float]) -> None:
        self._worker, self._loss, self._is_first, self._stopped = worker, loss, True, False

    def __call__(self, progress: "Progress") -> bool:
        if not self._is_first and not self._stopped:
            self._stopped = not self._worker.after_step(self._loss)
        self._is_first = False
        return self._stopped
