"""Compiled modules of a traced step on tensors without values: the blocks, as in brimful's own loop
(training.method.compiled), or a whole model. Inductor lowers the graphs and its wrapper code runs,
but no kernel is compiled or launched.

Inductor's output is Python code that allocates buffers, calls kernels and deletes the buffers. With
kernels that do nothing, that code runs on fake tensors, and a recorder sees what the compiled step
allocates. The names that are replaced here are private to torch (checked with 2.13, 2026-11-23).
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch import Tensor, nn
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


_COMPILERS = ("cpp", "cpp_pybinding", "triton", "multi_kernel")
"""Methods of Inductor's AsyncCompile that make a kernel from source."""
_IS_STUB = "brimful_is_stub"
_CPU = torch.device("cpu")


class CannotStub(RuntimeError):
    """The installed torch lacks what is replaced here, so compiled steps are not traced."""


@contextmanager
def stubbed_kernels() -> Iterator[None]:
    """Make torch.compile produce functions whose kernels do nothing.

    Nothing of it stays: functions compiled before and inside are dropped (torch recompiles the
    former when they are called again), and generated files go to a folder that is deleted. Inside
    another such context this one does nothing, so that steps traced there share what is compiled.

    Raises:
        CannotStub: torch has changed; nothing was replaced.
    """
    try:
        from torch._functorch import config as functorch  # noqa: PLC0415
        from torch._inductor import config, utils  # noqa: PLC0415 - two seconds
        from torch._inductor.async_compile import AsyncCompile  # noqa: PLC0415
        from torch._inductor.codecache import PyCodeCache  # noqa: PLC0415
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list  # noqa: PLC0415
        from torch._inductor.runtime.cache_dir_utils import (  # noqa: PLC0415
            default_cache_dir,
            temporary_cache_dir,
        )

        load = PyCodeCache.load_by_key_path.__func__  # type: ignore[attr-defined]
        if hasattr(load, _IS_STUB):
            yield
            return
        fresh_cache = utils.fresh_cache
        compilers = [getattr(AsyncCompile, name).__name__ for name in _COMPILERS]
        settings = (
            config.patch(
                fx_graph_cache=False,
                fx_graph_remote_cache=False,
                size_asserts=False,
                alignment_asserts=False,
            ),
            functorch.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False),
            torch._dynamo.config.patch(
                automatic_dynamic_local_pgo=False, automatic_dynamic_remote_pgo=False
            ),
        )
    except (ImportError, AttributeError) as missing:
        raise CannotStub(f"torch {torch.__version__}: {missing}") from missing

    def load_stubbed(cls: Any, *args: Any, **kwargs: Any) -> ModuleType:
        return _without_values(load(cls, *args, **kwargs))

    setattr(load_stubbed, _IS_STUB, True)
    with ExitStack() as stack:
        # Inductor compiles nine small C++ files to learn which vector instructions it may use, ten
        # CPU seconds. They stay in its usual folder, so that the next process finds them.
        with suppress(Exception), temporary_cache_dir(default_cache_dir()):
            valid_vec_isa_list()  # what fails here fails again where it is needed
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        stack.callback(torch._dynamo.reset)
        torch._dynamo.reset()
        stack.enter_context(fresh_cache(dir=folder))
        for setting in settings:
            stack.enter_context(setting)
        stack.enter_context(
            mock.patch.object(PyCodeCache, "load_by_key_path", classmethod(load_stubbed))
        )
        for name in compilers:
            stack.enter_context(mock.patch.object(AsyncCompile, name, _no_kernel))
        yield


class _Nothing:
    """A kernel that can be launched and does nothing."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Launch a C++ kernel."""

    run = __call__


def _no_kernel(*_: Any, **__: Any) -> _Nothing:
    return _Nothing()


def _without_values(module: ModuleType) -> ModuleType:
    """Replace the C++ shortcuts of a generated module by torch calls: fake tensors and recorders
    see only those.
    """

    def empty(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=_CPU)

    replaced: dict[str, Callable[..., Any]] = {
        "empty_strided_cpu": empty,
        "empty_strided_cpu_pinned": empty,
        "reinterpret_tensor": torch.as_strided,
    }
    for name, function in replaced.items():
        if hasattr(module, name):
            setattr(module, name, function)
    return module
