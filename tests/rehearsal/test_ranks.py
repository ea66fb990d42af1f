"""A model in parts, rehearsed by one process, is what real ranks allocate."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from brimful.base.errors import PlanError
from brimful.planning.step import Lora, StepSpec
from brimful.planning.trace import KINDS, Trace
from brimful.rehearsal.models import config_of, transformers_model
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.tracer import trace_all
from brimful.rehearsal.training import record_training
from brimful.training.sharding import shard
from brimful.training.world import World
from measured_steps import measure_steps
from ranks_traced import GLOO_COPIES

Ranks = Callable[..., list[Any]]


@pytest.mark.parametrize(
    "changes",
    [{}, {"autocast": "bf16"}, {"adapter": Lora(4), "weights": "bf16", "accumulates": False}],
    ids=["fp32", "bf16 autocast", "LoRA on bf16"],
)
def test_the_traced_peak_is_that_of_the_first_of_real_ranks(
    step: Callable[..., StepSpec], ranks: Ranks, changes: dict[str, Any]
) -> None:
    spec = step("llama", ranks=2, **changes)

    def act(world: World) -> int:
        model = real_model(spec, config_of(spec))
        shard(transformers_model(model), world, torch.device("cpu"))
        return int(measure_steps(model, spec, 4).without(GLOO_COPIES).live_E().max())

    # A thread of gloo may hold a buffer for longer in one run, so the least of some is compared.
    measured = min(ranks(2, act)[0] for _ in range(3))
    predicted = _peak(record_training(spec, config_of(spec), 4))

    assert predicted == pytest.approx(measured, rel=0.002)


def test_small_traces_stand_for_all_blocks_and_sequences(step: Callable[..., StepSpec]) -> None:
    spec = step("llama", blocks=8, ranks=3, autocast="bf16")

    whole = record_training(spec, config_of(spec), 6)

    derived = trace_all(spec).at(6)
    assert _peak(derived) == _peak(whole)
    assert derived.parameters == whole.parameters
    assert derived.work is None
    assert trace_all(spec).work is not None


def test_more_ranks_need_less_each(step: Callable[..., StepSpec]) -> None:
    peaks = [
        _peak(record_training(spec := step("llama", ranks=count), config_of(spec), 2))
        for count in (1, 2, 8)
    ]

    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize("recompute", [False, True])
def test_no_rank_keeps_16_bit_copies_of_all_weights(
    step: Callable[..., StepSpec], *, recompute: bool
) -> None:
    spec = step("llama", blocks=6, ranks=4, autocast="bf16", recompute=recompute)

    trace = record_training(spec, config_of(spec), 1)

    is_copy_S = trace.kinds_S == KINDS.index("16-bit weight copies")
    sizes_S = trace.sizes_S * is_copy_S
    alive = [int(sizes_S[trace.alive_at(event)].sum()) for event in range(len(trace.events_E))]
    whole_bytes = 2 * trace.parameters
    assert 0 < max(alive) < whole_bytes / 2


def test_a_rank_of_a_job_cannot_rehearse_another(
    step: Callable[..., StepSpec], ranks: Ranks
) -> None:
    spec = step("llama", ranks=2)

    def act(world: World) -> str:
        try:
            record_training(spec, config_of(spec), 1)
        except PlanError as error:
            return str(error)
        return ""

    assert all("trains with others" in message for message in ranks(2, act))


def _peak(trace: Trace) -> int:
    return int(trace.live_E()[: trace.marks["between steps"]].max())
