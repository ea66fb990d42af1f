import dataclasses

import pytest
import torch
from fixture_types import MakeStep
from torch import nn
from torch._inductor.async_compile import AsyncCompile

from brimful.base.errors import PlanError
from brimful.planning.trace import KINDS
from brimful.rehearsal.compiled_blocks import compile_modules, outside_function_modes
from brimful.rehearsal.kernels import OnCuda
from brimful.rehearsal.models import config_of
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
