"""What a training step on an H100 launches and moves, counted from its plan: attention kernels a
layer, bytes a token that the loss moves outside its products, the step's time and MFU.

    python benchmarks/gpu_counts.py [--no-record]

Nothing is measured: counts are of the recorded step, times what `brimful plan` says. Recordings
that are not there are made, so the first time takes minutes.
"""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

from brimful.chains.plans import SurveyRequest, survey_jobs
from brimful.hardware import catalog as devices
from brimful.hardware.groups import group_of
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES
from brimful.planning.surveyed import Surveyed
from brimful.planning.work import GLOBAL, PARTS, PHASES, Work
from brimful.recipe import load
from brimful.rehearsal.kept_traces import kept_traces
from record import write_record

DEVICE = "NVIDIA H100 80GB HBM3"
RUN = ("training={steps: 1000}",)
"""A run long enough for compiling to pay, as pre-training has."""
CONFIGURATIONS: Mapping[str, tuple[str, ...]] = {
    "124M, vocabulary of 50k": ("gpt-124m",),
    "355M, vocabulary of 50k": (
        *("gpt-124m", "model.layers=24", "model.heads=16", "model.width=1024"),
    ),
    "1B, vocabulary of 128k": (
        *("gpt-124m", "model.layers=16", "model.heads=16", "model.width=2048"),
        "tokenizer.vocabulary=128256",
    ),
    "LoRA, 0.5B, vocabulary of 152k": ("lora", "model=Qwen/Qwen2.5-0.5B", *RUN),
    "LoRA, 8B, vocabulary of 128k": ("lora", "model=meta-llama/Llama-3.1-8B", *RUN),
}


def counted(words: tuple[str, ...], tracer: Any) -> dict[str, Any]:
    """Return the counts of a recipe's micro-batch."""
    group = group_of(devices.get(DEVICE), 1)
    (found,) = survey_jobs(load(words[0], list(words[1:])), [group], SurveyRequest(tracer))
    if not isinstance(found, Surveyed):
        raise SystemExit(f"{words}: {found}")
    plan, memory = found.derived.plan, found.derived.memory
    micro_batch = plan.micro_batches[0]
    work = memory.work_at(micro_batch)
    if work is None:
        raise SystemExit(f"{words}: nothing is known of its operators")
    first_W = work.parts_W == PARTS.index("micro-batch")
    tokens = micro_batch * plan.sequence_length
    return {
        "micro_batch": micro_batch,
        "loss_chunk": plan.loss_chunk,
        "compile": plan.compile,
        "launches_of_a_micro_batch": _sum(work, first_W, "launches_W"),
        "attention_launches_a_layer": _attention(work, first_W),
        "loss_bytes_a_token": _loss(work, first_W, "bytes_W") / tokens,
        "loss_bytes_a_token_compiled": _loss(work, first_W, "fused_bytes_W") / tokens,
        "predicted": {
            name: each.value
            for name, each in plan.predicted.items()
            if name in {"step_time_s", "mfu"}
        },
    }


def _is_product(work: Work) -> Any:
    return np.isin(work.classes_W, [CLASSES.index(each) for each in MATRIX_CLASSES])


def _sum(work: Work, which_W: Any, name: str) -> float:
    return float(np.dot(getattr(work, name) * which_W, work.repeats_W))


def _attention(work: Work, first_W: Any) -> float:
    """Kernels of attention in one block's forward pass."""
    blocks_W = first_W & (work.layers_W == 1) & (work.phases_W == PHASES.index("forward"))
    is_attention_W = work.classes_W == CLASSES.index("attention")
    return float(np.sum(work.launches_W * (blocks_W & is_attention_W)))


def _loss(work: Work, first_W: Any, name: str) -> float:
    """Bytes of what belongs to no block in the forward pass and is no product."""
    outside_W = first_W & (work.layers_W == GLOBAL) & (work.phases_W == PHASES.index("forward"))
    return _sum(work, outside_W & ~_is_product(work), name)


def main() -> None:
    """Count, print, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-record", action="store_true")
    options = parser.parse_args()
    found = {}
    with kept_traces() as tracer:
        for name, words in CONFIGURATIONS.items():
            found[name] = counted(words, tracer)
            print(name, found[name], flush=True)
    if not options.no_record:
        print(write_record("gpu_counts", {"device": DEVICE, "steps": found}))


if __name__ == "__main__":
    main()
