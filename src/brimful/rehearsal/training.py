"""Optimizer steps of the real loop on fake tensors, recorded."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PretrainedConfig

from brimful.planning.step import StepSpec
from brimful.planning.trace import Trace
from brimful.rehearsal.kernels import OnCuda
from brimful.rehearsal.losses import loss_of
from brimful.rehearsal.models import blocks_of, meta_model, transformers_model
from brimful.rehearsal.optimizers import optimizer_of
from brimful.rehearsal.places import Places
from brimful.rehearsal.recorder import Recorder
from brimful.training.loop import accumulate_gradients
from brimful.training.method import Method, Network, hidden_states_of
from brimful.training.optim import Guard, guarded_update
from brimful.training.precision import Precision
from brimful.training.session import recompute_activations

CPU = torch.device("cpu")


def record_training(spec: StepSpec, config: PretrainedConfig, micro_batch: int) -> Trace:
    """The first optimizer step, which makes the states, and the second, which has as many micro-batches as matter (two when it accumulates).

    Raises:
        PlanError: the step cannot run without real values.
    """
    model = meta_model(spec, config)
    with fake_world(spec):
        return record_steps(fake_model(model), spec, micro_batch)


@contextmanager
def fake_world(spec: StepSpec) -> Iterator[None]:
    """Fake tensors, and CUDA's kernels where the spec asks for them; the garbage collector waits, as deaths are events."""
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(False)
    gc.collect()
    gc.disable()
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            if spec.cuda:
                stack.enter_context(OnCuda(flash=spec.flash))
            yield
    finally:
        gc.enable()
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def fake_model(model: nn.Module) -> nn.Module:
    """A meta model on fake CPU tensors, tied weights tied again."""
    model.to_empty(device="cpu")
    transformers_model(model).tie_weights()
    return model


def record_steps(model: nn.Module, spec: StepSpec, micro_batch: int) -> Trace:
    """Two optimizer steps of a model that is already on fake tensors."""
    recorder = Recorder()
    if spec.recompute:
        recompute_activations(transformers_model(model))
        if spec.adapter is not None:
            transformers_model(model).enable_input_require_grads()
    model.train()
    blocks, modules = blocks_of(model)
    places = Places(recorder, model, blocks, modules)
    places.seed_weights()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer_of(spec, trainable)
    method = _watched(recorder, loss_of(spec))
    precision = Precision("fp32" if spec.autocast == "none" else spec.autocast)
    inner = transformers_model(model)
    network = Network(inner, hidden_states_of(inner), spec.loss_chunk)
    with recorder:
        guard = Guard.fresh(precision, CPU)
        for count in (1, 2 if spec.accumulates else 1):
            for parameter in trainable:
                parameter.grad = None
            loss = accumulate_gradients(network, method, precision, CPU, _batches(recorder, spec, micro_batch, count), guard.loss_scale)
            recorder.begin("optimizer")
            guarded_update(optimizer, guard, precision, loss=loss, clip_norm=1.0 if spec.clips else None)
            places.note_states(optimizer)
        recorder.begin("between steps")
    places.remove()
    return recorder.finish(blocks)


def _batches(recorder: Recorder, spec: StepSpec, micro_batch: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(count):
        recorder.begin("inputs")
        inputs_BT = torch.zeros((micro_batch, spec.sequence_length), dtype=torch.int64)
        targets = torch.zeros(micro_batch if spec.task == "sequence_classification" else (micro_batch, spec.sequence_length), dtype=torch.int64)
        for tensor in (inputs_BT, targets):
            recorder.mark(tensor, "inputs", "batch")
        yield inputs_BT, targets


def _watched(recorder: Recorder, loss_sum: Callable[[Network, Tensor, Tensor], Tensor]) -> Method:
    """The method with its forward pass announced; what follows it is the backward pass, which begins in the loss."""

    def announced(network: Network, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        recorder.begin("forward")
        loss = loss_sum(network, inputs_BT, targets_BT)
        recorder.begin("backward")
        recorder.in_loss = True
        return loss

    def trains(name: str, parameter: nn.Parameter) -> bool:
        return parameter.requires_grad

    return Method(announced, trains)

