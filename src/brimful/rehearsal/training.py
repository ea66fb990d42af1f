"""Optimizer steps of the training loop, recorded on fake tensors or run while a profiler
watches.
"""

import dataclasses
import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.distributions import Distribution
from transformers import PretrainedConfig, masking_utils

from brimful.base.errors import PlanError
from brimful.base.garbage import collector_off
from brimful.data.batches import MicroBatch
from brimful.evaluation.likelihood import Scorer, Scoring
from brimful.kinds.run_data import run_data_class
from brimful.model.blocks import named_blocks_of
from brimful.planning.choices import ROUNDED
from brimful.planning.step import EVALUATION_FACTOR, StepSpec
from brimful.planning.trace import Trace
from brimful.rehearsal.compiled_blocks import (
    compile_modules,
    outside_function_modes,
    stubbed_kernels,
)
from brimful.rehearsal.cuda_lowering import lowered_for_cuda
from brimful.rehearsal.kernels import NotOnCuda, OnCuda
from brimful.rehearsal.models import count_parameters, meta_model, parameters_of, transformers_model
from brimful.rehearsal.optimizers import optimizer_for, trainable_parameters
from brimful.rehearsal.places import Places
from brimful.rehearsal.ranks import in_parts
from brimful.rehearsal.recorder import QuickRecorder, Recorder
from brimful.rehearsal.routing import even_routing
from brimful.rehearsal.sequence_kernels import sequence_kernels
from brimful.training.activations import HostMemory, offload_activations, recompute_activations
from brimful.training.loop import accumulate_gradients
from brimful.training.losses import PieceLosses, piece_losses
from brimful.training.method import (
    HiddenStates,
    LossSum,
    Method,
    Network,
    compiled_piece_losses,
    find_method,
    hidden_states_of,
    measured,
)
from brimful.training.optim import StepGuard, guarded_update
from brimful.training.precision import Precision
from brimful.training.sharding import gathering, scored

CPU = torch.device("cpu")


class Watcher:
    """Receives the progress of `run_steps`; this one ignores it. A watcher makes no tensors."""

    def begin(self, phase: str) -> None:
        """A phase begins: "measure", "inputs", "forward", "backward", "optimizer" or "between
        steps".
        """

    def note_inputs(self, tensors: Iterable[Tensor]) -> None:
        """The batch was made of these tensors."""

    def note_states(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer made its update."""


def record_training(
    spec: StepSpec,
    config: PretrainedConfig,
    micro_batch: int,
    evaluation_factor: int = EVALUATION_FACTOR,
    chunk_factor: int = 1,
) -> Trace:
    """Trace two optimizer steps, and an evaluation batch of brimful's own loop.

    The first step makes the optimizer states; the second one has two micro-batches when the step
    accumulates. The evaluation batch has `evaluation_factor` times as many sequences and pieces of
    the loss `chunk_factor` times as large.

    Raises:
        PlanError: the step cannot run without real values.
    """
    model = meta_model(spec, config)
    counts, parameters = count_parameters(model), parameters_of(model)
    with divided(spec, model), fake_world(spec):
        trace = record_steps(
            materialised(model), spec, micro_batch, evaluation_factor, chunk_factor
        )
    details = trace.details
    if details is not None:
        sizes_P, trains_P = np.array(parameters, np.int64).T
        details = dataclasses.replace(details, parameters_P=sizes_P, trains_P=trains_P)
    return dataclasses.replace(trace, parameters=counts[0], trainable=counts[1], details=details)


@functools.singledispatch
def divided(spec: StepSpec, model: nn.Module) -> AbstractContextManager[None]:
    """Give a meta model only the part of the first rank, in a context that has all of them.
    Subclasses of StepSpec may register their own, and divide the model in `prepare`.
    """
    return in_parts(transformers_model(model), spec.ranks)


@functools.singledispatch
def loss_of(spec: StepSpec) -> LossSum:
    """Return the summed loss of a step. Subclasses of StepSpec may register their own."""
    if spec.loss == "model":
        return model_loss
    return find_method(spec.method).with_options(spec.options).loss_sum


def model_loss(network: Network, micro: MicroBatch) -> Tensor:
    """Return the loss that the transformers model computes from its labels."""
    kwargs = {"use_cache": False} if network.model.can_generate() else {}
    loss: Tensor = network.model(**micro.model_inputs(), labels=micro.targets_BT, **kwargs).loss
    return loss


@functools.singledispatch
def loss_of_part(spec: StepSpec, loss_sum: LossSum) -> LossSum:
    """Return the loss of a model that may lie in parts. Subclasses may register their own."""
    return loss_sum if spec.ranks == 1 else gathering(loss_sum)


@contextmanager
def fake_world(spec: StepSpec, *, reads_positions: bool = False) -> Iterator[None]:
    """Make tensors fake, with CUDA's kernels where the step runs on CUDA. The garbage collector is
    off, because the end of a tensor is an event.

    Args:
        reads_positions: Position ids have values, which tell where packed sequences begin; else no
            row holds several sequences.
    """
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    checks = Distribution._validate_args
    Distribution.set_default_validate_args(False)  # it would look at values
    torch.__future__.set_swap_module_params_on_conversion(False)
    try:
        with without_garbage_collector(), ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            stack.enter_context(even_routing(spec.config))
            if not reads_positions:
                stack.enter_context(_one_sequence_per_row())
            stack.enter_context(compiler_of(spec))
            if spec.kernels:
                stack.enter_context(sequence_kernels())
            if spec.cuda:
                stack.enter_context(OnCuda(flash=spec.flash))
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        Distribution.set_default_validate_args(checks)


@contextmanager
def compiler_of(spec: StepSpec) -> Iterator[None]:
    """Compile without kernels where a step is compiled; steps traced in the same context share
    what is compiled.
    """
    with ExitStack() as stack:
        if spec.compiled != "none":
            stack.enter_context(stubbed_kernels())
            if spec.cuda:
                stack.enter_context(lowered_for_cuda(flash=spec.flash))
        yield


@contextmanager
def _one_sequence_per_row() -> Iterator[None]:
    """Tell transformers that no row holds several sequences. It reads that from position ids, which
    fake tensors do not have, and would make a mask that no real step without packing has.
    """
    find = masking_utils.find_packed_sequence_indices

    def nothing_packed(position_ids: Tensor) -> None:
        find(position_ids)

    masking_utils.find_packed_sequence_indices = nothing_packed
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = find


@contextmanager
def without_garbage_collector() -> Iterator[None]:
    """Switch the garbage collector off, so that tensors end with their last reference.

    What an earlier recording left in cycles is collected first. It is young: a full collection
    would search all libraries, too, for a third of a second.
    """
    if gc.isenabled():
        gc.collect(1)
    with collector_off():
        yield


def materialised(model: nn.Module) -> nn.Module:
    """Move a meta model to CPU tensors without values (fake ones inside `fake_world`); modules that
    share a tensor share it afterwards.
    """
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if tensor not in made:
                    empty = torch.empty_like(tensor, device="cpu")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[tensor] = (
                        nn.Parameter(empty, requires_grad=tensor.requires_grad)
                        if is_parameter
                        else empty
                    )
                tensors[name] = made[tensor]  # type: ignore[assignment]
    return model


def record_steps(
    model: nn.Module, spec: StepSpec, micro_batch: int, evaluation_factor: int, chunk_factor: int
) -> Trace:
    """Trace two optimizer steps and an evaluation batch of a model on fake tensors."""
    recorder = (QuickRecorder if spec.compiled == "none" else Recorder)(cuda=spec.cuda)
    prepare(spec, model)
    blocks, modules = named_blocks_of(model)
    if spec.compiled == "model":
        compile_modules([transformers_model(model)])
    elif spec.compiled != "none":
        compile_modules(modules, open_lengths=spec.compiled == "open_blocks")
    if spec.compiled != "none":
        warm_up(model, spec, micro_batch)
    evaluation = dataclasses.replace(spec, loss_chunk=chunk_factor * spec.loss_chunk)
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        _update_unseen(model, spec)
    watcher = Recording(recorder, Places(recorder, model, blocks, modules, spec.compiled))
    watcher.places.seed_weights()
    optimizer = optimizer_for(spec, model)
    if spec.optimizer.startswith(ROUNDED):
        watcher.places.follow_updates(optimizer)
    run_data_class(spec.kind)  # its modules may make tensors where they are imported
    with recorder:
        run_steps(model, optimizer, spec, micro_batch, watcher)
        evaluate_batch(model, evaluation, micro_batch * evaluation_factor, watcher)
    watcher.places.remove()
    trace = recorder.finish(blocks)
    if spec.compiled == "none":
        return trace
    # The work of kernels that did nothing was not recorded.
    return dataclasses.replace(trace, work=None, details=None)


def _update_unseen(model: nn.Module, spec: StepSpec) -> None:
    """Gather each weight once, and update once without the optimizer's states and once with: torch
    then makes what later steps find, and works out the shapes of operators on tensors in parts.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
            module.reshard()
    trainable = trainable_parameters(model)
    for parameter in trainable:
        parameter.grad = torch.zeros_like(parameter)
    precision = _precision_of(spec)
    optimizer, guard = optimizer_for(spec, model), StepGuard.fresh(precision, CPU)
    with Recorder(cuda=spec.cuda):
        for _ in range(2):
            clip_norm = 1.0 if spec.clips else None
            guarded_update(optimizer, guard, precision, loss=torch.zeros(()), clip_norm=clip_norm)
    _forget_gradients(model)


def warm_up(
    model: nn.Module, spec: StepSpec, micro_batch: int, body: HiddenStates | None = None
) -> None:
    """Run one pass forward and backward, in which torch.compile compiles; see `network_of`."""
    precision, nobody = _precision_of(spec), Watcher()
    accumulate_gradients(
        network_of(model, spec, body),
        _announced(nobody, method_of(spec)),
        precision,
        CPU,
        _micro_batches(lambda: blank_batch(spec, micro_batch), 1, nobody, "inputs"),
        StepGuard.fresh(precision, CPU).loss_scale,
    )
    _forget_gradients(model)


def _forget_gradients(model: nn.Module) -> None:
    for parameter in trainable_parameters(model):
        parameter.grad = None


@functools.singledispatch
def prepare(spec: StepSpec, model: nn.Module) -> None:
    """Put a model into training mode, with activation checkpointing where the step has it.
    Subclasses of StepSpec may register their own.
    """
    if spec.recompute:
        recompute_activations(transformers_model(model), spec.recompute)
        if spec.offload:
            offload_activations(model, NotOnCuda() if spec.cuda else HostMemory())
        if spec.adapter is not None:
            transformers_model(model).enable_input_require_grads()
    model.train()


def run_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    spec: StepSpec,
    micro_batch: int,
    watcher: Watcher,
) -> None:
    """Run two optimizer steps of a prepared model with the functions of the training loop."""
    network = network_of(model, spec)
    repeat_steps(
        network, method_of(spec), optimizer, spec, lambda: blank_batch(spec, micro_batch), watcher
    )


def method_of(spec: StepSpec) -> Method:
    """Return how a step makes its loss of a model that may lie in parts."""
    whole = find_method(spec.method).with_options(spec.options)
    return dataclasses.replace(whole, loss_sum=loss_of_part(spec, loss_of(spec)))


def network_of(model: nn.Module, spec: StepSpec, body: HiddenStates | None = None) -> Network:
    """Return what a method's loss computes with. `body` returns the hidden states in place of the
    model itself.
    """
    inner = transformers_model(model)
    body = body or hidden_states_of(inner)
    piece: PieceLosses = functools.partial(piece_losses, converting=spec.cuda)
    if spec.cuda and spec.compiled in {"blocks", "open_blocks"}:
        piece = functools.partial(outside_function_modes, compiled_piece_losses(_refuse))
    return Network(inner, body, spec.loss_chunk, piece)


def _refuse(failure: str) -> None:
    raise PlanError(failure)


def repeat_steps(
    network: Network,
    method: Method,
    optimizer: torch.optim.Optimizer,
    spec: StepSpec,
    batch: Callable[[], MicroBatch],
    watcher: Watcher,
) -> None:
    """Run a first optimizer step with one micro-batch and a second one with two when it
    accumulates, else one. What the method measures before is measured on as many.
    """
    method = _announced(watcher, method)
    precision = _precision_of(spec)
    guard = StepGuard.fresh(precision, CPU)
    trainable = trainable_parameters(network.model)
    for count in (1, 2 if spec.accumulates else 1):
        for parameter in trainable:
            parameter.grad = None
        before = _micro_batches(batch, count, watcher, "measure")
        loss = accumulate_gradients(
            measured(network, method, precision, CPU, before, 1.0),
            method,
            precision,
            CPU,
            _micro_batches(batch, count, watcher, "inputs"),
            guard.loss_scale,
        )
        watcher.begin("optimizer")
        guarded_update(
            optimizer, guard, precision, loss=loss, clip_norm=1.0 if spec.clips else None
        )
        watcher.note_states(optimizer)
    watcher.begin("between steps")


def evaluate_batch(model: nn.Module, spec: StepSpec, sequences: int, watcher: Watcher) -> None:
    """Run one batch through the evaluation of brimful's own loop, while gradients and optimizer
    states exist.
    """
    if spec.loss == "model" or not run_data_class(spec.kind).has_likelihood:
        return
    watcher.begin("evaluation")
    model.eval()
    _score_batch(transformers_model(model), spec, sequences, watcher)
    model.train()
    watcher.begin("end")


def _score_batch(model: nn.Module, spec: StepSpec, sequences: int, watcher: Watcher) -> None:
    micro = blank_batch(spec, sequences)
    watcher.note_inputs(_tensors_of(micro))

    def score() -> None:
        dtype = _precision_of(spec).autocast_dtype
        how = Scoring(chunk_tokens=spec.loss_chunk, device=CPU, autocast_dtype=dtype)
        Scorer(model, how).nats(micro)

    if spec.ranks == 1:
        score()
    else:
        scored(model, score)


class Recording(Watcher):
    """Passes the progress of the steps to a recorder."""

    def __init__(self, recorder: Recorder, places: Places) -> None:
        self.recorder, self.places = recorder, places

    def begin(self, phase: str) -> None:
        self.recorder.begin(phase)
        # The backward pass begins in the loss; in a compiled model nobody sees where that ends.
        self.recorder.in_loss = phase == "backward" and self.places.sees_blocks

    def note_inputs(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.recorder.mark(tensor, "inputs", "batch")

    def note_states(self, optimizer: torch.optim.Optimizer) -> None:
        self.places.note_states(optimizer)


def _precision_of(spec: StepSpec) -> Precision:
    return Precision("fp32" if spec.autocast == "none" else spec.autocast)


def blank_batch(spec: StepSpec, micro_batch: int) -> MicroBatch:
    """Return a micro-batch of full rows, as the kind of run makes it of so many samples, with an
    attention mask where batches carry one.
    """
    micro = run_data_class(spec.kind).blank(spec, micro_batch)
    if not spec.padded:
        return micro
    return dataclasses.replace(micro, mask_BT=_padding_mask(micro.inputs_BT))


def _padding_mask(inputs_BT: Tensor) -> Tensor:
    """Return a mask that hides the last position of each row; transformers drops a mask that hides
    nothing.
    """
    mask_BT = torch.ones_like(inputs_BT)
    mask_BT[:, -1] = 0
    return mask_BT


def _tensors_of(micro: MicroBatch) -> list[Tensor]:
    return [*micro.tensors.values(), *micro.kept.values()]


def _micro_batches(
    batch: Callable[[], MicroBatch], count: int, watcher: Watcher, phase: str
) -> Iterator[MicroBatch]:
    for _ in range(count):
        watcher.begin(phase)
        micro = batch()
        watcher.note_inputs(_tensors_of(micro))
        yield micro


def _announced(watcher: Watcher, method: Method) -> Method:
    """Return the method, announcing its forward pass and then the backward pass to the watcher."""

    def announced(network: Network, micro: MicroBatch) -> Tensor:
        watcher.begin("forward")
        loss = method.loss_sum(network, micro)
        watcher.begin("backward")
        return loss

    return dataclasses.replace(method, loss_sum=announced)
