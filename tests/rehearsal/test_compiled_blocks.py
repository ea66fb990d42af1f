import dataclasses
import os

import pytest
import torch
from fixture_types import MakeStep
from torch import nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._subclasses.fake_tensor import FakeTensorMode

from brimful.base.errors import PlanError
from brimful.planning.trace import KINDS
from brimful.rehearsal.compiled_blocks import (
    CannotStub,
    compile_modules,
    outside_function_modes,
    stubbed_kernels,
)
from brimful.rehearsal.kernels import OnCuda
from brimful.rehearsal.models import config_of
from brimful.rehearsal.recorder import Recorder
from brimful.rehearsal.store import StoredTraces
from brimful.rehearsal.training import compiler_of, record_training

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself

SMALL = 17
"""A micro-batch at which no tensor of the batch is as large as a weight."""


@pytest.mark.long
def test_compiled_blocks_of_few_make_those_of_many(step: MakeStep) -> None:
    """On CUDA, six blocks from four; an eager step keeps more."""
    spec = step("llama", blocks=6, cuda=True, autocast="bf16", compiled="blocks")
    eager = record_training(dataclasses.replace(spec, compiled="none"), config_of(spec), SMALL)
    with compiler_of(spec):
        whole = record_training(spec, config_of(spec), SMALL)
        made = StoredTraces(spec, None).at(SMALL)

    assert made.live_E().max() == whole.live_E().max() < 0.9 * eager.live_E().max()
    assert made.work is None
    gradients = whole.kinds_S == KINDS.index("gradients")
    assert whole.sizes_S[gradients].sum() >= 4 * whole.trainable


def test_modules_run_eagerly_without_gradients() -> None:
    layer, inputs = nn.Linear(4, 4), torch.ones(2, 4)
    plain = layer(inputs)
    compile_modules([layer])

    with torch.no_grad():
        assert torch.equal(layer(inputs), plain)


def test_function_modes_are_off_inside_and_on_again_after() -> None:
    def active() -> int:
        return len(torch.overrides._get_current_function_mode_stack())

    with OnCuda(flash=True):
        inside, after = outside_function_modes(active), active()

    assert (inside, after) == (0, 1)


def test_where_torch_cannot_be_stubbed_a_compiled_step_is_refused(
    step: MakeStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(AsyncCompile, "multi_kernel")

    with pytest.raises(PlanError, match="compiled step of a llama model cannot be traced: torch 2"):
        StoredTraces(step("llama", blocks=2, compiled="blocks"), None).at(2)


def _two_sums(values: torch.Tensor) -> torch.Tensor:
    return (values.sin() + 1).sum(0) * (values.cos() + 2).sum(0)


@pytest.mark.long
def test_nothing_of_a_stubbed_function_is_left_for_a_real_one() -> None:
    """The same function, compiled for the same shape in the same process."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    compilers = AsyncCompile.cpp_pybinding, PyCodeCache.load_by_key_path
    with FakeTensorMode(), stubbed_kernels():
        made = torch.compile(_two_sums, dynamic=False)(torch.ones(8, 4))
    values = torch.linspace(0, 1, 32).view(8, 4)

    assert made.shape == (4,)
    assert (AsyncCompile.cpp_pybinding, PyCodeCache.load_by_key_path) == compilers
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == folder
    torch.testing.assert_close(torch.compile(_two_sums, dynamic=False)(values), _two_sums(values))


def test_a_recorder_sees_the_buffers_of_a_compiled_function() -> None:
    """Its result alone: the four tensors in between are fused away."""
    with FakeTensorMode(), stubbed_kernels():
        values, compiled = torch.ones(8, 4), torch.compile(_two_sums, dynamic=False)
        compiled(values)
        recorder = Recorder(cuda=False)
        with recorder:
            recorder.seed(values, "inputs", "batch")
            recorder.begin("forward")
            compiled(values)
        trace = recorder.finish()

    assert trace.live_E().max() == values.nbytes + 2 * 4 * 4


def test_contexts_within_each_other_share_what_is_compiled() -> None:
    with FakeTensorMode(), stubbed_kernels():
        torch.compile(_two_sums, dynamic=False)(torch.ones(8, 4))
        compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        with stubbed_kernels():
            torch.compile(_two_sums, dynamic=False)(torch.ones(8, 4))

        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled > 0


def test_a_torch_without_the_replaced_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(AsyncCompile, "multi_kernel")

    with pytest.raises(CannotStub, match=r"torch 2\..*multi_kernel"), stubbed_kernels():
        pass
