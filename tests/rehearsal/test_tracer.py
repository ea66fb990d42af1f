"""What follows from a few small traces is what a direct trace of the whole step shows."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from transformers import Lfm2Config

from brimful.planning.parametric import Irregular, equal
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.planning.trace import Trace
from brimful.planning.work import Work
from brimful.rehearsal import tracer
from brimful.rehearsal.models import config_of
from brimful.rehearsal.store import StoredTraces
from brimful.rehearsal.tracer import trace_all, trace_one
from brimful.rehearsal.training import record_training

Step = Callable[..., StepSpec]
SUMMED = ("flop_W", "bytes_W", "launches_W", "fused_launches_W")
QLORA: dict[str, Any] = {
    "blocks": 2,
    "adapter": Lora(4, dropout=0.1),
    "quantize": "nf4",
    "weights": "bf16",
    "recompute": True,
    "cuda": True,
}


@functools.cache
def _direct(spec: StepSpec, micro_batch: int) -> Trace:
    return record_training(spec, config_of(spec), micro_batch)


def _peak_bytes(trace: Trace) -> int:
    return int(trace.live_E().max())


def _totals(work: Work | None) -> dict[tuple[int, ...], float]:
    """FLOP, bytes and kernels by part, phase and class."""
    assert work is not None
    keys, group_W = np.unique(
        np.stack([work.parts_W, work.phases_W, work.classes_W]), axis=1, return_inverse=True
    )
    sums = {
        name: np.bincount(group_W.ravel(), getattr(work, name) * work.repeats_W) for name in SUMMED
    }
    return {
        (index, *map(int, key)): float(sums[name][column])
        for index, name in enumerate(SUMMED)
        for column, key in enumerate(keys.T)
    }


def _about(totals: dict[tuple[int, ...], float]) -> Any:
    """Equal, but for a kernel or two of the update: lists of so many parameters go into one."""
    return pytest.approx(totals, rel=1e-12, abs=2)


@pytest.mark.parametrize(
    ("family", "micro_batches", "changes"),
    [
        ("llama", (1, 6), {"autocast": "bf16", "cuda": True}),
        ("llama", (3,), {"recompute": True}),
        ("gpt2", (6,), {}),
        ("bert", (6,), {"recompute": True}),
        ("modernbert", (12,), {"blocks": 2, "loss_chunk": 16, "cuda": True, "autocast": "bf16"}),
    ],
    ids=[
        "llama on CUDA",
        "llama, recomputed",
        "gpt2",
        "bert, recomputed",
        "hidden words in one piece of the loss and in many, on CUDA",
    ],
)
def test_peaks_of_any_micro_batch_are_those_of_direct_traces(
    step: Step, family: str, micro_batches: tuple[int, ...], changes: dict[str, Any]
) -> None:
    spec = step(
        family,
        **({"blocks": 6, "sequence_length": 32, "loss_chunk": 64, "accumulates": False} | changes),
    )
    traces = trace_all(spec)

    for micro_batch in micro_batches:
        derived, direct = traces.at(micro_batch), _direct(spec, micro_batch)

        assert _peak_bytes(derived) == _peak_bytes(direct), micro_batch
        assert (derived.parameters, derived.trainable) == (direct.parameters, direct.trainable)
        assert equal(derived, direct) or spec.loss == "chunked"


@pytest.mark.parametrize(
    ("family", "micro_batch", "changes"),
    [
        ("llama", 1, {"autocast": "bf16", "cuda": True, "accumulates": False}),
        ("llama", 6, {"autocast": "bf16", "cuda": True, "accumulates": False}),
        ("bert", 6, {"recompute": True, "accumulates": False}),
        ("llama", 3, QLORA),
        (
            "modernbert",
            12,
            {"blocks": 2, "loss_chunk": 16, "cuda": True, "autocast": "bf16", "accumulates": False},
        ),
    ],
    ids=[
        "llama on CUDA, one sequence",
        "llama on CUDA",
        "bert, recomputed",
        "QLoRA, recomputed, accumulating",
        "hidden words on CUDA",
    ],
)
def test_work_of_any_micro_batch_is_that_of_direct_traces(
    step: Step, family: str, micro_batch: int, changes: dict[str, Any]
) -> None:
    spec = step(family, **({"blocks": 6, "sequence_length": 32, "loss_chunk": 64} | changes))

    work, direct = trace_all(spec).work, _direct(spec, micro_batch).work

    assert work is not None
    assert _totals(work.at(micro_batch, spec.loss_chunk)) == _about(_totals(direct))


@pytest.mark.parametrize(
    "loss_chunk", [32, 48, 64, 96, 1000], ids=lambda tokens: f"{tokens} of 96 tokens"
)
def test_one_set_of_traces_gives_the_peak_for_every_size_of_chunk(
    step: Step, tmp_path_factory: pytest.TempPathFactory, loss_chunk: int
) -> None:
    """The chunked loss of 3 sequences of 32 tokens; logits of 512 entries are most of this model's
    memory.
    """
    folder = tmp_path_factory.getbasetemp() / "traces of chunks"
    spec = step("llama", sequence_length=32, loss_chunk=loss_chunk, accumulates=False)

    traces = StoredTraces(spec, folder)

    assert _peak_bytes(traces.at(3)) == _peak_bytes(_direct(spec, 3))
    assert _totals(traces.work_at(3)) == _about(_totals(_direct(spec, 3).work))


def test_chunks_that_divide_no_sequence_and_odd_lengths_are_traced_too(step: Step) -> None:
    spec = step("gpt2", sequence_length=33, loss_chunk=50, accumulates=False)

    traces = trace_all(spec)

    assert _peak_bytes(traces.at(5)) == _peak_bytes(_direct(spec, 5))
    assert trace_all(dataclasses.replace(spec)) is traces  # made once


def test_one_micro_batch_of_many_blocks_follows_from_few(step: Step) -> None:
    spec = step("llama", blocks=6, sequence_length=32, accumulates=False)

    assert equal(trace_one(spec, 1), _direct(spec, 1))
    assert _totals(trace_one(spec, 1).work) == _about(_totals(_direct(spec, 1).work))


def test_blocks_that_do_not_repeat_are_refused_and_traced_as_they_are() -> None:
    """Convolutions with attention in between, in no regular order."""
    kinds = ["conv", "conv", "full_attention", "full_attention", "conv", "full_attention"]
    config = Lfm2Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=kinds,
    )
    spec = StepSpec(canonical(config.to_dict()), 32, cuda=False, loss="model", accumulates=False)

    with pytest.raises(Irregular):
        trace_all(spec)
    assert set(trace_one(spec, 3).layers_S.tolist()) == {-1, *range(6)}


def test_a_further_trace_that_disagrees_is_believed(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that are affine in 4 and 5 sequences, and not in any other number."""
    record = record_training

    def bent(spec: StepSpec, config: Any, micro_batch: int, *rest: Any) -> Trace:
        trace = record(spec, config, micro_batch, *rest)
        return (
            trace
            if micro_batch in (4, 5)
            else dataclasses.replace(trace, sizes_S=trace.sizes_S + 8)
        )

    monkeypatch.setattr(tracer, "record_training", bent)

    with pytest.raises(Irregular):
        trace_all(step("llama", sequence_length=24, loss="model", accumulates=False))
