"""A model in parts, rehearsed by one process, is what real ranks allocate."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import MakeStep
from transformers import LlamaConfig, LlamaForCausalLM

from brimful.base.arrays import Ints
from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.planning.family_key import family_keys_of
from brimful.planning.step import EVALUATION_FACTOR, Lora, StepSpec
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import PARTS, Work
from brimful.rehearsal.foreign import plan_model
from brimful.rehearsal.models import config_of, transformers_model
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.recorder import Recorder
from brimful.rehearsal.store import StoredTraces
from brimful.rehearsal.tracer import record_family
from brimful.rehearsal.training import record_training
from brimful.training.sharding import shard
from brimful.training.world import World
from measured_steps import measure_steps
from ranks_traced import is_the_hosts, pause_after_collectives

Ranks = Callable[..., list[Any]]
FEW_ADAPTED: JsonDict = {"adapter": Lora(16, "q_proj,down_proj")}
"""Two of a block's seven matrices: one that keeps the width, and one that narrows it."""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"autocast": "bf16"},
        {"adapter": Lora(4), "weights": "bf16", "accumulates": False},
        {"adapter": Lora(4), "weights": "bf16", "autocast": "bf16", "quantize": "nf4"},
    ],
    ids=["fp32", "bf16 autocast", "LoRA on bf16", "QLoRA"],
)
@pytest.mark.long_but("bf16 autocast", "fp32")
def test_the_traced_peak_is_that_of_the_first_of_real_ranks(
    step: MakeStep, ranks: Ranks, changes: JsonDict
) -> None:
    spec = step("llama", ranks=2, **changes)

    def act(world: World) -> int:
        pause_after_collectives()
        model = real_model(spec, config_of(spec))
        shard(transformers_model(model), world, torch.device("cpu"))
        return int(measure_steps(model, spec, 4).without(is_the_hosts).live_E().max())

    # A thread of gloo may hold a buffer for longer in one run, so the lesser of two is compared.
    measured = min(ranks(2, act)[0] for _ in range(2))
    predicted = _peak(record_training(spec, config_of(spec), 4))

    assert predicted == pytest.approx(measured, rel=0.002)


@pytest.mark.long
def test_the_planned_peak_of_a_model_object_is_that_of_the_first_of_real_ranks(
    ranks: Ranks,
) -> None:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
    )
    batch = {name: torch.zeros(2, 32, dtype=torch.long) for name in ("input_ids", "labels")}

    def act(world: World) -> int:
        pause_after_collectives()
        model = LlamaForCausalLM(config)
        shard(model, world, torch.device("cpu"))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        recorder = Recorder(cuda=False)
        with recorder:
            for _ in range(3):
                model(**batch).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        return int(recorder.finish("").live_E().max())

    # What a real process holds before it is recorded: its part of the weights.
    held_bytes = 4 * sum(each.numel() for each in LlamaForCausalLM(config).parameters()) // 2
    measured = min(ranks(2, act)[0] for _ in range(2)) + held_bytes  # see above
    planned = plan_model(LlamaForCausalLM(config), batch, ranks=2, keeps_outputs=False)
    alone = plan_model(LlamaForCausalLM(config), batch, keeps_outputs=False)

    assert planned.at(2).allocated.value == pytest.approx(measured, rel=0.01)
    assert planned.at(2).allocated.value < alone.at(2).allocated.value


@pytest.mark.parametrize(
    ("blocks", "asked_for", "changes"),
    [
        (7, [(16, 512, 0)], {"autocast": "bf16", "recompute": True}),
        (
            6,
            [(8, 256, 16), (16, 512, 6)],
            {**FEW_ADAPTED, "weights": "bf16", "autocast": "bf16", "quantize": "nf4"},
        ),
    ],
    ids=["every weight, recomputed", "QLoRA"],
)
@pytest.mark.long
def test_a_family_in_parts_gives_every_number_of_ranks_length_and_rank(
    step: MakeStep, blocks: int, asked_for: list[tuple[int, int, int]], changes: JsonDict
) -> None:
    """As a recording of all blocks shows; also where an adapter has fewer rows than there are
    devices, and no equal parts. One block fewer, and the step would be recorded whole.
    """
    spec = step("llama", blocks=blocks, ranks=2, sequence_length=256, **changes)
    family = record_family(family_keys_of(spec)[0])
    assert len(family.rows.few) < blocks

    for ranks, length, rank in asked_for:
        adapter = spec.adapter and dataclasses.replace(spec.adapter, rank=rank)
        sizes = {"ranks": ranks, "sequence_length": length, "loss_chunk": 2 * length}
        asked = dataclasses.replace(spec, **sizes, adapter=adapter)
        assert family.serves(ranks)
        derived, direct = family.at(asked), _whole(asked, 3)
        trace = derived.at(3)
        assert (trace.parameters, trace.trainable) == (direct.parameters, direct.trainable)
        assert np.array_equal(_bytes_by_event(trace), _bytes_by_event(direct))
        assert trace.live_E().max() == direct.live_E().max()
        assert derived.work is not None
        assert direct.work is not None
        work = derived.work.at(3, asked.loss_chunk)
        assert work.flop() == direct.work.flop()
        assert np.array_equal(_counts_of_steps(work), _counts_of_steps(direct.work))
    assert not family.serves(3)


def _whole(spec: StepSpec, micro_batch: int) -> Trace:
    """Two pieces of the loss, also in the evaluation, as in the recordings of a family."""
    factor = EVALUATION_FACTOR
    return record_training(spec, config_of(spec), micro_batch, factor, chunk_factor=factor)


def _bytes_by_event(trace: Trace) -> Ints:
    """What each event of the two steps takes, or gives back."""
    events_E = trace.events_E[: trace.marks["evaluation"]]
    bytes_E: Ints = np.sign(events_E) * trace.sizes_S[np.abs(events_E) - 1]
    return bytes_E


def _counts_of_steps(work: Work) -> list[list[float]]:
    """Operations, bytes and launches of each part of a step."""
    return [
        [
            float((getattr(work, name) * work.repeats_W)[work.parts_W == part].sum())
            for name in ("flop_W", "bytes_W", "launches_W", "fused_launches_W")
        ]
        for part, _ in enumerate(PARTS[:-1])
    ]


def test_ranks_that_do_not_divide_all_rows_are_traced_alone(step: MakeStep, tmp_path: Path) -> None:
    """Of eight rows of an adapter, 16 ranks cannot have equal parts."""
    specs = {
        ranks: step("llama", blocks=1, ranks=ranks, adapter=Lora(8, "q_proj")) for ranks in (8, 16)
    }

    stored = {ranks: StoredTraces(spec, tmp_path) for ranks, spec in specs.items()}

    for ranks, spec in specs.items():
        whole = record_training(spec, config_of(spec), 2)
        assert _peak(stored[ranks].at(2)) == _peak(whole)


def test_a_recording_leaves_no_process_group_and_tracebacks_as_they_were(
    step: MakeStep,
) -> None:
    before = sys.excepthook

    record_training(spec := step("llama", ranks=2), config_of(spec), 1)

    assert sys.excepthook is before
    assert not torch.distributed.is_initialized()


def test_more_ranks_need_less_each(step: MakeStep) -> None:
    peaks = [
        _peak(record_training(spec := step("llama", ranks=count), config_of(spec), 2))
        for count in (1, 2, 8)
    ]

    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize("recompute", [False, True])
def test_no_rank_keeps_16_bit_copies_of_all_weights(step: MakeStep, *, recompute: bool) -> None:
    spec = step("llama", blocks=6, ranks=4, autocast="bf16", recompute=recompute)

    trace = record_training(spec, config_of(spec), 1)

    is_copy_S = trace.kinds_S == KINDS.index("16-bit weight copies")
    sizes_S = trace.sizes_S * is_copy_S
    alive = [int(sizes_S[trace.alive_at(event)].sum()) for event in range(len(trace.events_E))]
    whole_bytes = 2 * trace.parameters
    assert 0 < max(alive) < whole_bytes / 2


def test_a_rank_of_a_job_cannot_rehearse_another(step: MakeStep, ranks: Ranks) -> None:
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
