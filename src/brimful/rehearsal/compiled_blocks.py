"""Compiled modules of a traced step: the blocks, as in brimful's own loop
(training.method.compiled), or a whole model.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily


def compile_modules(modules: Iterable[nn.Module], *, open_lengths: bool = False) -> None:
    """Compile the forward pass of modules on fake tensors, in place; without gradients they run
    eagerly. Hooks on them stay outside of what is compiled.

    Args:
        modules: The blocks of a model, or the model.
        open_lengths: One graph serves all lengths.
    """
    for module in modules:
        plain = module.forward
        module.forward = _either(plain, torch.compile(plain, dynamic=open_lengths))


def _either(plain: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        return outside_function_modes(compiled, *args, **kwargs)

    return forward


def outside_function_modes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function without the active torch function modes, which the compiler would trace."""
    with ExitStack() as stack:
        for _ in _get_current_function_mode_stack():
            stack.enter_context(_pop_mode_temporarily())
        return function(*args, **kwargs)
