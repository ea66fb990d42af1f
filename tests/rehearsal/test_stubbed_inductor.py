import os

import pytest
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._subclasses.fake_tensor import FakeTensorMode

from brimful.rehearsal.recorder import Recorder
from brimful.rehearsal.stubbed_inductor import CannotStub, stubbed_kernels

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself


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
