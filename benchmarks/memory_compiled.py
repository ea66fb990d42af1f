"""Peak memory of real training steps with compiled blocks on this CPU beside the planner's
prediction, which runs no kernel.

    python benchmarks/memory_compiled.py [--only WORDS] [--processes N]

Rules: as in `memory_cpu`. The measured side compiles the blocks as the training loop does, with
Inductor and the C++ compiler of this machine, and is measured after a first pass; the predicted
side runs Inductor's wrapper code on tensors without values. The eager step is predicted beside it.
Fails where a peak is off by more than `TOLERANCE`.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from transformers import Gemma3TextConfig, GPT2Config, LlamaConfig, Qwen3Config
from transformers.utils import logging

from brimful.planning.block_rows import Irregular
from brimful.planning.step import Lora, StepSpec
from brimful.rehearsal.models import config_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.store import StoredTraces
from brimful.rehearsal.training import record_training
from measured_steps import measure_steps
from memory_cpu import DECODER, MICRO_BATCH, SHORT, TOLERANCE, Result, _row, _spec, steps_live
from record import write_record

FEW_WORDS = DECODER | SHORT | {"vocab_size": 256}
"""With a vocabulary this small the peak lies in a block, else in the loss."""


def configurations() -> Mapping[str, StepSpec]:
    """Families x precision x recomputation x loss x shapes."""
    llama = LlamaConfig(**FEW_WORDS)
    gpt2 = {"vocab_size": 256, "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 256}
    still = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    autocast: dict[str, Any] = {"autocast": "bf16", "compiled": "blocks"}
    return {
        "llama, bf16 autocast, 4,096 words": _spec(LlamaConfig(**DECODER | SHORT), **autocast),
        "llama, bf16 autocast": _spec(llama, **autocast),
        "llama, fp32": _spec(llama, compiled="blocks"),
        "llama, pure bf16, foreach": _spec(
            llama, weights="bf16", optimizer="foreach", compiled="blocks"
        ),
        "llama, bf16 autocast, recomputed": _spec(llama, recompute=True, **autocast),
        "llama, bf16 autocast, whole logits": _spec(llama, loss="model", **autocast),
        "llama, bf16 autocast, T 100": _spec(llama, sequence_length=100, **autocast),
        "llama, LoRA, bf16 autocast": _spec(llama, adapter=Lora(8), **autocast),
        "llama, weights in bf16": _spec(llama, weights="bf16", optimizer="rounded", **autocast),
        "llama, weights in bf16, states in 8 bits, recomputed": _spec(
            llama, weights="bf16", optimizer="rounded_8bit", recompute=True, **autocast
        ),
        "llama, LoRA by one function, bf16 weights": _spec(
            llama, adapter=Lora(8, quick=True), weights="bf16", **autocast
        ),
        "gpt2, fp32, dropout": _spec(GPT2Config(**gpt2), compiled="blocks"),
        "gpt2, bf16 autocast": _spec(GPT2Config(**gpt2, **still), **autocast),
        "qwen3, bf16 autocast": _spec(Qwen3Config(**FEW_WORDS, head_dim=64), **autocast),
        "gemma3, pure bf16": _spec(
            Gemma3TextConfig(**FEW_WORDS, head_dim=64), weights="bf16", compiled="blocks"
        ),
    }


def row_of(name: str) -> dict[str, Any]:
    """Rehearse and measure one configuration; from small traces where its name asks for it."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    spec = configurations()[name]
    config = config_of(spec)
    trace = record_training(spec, config, MICRO_BATCH)
    eager = record_training(dataclasses.replace(spec, compiled="none"), config, MICRO_BATCH)
    try:
        from_small: int | str = int(steps_live(StoredTraces(spec, None).at(MICRO_BATCH)).max())
    except Irregular as reason:
        from_small = str(reason)
    measured = measure_steps(real_model(spec, config), spec, MICRO_BATCH)
    row = _row(Result(name, trace, measured, from_small))
    share = int(steps_live(eager).max()) / row["measured_bytes"] - 1
    return row | {"eager_error_percent": round(100 * share, 2)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="configurations whose name holds this")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    names = [name for name in configurations() if options.only in name]
    rows = []
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        for row in pool.map(row_of, names):
            rows.append(row)
            print(
                f"{row['configuration']:52s} {row['predicted_bytes']:>12,}"
                f" {row['measured_bytes']:>12,} {row['error_percent']:+.4f} % "
                f" {row['measured_phase']}, eager {row['eager_error_percent']:+.1f} %, small"
                f" traces: {row['from_small_traces']}",
                *row["named"],
                sep="\n    ",
                flush=True,
            )
            if not options.only:  # after each, so that nothing is lost when it is cut off
                missing = names[len(rows) :]
                values = {"micro_batch": MICRO_BATCH, "missing": missing, "configurations": rows}
                write_record("memory_compiled", values)
    errors = [abs(row["error_percent"]) for row in rows]
    print(
        f"{len(rows)} configurations: median {np.median(errors):.4f} %, worst {max(errors):.4f} %"
    )
    if max(errors) > 100 * TOLERANCE:
        sys.exit(f"a peak is off by more than {100 * TOLERANCE} %")


if __name__ == "__main__":
    main()
