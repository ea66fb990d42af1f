"""Tells the recorder which module and block computes, forward and backward, and what parameters'
gradients and states are.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from brimful.planning.work import GLOBAL
from brimful.rehearsal.models import transformers_model
from brimful.rehearsal.recorder import Recorder


class Places:
    """Hooks on every module of a model, for the time of one recording.

    A block's backward part begins when the gradient of its output is there, and ends where the next
    block's begins.
    """

    def __init__(
        self, recorder: Recorder, model: nn.Module, blocks_name: str, blocks: nn.ModuleList
    ) -> None:
        self._recorder, self._model, self._prefix = recorder, model, f"{blocks_name}."
        self._stack: list[tuple[str, str]] = []
        self._handles: list[Any] = []
        self._announced: Callable[[], Tensor | None] = lambda: None
        body = getattr(transformers_model(model), "base_model", model)
        for name, module in model.named_modules():
            self._watch(module, name, self._layer_of(name))
        for layer, block in enumerate(blocks):
            self._watch_backward(block, layer)
        self._handles.append(body.register_forward_hook(self._body_done))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(
                    parameter.register_post_accumulate_grad_hook(self._on_gradient(name))
                )

    def seed_weights(self) -> None:
        """Record parameters and buffers as being there; LoRA's own are adapters."""
        for name, tensor in [*self._model.named_parameters(), *self._model.named_buffers()]:
            self._recorder.seed(
                tensor, "adapters" if "lora_" in name else "weights", name, self._layer_of(name)
            )

    def note_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Say which storages are optimizer states, and of which block."""
        for name, parameter in self._model.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    self._recorder.mark(
                        value, "optimizer states", f"{name} {key}", self._layer_of(name)
                    )

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()

    def _layer_of(self, name: str) -> int:
        if not name.startswith(self._prefix):
            return GLOBAL
        return int(name[len(self._prefix) :].partition(".")[0])

    def _watch(self, module: nn.Module, name: str, layer: int) -> None:
        recorder = self._recorder

        def enter(*_: Any) -> None:
            self._stack.append((recorder.place, recorder.phase))
            recorder.place, recorder.layer = name, layer
            if layer != GLOBAL and recorder.phase == "backward":
                recorder.phase = "recomputation"

        def leave(*_: Any) -> None:
            recorder.place, recorder.phase = (
                self._stack.pop()
            )  # the layer stays: what its caller lets go of after it still belongs to it

        self._handles += [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave, always_call=True),
        ]

    def _watch_backward(self, block: nn.Module, layer: int) -> None:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            if layer == 0:
                self._on_backward((args, kwargs), "", GLOBAL)

        def after(_: nn.Module, __: Any, output: Any) -> None:
            self._on_backward(output, f"{self._prefix}{layer} backward", layer)

        self._handles += [
            block.register_forward_pre_hook(before, with_kwargs=True),
            block.register_forward_hook(after),
        ]

    def _on_backward(self, values: Any, place: str, layer: int) -> None:
        """When the gradient of the first tensor among `values` is there, `place` computes."""
        recorder = self._recorder
        tensor = next(
            (
                leaf
                for leaf in tree_leaves(values)
                if isinstance(leaf, Tensor) and leaf.requires_grad
            ),
            None,
        )
        if tensor is None or recorder.phase == "recomputation" or tensor is self._announced():
            return
        self._announced = weakref.ref(tensor)

        def arrive(_: Tensor) -> None:
            recorder.place, recorder.layer, recorder.in_loss = place, layer, False

        tensor.register_hook(arrive)

    def _body_done(self, _: nn.Module, __: Any, output: Any) -> None:
        self._on_backward(
            output, "final norm backward", GLOBAL
        )  # without such a norm the last block's own announcement stands
        self._recorder.in_loss = True

    def _on_gradient(self, name: str) -> Callable[[Tensor], None]:
        layer = self._layer_of(name)

        def note(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self._recorder.mark(parameter.grad, "gradients", name, layer)

        return note
