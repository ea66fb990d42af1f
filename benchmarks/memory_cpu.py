"""Peak memory of real training steps on this CPU beside the planner's prediction, to the byte.

    python benchmarks/memory_cpu.py [eager | rewards | compiled] [--only WORDS]

Updates on rewarded answers and compiled blocks have records of their own.

Rules: prediction and measurement share the step's code and nothing else: one runs on fake tensors,
the other on real weights under torch's profiler, whose allocation events are summed. Both count
bytes as asked for. The prediction is made twice, by tracing the model itself and from small traces
as the planner does; those may refuse, and the planner then traces the model itself. Blocks are compiled
as the training loop does, with Inductor and the C++ compiler of this machine, and measured after a first
pass; the predicted side runs Inductor's wrapper code on tensors without values. One thread: kernels take
scratch memory for each. Fails where a peak is off by more than `TOLERANCE`.

Not seen by the profiler, and so by neither side: what oneDNN and the C library take without torch's
allocator.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    BertConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
)
from transformers.utils import logging

from brimful.planning.block_rows import Irregular
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.planning.trace import Trace
from brimful.rehearsal.models import config_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.store import StoredTraces
from brimful.rehearsal.training import record_training
from measured_steps import measure_steps
from record import write_record

TOLERANCE = 0.002
MICRO_BATCH = 5
DECODER = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ENCODER = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
}
SHORT = {"num_hidden_layers": 4}


def _spec(config: PretrainedConfig, **changes: Any) -> StepSpec:
    values: dict[str, Any] = {"sequence_length": 192, "loss_chunk": 384, "cuda": False} | changes
    return StepSpec(config_json=canonical(config.to_dict()), **values)


def configurations() -> Mapping[str, StepSpec]:
    """Families x methods x recomputation x loss x accumulation x optimizer x precision."""
    llama, qwen2, bert = (
        LlamaConfig(**DECODER),
        Qwen2Config(**DECODER, tie_word_embeddings=True),
        BertConfig(**ENCODER),
    )
    gpt2 = GPT2Config(vocab_size=4096, n_embd=256, n_layer=8, n_head=4, n_positions=256)
    classify: dict[str, Any] = {"method": "classify", "options_json": '{"labels": 2}'}
    nf4: dict[str, Any] = {"quantize": "nf4", "weights": "bf16", "adapter": Lora(16)}
    return {
        "llama, full, fp32, chunked, fused": _spec(llama),
        "llama, full, fp32, whole logits, recomputed": _spec(llama, loss="model", recompute=True),
        "llama, full, bf16 autocast, chunked, no accumulation": _spec(
            llama, autocast="bf16", accumulates=False
        ),
        "llama, full, pure bf16, whole logits, foreach": _spec(
            llama, weights="bf16", loss="model", optimizer="foreach"
        ),
        "llama, wide, T 512, full, bf16 autocast, recomputed": _spec(
            LlamaConfig(**DECODER | SHORT | {"hidden_size": 512, "intermediate_size": 1376}),
            sequence_length=512,
            autocast="bf16",
            recompute=True,
        ),
        "llama, LoRA, fp32, chunked": _spec(llama, adapter=Lora(8)),
        "llama, LoRA q+v, pure bf16, whole logits, recomputed": _spec(
            llama, adapter=Lora(8, "q_proj,v_proj"), weights="bf16", loss="model", recompute=True
        ),
        "llama, QLoRA, bf16, whole logits": _spec(llama, **nf4, loss="model"),
        "llama, QLoRA, fp32 norms, bf16 autocast, recomputed": _spec(
            llama, **nf4, upcast=True, autocast="bf16", recompute=True
        ),
        "llama, DoRA, bf16 autocast": _spec(llama, adapter=Lora(8, dora=True), autocast="bf16"),
        "llama, full, weights in bf16": _spec(
            llama, autocast="bf16", weights="bf16", optimizer="rounded"
        ),
        "llama, full, weights in bf16, states in 8 bits, recomputed": _spec(
            llama, autocast="bf16", weights="bf16", optimizer="rounded_8bit", recompute=True
        ),
        "llama, full, bf16 autocast, recomputed, offloaded": _spec(
            llama, autocast="bf16", recompute=True, offload=True
        ),
        "llama, LoRA, bf16 autocast, recomputed, offloaded": _spec(
            llama,
            adapter=Lora(8),
            weights="bf16",
            autocast="bf16",
            recompute=True,
            offload=True,
        ),
        "llama, full, bf16 autocast, recomputed selectively": _spec(
            llama, autocast="bf16", recompute="selective"
        ),
        "llama, LoRA, bf16 autocast, recomputed selectively": _spec(
            llama, adapter=Lora(8), weights="bf16", autocast="bf16", recompute="selective"
        ),
        "llama, QLoRA, bf16, recomputed selectively": _spec(llama, **nf4, recompute="selective"),
        "gpt2, full, fp32, chunked, dropout, recomputed selectively": _spec(
            gpt2, recompute="selective"
        ),
        "bert, classification, full, fp32, recomputed selectively": _spec(
            bert, **classify, recompute="selective"
        ),
        "gpt2, full, fp32, chunked, dropout": _spec(gpt2),
        "gpt2, full, bf16 autocast, whole logits, for-loop": _spec(
            gpt2, autocast="bf16", loss="model", optimizer="for_loop"
        ),
        "gpt2, LoRA with dropout, fp32": _spec(gpt2, adapter=Lora(8, "c_attn", dropout=0.1)),
        "qwen2, full, fp32, foreach, tied, no accumulation": _spec(
            qwen2, optimizer="foreach", accumulates=False
        ),
        "qwen2, QLoRA, bf16 autocast, chunked": _spec(qwen2, **nf4, autocast="bf16"),
        "qwen3, full, bf16 autocast, chunked": _spec(
            Qwen3Config(**DECODER, head_dim=64, tie_word_embeddings=True), autocast="bf16"
        ),
        "gemma2, full, fp32, eager attention, soft-capped": _spec(
            Gemma2Config(**DECODER, head_dim=64), attention="eager", loss="model"
        ),
        "gemma3, full, pure bf16, chunked": _spec(
            Gemma3TextConfig(**DECODER, head_dim=64), weights="bf16"
        ),
        "mixtral, full, pure bf16, chunked": _spec(
            MixtralConfig(**DECODER | SHORT, num_local_experts=4, sliding_window=None),
            weights="bf16",
        ),
        "bert, classification, full, fp32": _spec(bert, **classify),
        "llama, full, pure bf16, whole logits, padded": _spec(
            llama, weights="bf16", loss="model", padded=True
        ),
        "bert, classification, full, fp32, padded": _spec(bert, **classify, padded=True),
        "bert, masked language model, full, fp32, unclipped": _spec(
            bert, method="mlm", options_json='{"masked_share": 0.15}', loss="model", clips=False
        ),
        "roberta, classification, full, bf16 autocast": _spec(
            RobertaConfig(**ENCODER), **classify, autocast="bf16"
        ),
        "roberta, classification, LoRA, fp32, recomputed": _spec(
            RobertaConfig(**ENCODER), **classify, adapter=Lora(8, "query,value"), recompute=True
        ),
    }


def rewarded() -> Mapping[str, StepSpec]:
    """Updates on answers with rewards: losses x adapters x what is compared with."""
    llama = LlamaConfig(**DECODER)
    qwen2 = Qwen2Config(**DECODER, tie_word_embeddings=True)

    def spec(config: PretrainedConfig, old: bool = False, **changes: Any) -> StepSpec:
        told = {"temperature": 1.0, "max_new_tokens": 96, "weight_cap": None} | {
            key: changes.pop(key) for key in ("loss", "kl", "weight_cap") if key in changes
        }
        rules = {"rewards": {**told, "old": old}}
        options = {"method": "grpo", "options_json": json.dumps(rules, sort_keys=True)}
        return _spec(config, **options, **changes)

    nf4: dict[str, Any] = {"quantize": "nf4", "weights": "bf16", "adapter": Lora(16)}
    return {
        "llama, grpo, full, fp32": spec(llama),
        "llama, grpo, LoRA, fp32, several updates": spec(llama, old=True, adapter=Lora(8)),
        "llama, grpo with kl, LoRA, fp32": spec(llama, kl=0.1, adapter=Lora(8)),
        "llama, grpo, QLoRA, bf16": spec(llama, **nf4),
        "qwen2, gspo, LoRA, bf16 autocast, recomputed": spec(
            qwen2, loss="gspo", adapter=Lora(8), weights="bf16", autocast="bf16", recompute=True
        ),
        "qwen2, dapo, weighted, full, bf16 autocast": spec(
            qwen2, old=True, loss="dapo", weight_cap=2.0, autocast="bf16"
        ),
    }


FEW_WORDS = DECODER | SHORT | {"vocab_size": 256}
"""With a vocabulary this small the peak lies in a block, else in the loss."""


def compiled() -> Mapping[str, StepSpec]:
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


GROUPS = {
    "eager": ("memory_cpu", configurations),
    "rewards": ("memory_rewards", rewarded),
    "compiled": ("memory_compiled", compiled),
}
"""Name of the record, and the steps."""


def steps_live(trace: Trace) -> NDArray[np.int64]:
    """Bytes alive after each event of a trace's training steps; the evaluation batch that follows
    is not run here.
    """
    return trace.live_E()[: trace.marks.get("evaluation", len(trace.events_E))]


def compared(name: str, spec: StepSpec) -> dict[str, Any]:
    """Rehearse and measure one configuration."""
    config = config_of(spec)
    predicted = int(steps_live(record_training(spec, config, MICRO_BATCH)).max())
    try:
        from_small = int(steps_live(StoredTraces(spec, None).at(MICRO_BATCH)).max())
        told = "equal" if from_small == predicted else f"off by {from_small - predicted:+,} bytes"
    except Irregular as reason:
        told = f"refused: {reason}"
    steps = measure_steps(real_model(spec, config), spec, MICRO_BATCH)
    measured = int(steps.live_E().max())
    return {
        "configuration": name,
        "predicted_bytes": predicted,
        "measured_bytes": measured,
        "error_percent": round(100 * (predicted / measured - 1), 5),
        "measured_phase": steps.phases_E[int(steps.live_E().argmax())],
        "from_small_traces": told,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("group", nargs="?", choices=GROUPS, default="eager")
    parser.add_argument("--only", default="", help="configurations whose name holds this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    record, steps_of = GROUPS[options.group]
    rows = []
    for name, spec in steps_of().items():
        if options.only in name:
            rows.append(compared(name, spec))
            print(json.dumps(rows[-1]), flush=True)
    errors = [abs(row["error_percent"]) for row in rows]
    print(f"{len(rows)}: median error {np.median(errors):.4f} %, worst {max(errors):.4f} %")
    if not options.only:
        print(write_record(record, {"micro_batch": MICRO_BATCH, "configurations": rows}))
    if max(errors) > 100 * TOLERANCE:
        sys.exit(f"a peak is off by more than {100 * TOLERANCE} %")


if __name__ == "__main__":
    main()
