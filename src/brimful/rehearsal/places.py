"""Hooks that keep the recorder informed of the module and block that compute, forward and backward,
and of which storages are gradients and optimizer states.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from brimful.model.blocks import body_of
from brimful.planning.step import Compiled
from brimful.planning.work import GLOBAL
from brimful.rehearsal.models import transformers_model
from brimful.rehearsal.recorder import Recorder

_ADAPTERS = ("lora_", "trainable_tokens_delta", "modules_to_save")
"""Parts of the names of weights that peft adds."""


class Places:
    """Hooks on the modules of a model during one recording. None are inside what is compiled,
    because they would be compiled, too.

    Attributes:
        sees_blocks: The passes of single blocks are told apart.

    The backward pass of a block begins when the gradient of its output exists, and ends where that
    of the next block begins.
    """

    def __init__(
        self,
        recorder: Recorder,
        model: nn.Module,
        blocks_name: str,
        blocks: nn.ModuleList,
        compiled: Compiled = "none",
    ) -> None:
        self._recorder, self._model, self._prefix = recorder, model, f"{blocks_name}."
        self.sees_blocks = compiled != "model"
        self._stack: list[tuple[str, str]] = []
        self._handles: list[Any] = []
        self._announced: Callable[[], Tensor | None] = lambda: None
        body = body_of(transformers_model(model))
        if self.sees_blocks:
            for name, module in model.named_modules():
                layer = self._layer_of(name)
                if compiled == "none" or layer == GLOBAL or module is blocks[layer]:
                    self._watch(module, name, layer)
            for layer, block in enumerate(blocks):
                self._watch_backward(block, layer)
            self._handles += [
                body.register_forward_pre_hook(self._body_begun),
                body.register_forward_hook(self._body_done),
            ]
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(
                    parameter.register_post_accumulate_grad_hook(self._on_gradient(name))
                )

    def seed_weights(self) -> None:
        """Record all parameters and buffers; those of LoRA are adapters."""
        for name, tensor in [*self._model.named_parameters(), *self._model.named_buffers()]:
            is_adapter = any(part in name for part in _ADAPTERS)
            kind = "adapters" if is_adapter else "weights"
            self._recorder.seed(tensor, kind, name, self._layer_of(name))

    def note_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Mark the storages of optimizer states, with their blocks."""
        for name, parameter in self._model.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    self._recorder.mark(
                        value, "optimizer states", f"{name} {key}", self._layer_of(name)
                    )

    def follow_updates(self, optimizer: torch.optim.Optimizer) -> None:
        """Let what the update of a parameter makes belong to the parameter's block, for an
        optimizer with a method `update` that takes one after the other.
        """
        update: Callable[..., None] = optimizer.update  # type: ignore[attr-defined]
        names = {parameter: name for name, parameter in self._model.named_parameters()}

        def placed(parameter: Tensor, *arguments: Any) -> None:
            name = names[parameter]  # type: ignore[index]
            with self._recorder.within(f"{name} update", self._layer_of(name)):
                update(parameter, *arguments)

        optimizer.update = placed  # type: ignore[attr-defined]

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
            # The block stays: what the caller frees after this module still belongs to it. What is
            # freed after a module around the blocks belongs to those that made it.
            recorder.place, recorder.phase = self._stack.pop()
            if layer == GLOBAL:
                recorder.layer = GLOBAL

        self._handles += [
            # Before FSDP2's own, which gather this module's weights.
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, always_call=True),
        ]

    def _watch_backward(self, block: nn.Module, layer: int) -> None:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            if layer == 0:
                self._on_backward((args, kwargs), "", GLOBAL)

        def after(_: nn.Module, __: Any, output: Any) -> None:
            self._on_backward(output, f"{self._prefix}{layer} backward", layer)

        self._handles += [
            block.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
            block.register_forward_hook(after, prepend=True),
        ]

    def _on_backward(self, values: Any, place: str, layer: int) -> None:
        """From when the gradient of the first tensor among `values` exists, `place` computes."""
        recorder = self._recorder
        tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
        tensor = next((each for each in tensors if each.requires_grad), None)
        if tensor is None or recorder.phase == "recomputation" or tensor is self._announced():
            return
        self._announced = weakref.ref(tensor)

        def arrive(_: Tensor) -> None:
            recorder.place, recorder.layer, recorder.in_loss = place, layer, False

        tensor.register_hook(arrive)

    def _body_begun(self, *_: Any) -> None:
        # Methods with a reference pass through the body twice.
        self._recorder.in_loss = False

    def _body_done(self, _: nn.Module, __: Any, output: Any) -> None:
        # In a model without a final norm, this is the tensor that the last block announced.
        self._on_backward(output, "final norm backward", GLOBAL)
        self._recorder.in_loss = True

    def _on_gradient(self, name: str) -> Callable[[Tensor], None]:
        layer = self._layer_of(name)

        def note(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self._recorder.mark(parameter.grad, "gradients", name, layer)

        return note
