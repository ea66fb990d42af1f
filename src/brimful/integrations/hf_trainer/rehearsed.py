"""A Trainer's own training loop, run for two optimizer steps on tensors without values.

The loop is that of the trainer's class, with its loss, collator, optimizer, clipping, mixed
precision and recomputation. Only what it works on is replaced: its models by copies without
weights, its data by one batch, its callbacks by one that tells the recorder where the step is.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map
from transformers import TrainerCallback, TrainerControl, TrainerState, masking_utils

from brimful.base.errors import BrimfulError, PlanError
from brimful.base.types import JsonDict
from brimful.integrations.hf_trainer.known_values import KnownValues
from brimful.integrations.other_tools.optimizers import BY_NAME, KEPT
from brimful.integrations.other_tools.stand_ins import ForeignStep
from brimful.planning.trace import Trace
from brimful.rehearsal.foreign import blocks_or_none, copies_without_weights, optimizer_like
from brimful.rehearsal.models import count_parameters
from brimful.rehearsal.optimizers import optimizer_for
from brimful.rehearsal.places import Places
from brimful.rehearsal.recorder import Recorder
from brimful.rehearsal.training import CPU, Recording, fake_world, materialised

Batch = Mapping[str, Any]
_LOGS = ("_metrics", "_logs", "_stored_metrics")
"""Attributes in which TRL's trainers collect what they log."""


@dataclass(frozen=True)
class RehearsedStep:
    """The step to rehearse.

    Attributes:
        batch: A micro-batch as the trainer's loader gives it, with values.
        passes: Micro-batches of an optimizer step.
        cuda: Memory as on CUDA.
        flash: Whether the CUDA device has a flash-attention kernel.
    """

    batch: Batch
    passes: int
    cuda: bool
    flash: bool


class _Rehearsed(Exception):
    """The two steps are over; the rest of the training is not wanted."""


def rehearse(trainer: Any, step: RehearsedStep) -> Trace:
    """Trace two optimizer steps: the first with one micro-batch, the second with two where the step
    has several. The trainer is left as it was, and none of its weights is read.

    Raises:
        PlanError: the step cannot be traced without real values.
    """
    spec = ForeignStep(
        config_json="{}",
        sequence_length=0,
        cuda=step.cuda,
        flash=step.flash,
        accumulates=step.passes > 1,
        optimizer=BY_NAME.get(_optimizer_name(trainer), "fused"),
    )
    modules = {name: each for name, each in vars(trainer).items() if isinstance(each, nn.Module)}
    try:
        copies = copies_without_weights(modules)
        with fake_world(spec, reads_positions=True), _masks_are_read(), _on_cpu(trainer):
            return _Rehearsal(trainer, step, spec, copies).run()
    except BrimfulError:
        raise
    except Exception as error:
        name, reason = type(trainer).__name__, str(error).strip().partition("\n")[0]
        raise PlanError(
            f"the training step of {name} cannot be traced without real values"
            f" ({type(error).__name__}: {reason}). BrimfulCallback measures it as it is."
        ) from error


def _optimizer_name(trainer: Any) -> str:
    return str(getattr(trainer.args.optim, "value", trainer.args.optim))


class _Rehearsal:
    """One run of the loop. Exists inside `fake_world`."""

    def __init__(
        self, trainer: Any, step: RehearsedStep, spec: ForeignStep, modules: dict[str, nn.Module]
    ) -> None:
        self._trainer, self._step, self._spec, self._modules = trainer, step, spec, modules
        self._values = KnownValues()
        self._recorder = Recorder(cuda=step.cuda)
        total, trainable = count_parameters(modules["model"])
        _materialise(modules)
        self._total, self._trainable = total, trainable
        model = modules["model"]
        self._blocks, blocks = blocks_or_none(model)
        self._watcher = Recording(
            self._recorder, Places(self._recorder, model, self._blocks, blocks)
        )
        self._watcher.places.seed_weights()
        self._is_later_pass = False
        self._waiting: list[Any] = []
        for name, module in modules.items():
            for tensor_name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                self._recorder.seed(tensor, "weights", f"{name}.{tensor_name}")
            module.register_forward_pre_hook(self._enter_model, prepend=True)
            module.register_forward_hook(self._leave_model, always_call=True)

    def run(self) -> Trace:
        shadow = self._shadow()
        with self._recorder, self._values:
            try:
                shadow.train()
            except _Rehearsed:
                pass
            else:
                raise PlanError("it ended before its second optimizer step")
        self._watcher.places.remove()
        trace = self._recorder.finish(self._blocks)
        return dataclasses.replace(trace, parameters=self._total, trainable=self._trainable)

    def _shadow(self) -> Any:
        """Return a copy of the trainer that trains the copies of its models."""
        trainer, shadow = self._trainer, copy.copy(self._trainer)
        vars(shadow).update(self._modules)
        shadow.model_wrapped = shadow.model
        shadow.model_init = None
        shadow.args = _arguments(trainer.args, passes=min(self._step.passes, 2))
        for name in _LOGS:
            if hasattr(shadow, name):
                setattr(shadow, name, copy.deepcopy(getattr(trainer, name)))
        shadow.state, shadow.control = TrainerState(), TrainerControl()
        shadow.callback_handler = copy.copy(trainer.callback_handler)
        shadow.callback_handler.callbacks = [_Announcer(shadow, self)]
        shadow.accelerator = self._announcing(trainer.accelerator)
        shadow.get_train_dataloader = lambda: _OneBatch(self._make_batch, shadow.args)
        shadow.get_batch_samples = self._around_batches(shadow.get_batch_samples)
        shadow.training_step = self._around_step(shadow.training_step)
        shadow.lr_scheduler, shadow._created_lr_scheduler = None, False
        shadow.optimizer = self._optimizer(shadow)
        return shadow

    def _optimizer(self, shadow: Any) -> Any:
        """Return the optimizer of the copied model; None where the trainer itself makes it."""
        if self._spec.optimizer in KEPT:  # kernels that cannot be traced
            made = optimizer_for(self._spec, shadow.model)
            for group in made.param_groups:
                group["lr"] = shadow.args.learning_rate  # which the schedule asks for
            return made
        if self._trainer.optimizer is None:
            return None
        return optimizer_like(self._trainer.optimizer, self._trainer.model, shadow.model)

    def _announcing(self, accelerator: Any) -> Any:
        """Return a copy of the accelerator that tells when a backward pass and the update begin."""
        other, watcher = copy.copy(accelerator), self._watcher
        run_backward, clip = other.backward, other.clip_grad_norm_

        def backward(*arguments: Any, **options: Any) -> Any:
            watcher.begin("backward")
            return run_backward(*arguments, **options)

        def clip_grad_norm_(*arguments: Any, **options: Any) -> Any:
            watcher.begin("optimizer")
            return clip(*arguments, **options)

        other.backward, other.clip_grad_norm_ = backward, clip_grad_norm_
        other.device_placement = False  # all is where it stays
        if other.scaler is not None:
            other.scaler = torch.amp.GradScaler("cpu")
        return other

    def _make_batch(self) -> JsonDict:
        def made(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            tensor = torch.empty(value.shape, dtype=value.dtype)
            with _disable_current_modes():
                self._values.know(tensor, value.clone())
            self._recorder.mark(tensor, "inputs", "batch")
            return tensor

        return tree_map(made, dict(self._step.batch))  # type: ignore[no-any-return]

    def _around_batches(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        """A real step fetches all its micro-batches first; those that are not run here wait."""

        def get_batch_samples(iterator: Any, count: int, device: Any) -> Any:
            self._watcher.begin("inputs")
            self._is_later_pass = False
            self._waiting = [
                self._make_batch() for _ in range((self._step.passes - 2) * (count > 1))
            ]
            return fetch(iterator, count, device)

        return get_batch_samples

    def _around_step(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def training_step(*arguments: Any, **options: Any) -> Any:
            if self._is_later_pass:
                self._watcher.begin("inputs")
            self._is_later_pass = True
            self._watcher.begin("forward")
            return run(*arguments, **options)

        return training_step

    def _enter_model(self, *_: Any) -> None:
        self._values.in_model = True

    def _leave_model(self, *_: Any) -> None:
        self._values.in_model = False

    def updated(self, optimizer: Any) -> None:
        """The optimizer made its update."""
        self._watcher.note_states(optimizer)

    def ended(self, steps: int) -> None:
        """A step is over. Raises _Rehearsed after the second."""
        if steps == 2:
            self._watcher.begin("between steps")
            raise _Rehearsed


class _Announcer(TrainerCallback):  # type: ignore[misc]
    """The first step has one micro-batch, the second as many as are wanted."""

    def __init__(self, shadow: Any, rehearsal: _Rehearsal) -> None:
        self._shadow, self._rehearsal = shadow, rehearsal
        self._passes = shadow.args.gradient_accumulation_steps

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._shadow.args.gradient_accumulation_steps = 1

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            self._shadow.args.gradient_accumulation_steps = self._passes

    def on_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any
    ) -> None:
        self._rehearsal.updated(optimizer)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rehearsal.ended(state.global_step)


class _OneBatch:
    """A loader with as many batches as a step has; each epoch of the rehearsal is one step."""

    def __init__(self, make: Callable[[], Any], args: Any) -> None:
        self._make, self._count = make, args.gradient_accumulation_steps

    def __len__(self) -> int:
        return int(self._count)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._count):
            yield self._make()


def _arguments(args: Any, *, passes: int) -> Any:
    other = copy.copy(args)
    other.gradient_accumulation_steps, other.max_steps = passes, 2
    other.auto_find_batch_size = False
    other.torch_empty_cache_steps = None
    other.eval_on_start = False
    other.push_to_hub = False
    return other


def _materialise(modules: Mapping[str, nn.Module]) -> None:
    """Give the copies tensors; what is part of another is done with it."""
    done: set[int] = set()
    for module in sorted(modules.values(), key=lambda each: -len(list(each.modules()))):
        if id(module) not in done:
            materialised(module)
            done |= {id(each) for each in module.modules()}


@contextmanager
def _masks_are_read() -> Iterator[None]:
    """Let transformers read masks and position ids, which it does not of tensors without values; it
    drops a mask that hides nothing.
    """
    asks = masking_utils.is_tracing
    masking_utils.is_tracing = lambda tensor=None: False
    try:
        yield
    finally:
        masking_utils.is_tracing = asks


@contextmanager
def _on_cpu(trainer: Any) -> Iterator[None]:
    """Let tensors without values be on the CPU, whatever the device of the trainer; kernels are
    those of the planned device all the same. Nothing is compiled. What accelerate shares in the
    process is put back.
    """
    # transformers' Trainer needs it, brimful does not.
    from accelerate.state import (  # noqa: PLC0415
        AcceleratorState,
        GradientState,
        PartialState,
    )
    from accelerate.utils import DynamoBackend  # noqa: PLC0415

    shared = (
        vars(trainer.args),
        AcceleratorState._shared_state,
        PartialState._shared_state,
        GradientState._shared_state,
    )
    kept = [dict(each) for each in shared]
    vars(trainer.args)["_setup_devices"] = CPU
    for state in (AcceleratorState._shared_state, PartialState._shared_state):
        state["device"] = CPU
        if "dynamo_plugin" in state:
            state["dynamo_plugin"] = copy.copy(state["dynamo_plugin"])
            state["dynamo_plugin"].backend = DynamoBackend.NO
    try:
        yield
    finally:
        for each, before in zip(shared, kept, strict=True):
            each.clear()
            each.update(before)
