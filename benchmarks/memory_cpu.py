"""Peak memory of real training steps on this CPU beside the planner's prediction, to the byte.

    python benchmarks/memory_cpu.py [--only WORDS] [--rewards]

`--rewards` takes updates on rewarded answers instead, with a record of their own.

Rules: prediction and measurement share the step's code and nothing else: one runs on fake tensors,
the other on real weights under torch's profiler, whose allocation events are summed. Both count
bytes as asked for. The prediction is made twice, by tracing the model itself and from small traces
as the planner does; those may refuse, and the planner then traces the model itself. One thread:
kernels take scratch memory for each. Fails where a peak is off by more than `TOLERANCE`. Where one
is off by more than `NAMED_FROM`, what only one side has alive at the peak is told by operator.

Not seen by the profiler, and so by neither side: what oneDNN and the C library take without torch's
allocator.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
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
from measured_steps import MeasuredSteps, measure_steps
from record import write_record

TOLERANCE, NAMED_FROM = 0.002, 0.0002
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


@dataclass(frozen=True)
class Result:
    """One configuration, both sides, bytes."""

    name: str
    trace: Trace
    measured: MeasuredSteps
    from_small: int | str

    @property
    def predicted_bytes(self) -> int:
        return int(steps_live(self.trace).max())

    @property
    def measured_bytes(self) -> int:
        return int(self.measured.live_E().max())

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1

    def phases(self) -> tuple[str, str]:
        """Phase of the peak: predicted, measured."""
        peak = int(steps_live(self.trace).argmax())
        return [name for name, first in self.trace.marks.items() if first <= peak][
            -1
        ], self.measured.phases_E[int(self.measured.live_E().argmax())]

    def phase_errors(self) -> dict[str, float]:
        """Relative error of the highest point of each phase."""
        live_E, starts = self.trace.live_E(), [*self.trace.marks.values(), len(self.trace.events_E)]
        tops = {
            name: int(live_E[start:end].max())
            for name, start, end in zip(self.trace.marks, starts, starts[1:], strict=False)
            if end > start
        }
        return {
            name: tops[name] / top - 1
            for name, top in self.measured.peaks().items()
            if name in tops
        }

    def only_one_side(self, count: int = 5) -> list[str]:
        """What is alive at the peak on one side only, largest first."""
        predicted, measured = Counter[int](), Counter[int]()
        places: dict[int, str] = {}
        before = self.trace.events_E[: next(iter(self.trace.marks.values()))] - 1
        peak = int(steps_live(self.trace).argmax())
        for storage in np.setdiff1d(self.trace.alive_at(peak), before):
            predicted[int(self.trace.sizes_S[storage])] += 1
            places.setdefault(
                int(self.trace.sizes_S[storage]), self.trace.places[self.trace.places_S[storage]]
            )
        operators: dict[int, str] = {}
        for num_bytes, names in self.measured.alive_at(int(self.measured.live_E().argmax())):
            measured[num_bytes] += 1
            operators.setdefault(num_bytes, names or "outside of operators")
        told = [
            (num_bytes * (predicted[num_bytes] - measured[num_bytes]), num_bytes)
            for num_bytes in {*predicted, *measured}
        ]
        return [
            f"{excess:+,} bytes predicted beside measured, in tensors of {num_bytes:,}"
            f" ({(places if excess > 0 else operators)[num_bytes]})"
            for excess, num_bytes in sorted(told, key=lambda row: -abs(row[0]))[:count]
            if excess
        ]


def steps_live(trace: Trace) -> NDArray[np.int64]:
    """Bytes alive after each event of a trace's training steps; the evaluation batch that follows
    is not run here.
    """
    return trace.live_E()[: trace.marks.get("evaluation", len(trace.events_E))]


def run(name: str, spec: StepSpec) -> Result:
    """Rehearse and measure one configuration."""
    config = config_of(spec)
    trace = record_training(spec, config, MICRO_BATCH)
    try:
        from_small: int | str = int(steps_live(StoredTraces(spec, None).at(MICRO_BATCH)).max())
    except Irregular as reason:
        from_small = str(reason)
    return Result(
        name, trace, measure_steps(real_model(spec, config), spec, MICRO_BATCH), from_small
    )


def _told(result: Result) -> str:
    if isinstance(result.from_small, str):
        return f"refused: {result.from_small}"
    excess_bytes = result.from_small - result.predicted_bytes
    return f"off by {excess_bytes:+,} bytes" if excess_bytes else "equal"


def _row(result: Result) -> dict[str, Any]:
    predicted_phase, measured_phase = result.phases()
    worst = max(result.phase_errors().items(), key=lambda item: abs(item[1]))
    return {
        "configuration": result.name,
        "predicted_bytes": result.predicted_bytes,
        "measured_bytes": result.measured_bytes,
        "error_percent": round(100 * result.error, 5),
        "predicted_phase": predicted_phase,
        "measured_phase": measured_phase,
        "from_small_traces": _told(result),
        "worst_phase": worst[0],
        "worst_phase_error_percent": round(100 * worst[1], 4),
        "named": result.only_one_side() if abs(result.error) > NAMED_FROM else [],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="configurations whose name holds this")
    parser.add_argument("--rewards", action="store_true", help="updates on rewarded answers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    rows = []
    started_s = time.perf_counter()
    for name, spec in (rewarded() if options.rewards else configurations()).items():
        if options.only in name:
            rows.append(_row(run(name, spec)))
            _print(rows[-1])
    errors = [abs(row["error_percent"]) for row in rows]
    print(
        f"{len(rows)} configurations in {time.perf_counter() - started_s:.0f} s: median error"
        f" {np.median(errors):.4f} %, worst {max(errors):.4f} %, to the byte"
        f" {sum(not error for error in errors)}; small traces: "
        + ", ".join(
            f"{count} {word}"
            for word, count in Counter(
                row["from_small_traces"].split()[0].rstrip(":") for row in rows
            ).items()
        )
    )
    if not options.only:
        kept = "memory_rewards" if options.rewards else "memory_cpu"
        write_record(kept, {"micro_batch": MICRO_BATCH, "configurations": rows})
    if max(errors) > 100 * TOLERANCE:
        sys.exit(f"a peak is off by more than {100 * TOLERANCE} %")


def _print(row: Mapping[str, Any]) -> None:
    print(
        f"{row['configuration']:56s} {row['predicted_bytes']:>12,} {row['measured_bytes']:>12,}"
        f" {row['error_percent']:+.4f} %  {row['predicted_phase']} / {row['measured_phase']}  small"
        f" traces: {row['from_small_traces']}  worst phase {row['worst_phase']}"
        f" {row['worst_phase_error_percent']:+.3f} %",
        flush=True,
    )
    for line in row["named"]:
        print(f"    {line}")


if __name__ == "__main__":
    main()
