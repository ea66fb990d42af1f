"""Planning for a user's own model object: any module with a loss, its batch and its optimizer."""

import copy
import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from brimful.base.errors import PlanError, RequestError
from brimful.data.batches import MicroBatch
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.probe import probe
from brimful.model.blocks import named_blocks_of
from brimful.planning.step import StepSpec
from brimful.planning.survey import Memory
from brimful.planning.target import target_of, with_communication
from brimful.planning.trace import Trace
from brimful.planning.work import Work
from brimful.rehearsal.models import count_parameters
from brimful.rehearsal.optimizers import optimizer_for
from brimful.rehearsal.places import Places
from brimful.rehearsal.ranks import in_parts
from brimful.rehearsal.recorder import Recorder
from brimful.rehearsal.training import Recording, fake_world, materialised, repeat_steps
from brimful.training.method import Method, Network
from brimful.training.tensorfile import Tensors

LossOf = Callable[[nn.Module, Tensors], Tensor]
OPTIMIZERS = ("fused", "foreach", "for_loop", "8bit", "paged_8bit")


def plan_model(  # noqa: PLR0913 - each is one fact of the step
    model: nn.Module,
    batch: Tensors,
    optimizer: str | torch.optim.Optimizer = "foreach",
    *,
    device: Device | str | None = None,
    autocast: str = "none",
    accumulates: bool = False,
    clips: bool = True,
    loss_of: LossOf | None = None,
    process_bytes: int = 0,
    ranks: int = 1,
    keeps_outputs: bool = True,
) -> Memory:
    """Predict the peak memory of training steps of a model object. Its weights are not read, copied
    or moved.

    Recomputation, adapters and attention are those that the model is set to.
    `plan_model(...).at(micro_batch)` is a Footprint; `.largest(n)` the largest micro-batch up to n
    that fits.

    Args:
        model: Model on any device, the meta device too. Its parameters that require gradients
            train.
        batch: One batch as the model takes it by keyword; the first dimension is the micro-batch
            and is changed for others. Only shapes and types count.
        optimizer: AdamW variant: fused, foreach (torch's default on CUDA), for_loop, 8bit or
            paged_8bit; or any of torch's optimizers over the model's parameters.
        device: A Device, the name of a catalog row, or None for this machine's.
        autocast: "bf16" or "fp16" where the forward pass runs under torch.autocast, else "none".
        accumulates: More than one micro-batch per optimizer step.
        clips: The gradient norm is clipped.
        loss_of: (model, batch) -> 0-dim loss. Default: `model(**batch).loss`, as transformers
            models have it when the batch holds labels.
        process_bytes: Bytes that the process holds beside the model, on a CPU.
        ranks: Devices that hold the model in parts, by torch's FSDP2 of each block and of the whole
            (`fully_shard`, parts given up after the forward pass); memory is that of one of them.
        keeps_outputs: What the model returns, logits among it, stays until it is called again, as
            where a loop says `out = model(**batch)` and then `out.loss.backward()`; False:
            `model(**batch).loss.backward()`. Without `loss_of` only.

    Raises:
        RequestError: an argument is none of those named, the batch is empty, or there are fewer
            ranks than one.
        PlanError: the step cannot be traced without real values, or has no loss.
        DeviceError: no such device.
    """
    own = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    variant = "foreach" if own is not None else optimizer
    _refuse_unusable(batch, variant, autocast, ranks)
    match device:
        case Device():
            chosen = device
        case None:
            chosen = probe("auto")
        case _:
            chosen = catalog.get(device)
    spec = StepSpec(
        config_json="{}",
        sequence_length=0,
        autocast=autocast,  # type: ignore[arg-type]
        optimizer=variant,  # type: ignore[arg-type]
        cuda=chosen.kind == "cuda",
        flash=chosen.abilities.flash_attention,
        accumulates=accumulates,
        clips=clips,
        ranks=ranks,
    )
    traces = _OwnTraces(model, batch, spec, loss_of or _loss_in_outputs(keeps_outputs), own)
    target = target_of(chosen, process_bytes)
    return Memory(traces, target if ranks == 1 else with_communication(target))


def _refuse_unusable(batch: Tensors, variant: object, autocast: str, ranks: int) -> None:
    """Raise RequestError if an argument of `plan_model` is none of those it names."""
    if variant not in OPTIMIZERS or autocast not in ("none", "bf16", "fp16"):
        raise RequestError(
            f"plan_model: optimizer is one of {', '.join(OPTIMIZERS)}, autocast none, bf16 or fp16;"
            f" got {variant!r} and {autocast!r}."
        )
    if ranks < 1:
        raise RequestError(f"plan_model: ranks is the number of devices, at least 1; got {ranks}.")
    if not batch or any(
        not isinstance(value, Tensor) or value.ndim == 0 for value in batch.values()
    ):
        raise RequestError(
            "plan_model: batch must map the model's keywords to tensors whose first dimension is"
            " the micro-batch."
        )


class _OwnTraces:
    """Traces of a model object, one for every micro-batch."""

    def __init__(
        self,
        model: nn.Module,
        batch: Tensors,
        spec: StepSpec,
        loss_of: LossOf,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._model, self._batch, self._spec, self._loss_of = model, batch, spec, loss_of
        self._optimizer = optimizer

    def at(self, rows: float) -> Trace:
        """Return the trace of a micro-batch, whose rows are full."""
        if self._spec.ranks > 1:
            # Once in a process torch works out the shapes of what an optimizer does to weights in
            # parts, with tensors of whole weights, which no later step has.
            self._trace(math.ceil(rows))
        return self._trace(math.ceil(rows))

    def _trace(self, micro_batch: int) -> Trace:
        empty = without_weights(self._model)
        total, trainable = count_parameters(empty)
        with in_parts(empty, self._spec.ranks), fake_world(self._spec):
            trace = self._record(materialised(empty), micro_batch)
        return dataclasses.replace(trace, parameters=total, trainable=trainable)

    def work_at(self, micro_batch: int) -> Work:
        """Return the work of its operators."""
        work = self.at(micro_batch).work
        if work is None:
            raise PlanError(f"the operators of {type(self._model).__name__} were not recorded.")
        return work

    def _record(self, model: nn.Module, micro_batch: int) -> Trace:
        recorder, spec = Recorder(cuda=self._spec.cuda), self._spec
        model.train(self._model.training)
        name, blocks = blocks_or_none(model)
        watcher = Recording(recorder, Places(recorder, model, name, blocks))
        watcher.places.seed_weights()
        if self._optimizer is not None:
            optimizer = optimizer_like(self._optimizer, self._model, model)
        else:
            optimizer = optimizer_for(spec, model)
        current: dict[str, Tensor] = {}

        def batch() -> MicroBatch:
            current.clear()  # the last one is gone before the next is there
            current.update(
                {
                    key: torch.zeros((micro_batch, *value.shape[1:]), dtype=value.dtype)
                    for key, value in self._batch.items()
                }
            )
            tensors = tuple(current.values())
            return MicroBatch(tensors[0], tensors[-1], kept=dict(current))

        def loss_sum(*_: Any) -> Tensor:
            return self._loss_of(model, current)

        with recorder:
            network = Network(model, lambda micro: micro.inputs_BT, 0)
            try:
                repeat_steps(network, Method(loss_sum), optimizer, spec, batch, watcher)
            except RuntimeError as error:
                raise PlanError(
                    f"the training step of {type(model).__name__} cannot be traced: {error}"
                ) from error
        watcher.places.remove()
        return recorder.finish(name)


def without_weights(model: nn.Module) -> nn.Module:
    """Return a copy of a module with parameters and buffers on the meta device. No weight is read;
    tied weights stay tied.
    """
    return copies_without_weights({"": model})[""]


def copies_without_weights(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return such copies of several modules, by the same names; what they share stays shared."""
    memo: dict[int, Any] = {}
    for model in modules.values():
        for parameter in model.parameters():
            if id(parameter) not in memo:
                memo[id(parameter)] = nn.Parameter(
                    torch.empty_like(parameter, device="meta"),
                    requires_grad=parameter.requires_grad,
                )
        for buffer in model.buffers():
            if id(buffer) not in memo:
                memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(dict(modules), memo)


def optimizer_like(
    optimizer: torch.optim.Optimizer, model: nn.Module, other: nn.Module
) -> torch.optim.Optimizer:
    """Return a fresh optimizer over the parameters of another model of the same names, with the
    same settings and no states.
    """
    parameters = dict(other.named_parameters())
    memo = {id(each): parameters[name] for name, each in model.named_parameters()}
    fresh = copy.copy(optimizer)
    fresh.state = defaultdict(dict)
    made: torch.optim.Optimizer = copy.deepcopy(fresh, memo)
    return made


def blocks_or_none(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the name of a model's list of blocks and the list; both empty where it has none."""
    try:
        return named_blocks_of(model)
    except PlanError:
        return "", nn.ModuleList()


def _loss_in_outputs(keeps: bool) -> LossOf:
    held: list[Any] = []

    def loss_of(model: nn.Module, batch: Tensors) -> Tensor:
        outputs = model(**batch)
        loss = getattr(outputs, "loss", None)
        if not isinstance(loss, Tensor):
            raise PlanError(
                f"{type(model).__name__} returned no loss: put labels into the batch, or give"
                " loss_of=."
            )
        held[:] = [outputs] if keeps else []
        return loss

    return loss_of
