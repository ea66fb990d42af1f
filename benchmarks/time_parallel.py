"""Timed rows of pre-training on several GPUs: llm-foundry, vTrain (Megatron-DeepSpeed), NeMo
(Transformer Engine), torchtitan.

What is known, and from where:
- llm-foundry, scripts/train/benchmarking: MPT models, FlashAttention-2, fused cross-entropy, FSDP
  with one unit per block; widths from scripts/train/yamls/pretrain and checked against the
  published number of parameters. Nodes of eight GPUs. Its models compute two metrics of every
  micro-batch from the logits by default, LanguageCrossEntropy and LanguagePerplexity
  (ComposerMPTCausalLM), and Composer gathers a block's weights for the backward pass only after the
  gradients of the block before are computed (backward_prefetch BACKWARD_POST, its default; torch's
  documentation of FSDP), so nothing hides that gather.
- vTrain, data/ground_truth_*.csv: GPT of h, L and a with 51,200 tokens, Megatron-DeepSpeed with
  full recomputation, fused softmax, no flash attention.
- NeMo 24.07, performance_summary.md: its recipes overlap tensor-parallel communication and use
  sequence parallelism. FP8 products by Transformer Engine, FlashAttention by cuDNN; no
  recomputation is stated, so none. GPT3, Nemotron: public model cards (widths, heads); Llama from
  the catalog.
- torchtitan, docs and benchmarks: FSDP2, Llama 3; selective recomputation runs every second product
  again; local batches under pipeline parallelism go in one by one.
"""

import re
from collections.abc import Mapping
from typing import Any

from brimful.model import catalog
from left_out import LeftOut
from time_stack import Adapter, Shape, Spread, TimedStack, shape_of, timed

MPT = {
    "MPT-125m": (768, 12, 12),
    "MPT-350m": (1024, 24, 16),
    "MPT-760m": (1536, 24, 12),
    "MPT-1b": (2048, 24, 16),
    "MPT-3b": (2560, 32, 20),
    "MPT-7b": (4096, 32, 32),
    "MPT-13b": (5120, 40, 40),
    "MPT-30b": (7168, 48, 56),
    "MPT-70b": (8192, 80, 64),
}
MPT_VOCABULARY = 50_368
FOUNDRY_DEVICES = {
    "H100-80GB SXM": "NVIDIA H100 80GB HBM3",
    "A100-80GB": "NVIDIA A100-SXM4-80GB",
    "A100-40GB": "NVIDIA A100-SXM4-40GB",
}
FOUNDRY_PRECISIONS = {"amp_bf16": "bf16", "bf16": "bf16", "amp_fp8": "fp8"}
PLAIN_ADAMW_BYTES = 72
"""An update tensor by tensor: eighteen passes over four bytes."""
MEGATRON_ADAM_BYTES = 38
"""A fused update of fp32 masters from 16-bit gradients with clipping, and new 16-bit weights."""


def gpt(hidden: int, layers: int, heads: int, vocabulary: int) -> Shape:
    """GPT-2's block at any size."""
    return Shape(hidden, layers, heads, heads, hidden // heads, 4 * hidden, False, vocabulary)


def foundry_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """A row of llm-foundry's table.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    shape = gpt(*MPT[row["model"]], MPT_VOCABULARY)
    weights = shape.weights() + int(row["seq_len"]) * shape.hidden
    if abs(weights / float(row["params"]) - 1) > 0.01:
        return LeftOut(f"{row['model']} has {row['params']} parameters, not {weights}")
    if "CPU act offload False" not in row["notes"]:
        return LeftOut("activations wait in host memory")
    mode = re.search(r"FSDP (\w+) (\w+)", row["notes"])
    if mode is None or mode[1] not in ("FULL_SHARD", "SHARD_GRAD_OP"):
        return LeftOut("a sharding that is not known")
    return timed(
        row,
        configuration=(
            "FSDP"
            f" {row['precision']}{' recomputed' if row['activation_checkpointing'] == 'True' else ''}"
        ),
        family="foundry",
        shape=shape,
        device=FOUNDRY_DEVICES[row["gpu"]],
        tokens_per_s=float(row["tokens_per_s"]),
        attention="flash1" if "A100" in row["gpu"] else "flash2",
        products=FOUNDRY_PRECISIONS[row["precision"]],
        kernels=frozenset({"norm", "loss"}),
        recompute=1.0 if row["activation_checkpointing"] == "True" else 0.0,
        optimizer_bytes=PLAIN_ADAMW_BYTES,
        metrics=2,
        spread=Spread(
            data=int(row["num_gpus"]), sharded="full" if mode[1] == "FULL_SHARD" else "gradients"
        ),
    )


def vtrain_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """A row of vTrain's ground truth.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    sizes = re.fullmatch(r"GPT h=(\d+) L=(\d+) a=(\d+)", row["model"])
    ways = re.search(r"TP(\d+) DP(\d+) PP(\d+)", row["notes"])
    if sizes is None or ways is None or "A100" not in row["gpu"]:
        return LeftOut("sizes, GPU or parallelism are not in the row")
    tensor, data, pipeline = (int(way) for way in ways.groups())
    return timed(
        row,
        configuration=(
            f"TP{min(tensor, 2) if tensor < 2 else '>1'} PP{'1' if pipeline == 1 else '>1'}"
        ),
        family="megatron",
        shape=gpt(int(sizes[1]), int(sizes[2]), int(sizes[3]), 51_200),
        device="NVIDIA A100-SXM4-80GB",
        products="fp16",
        kernels=frozenset({"norm", "loss", "softmax"}),
        recompute=1.0 if row["activation_checkpointing"].startswith("yes") else 0.0,
        attention="scores",
        score_passes=6.0,
        optimizer_bytes=MEGATRON_ADAM_BYTES,
        spread=Spread(data=data, tensor=tensor, pipeline=pipeline),
    )


NEMO_SHAPES: Mapping[str, Shape | str] = {
    "GPT3-5B": gpt(4096, 24, 32, 51_200),
    "GPT3-20B": gpt(6144, 44, 48, 51_200),
    "GPT3-175B": gpt(12_288, 96, 96, 51_200),
    "LLAMA2-7B": "meta-llama/Llama-2-7b-hf",
    "LLAMA2-13B": "meta-llama/Llama-2-13b-hf",
    "LLAMA2-70B": "NousResearch/Llama-2-70b-hf",
    "LLAMA3-8B": "meta-llama/Meta-Llama-3-8B",
    "LLAMA3-70B": "meta-llama/Meta-Llama-3-70B",
    "Nemotron-8B": gpt(4096, 32, 32, 256_000),
    "Nemotron-22B": gpt(6144, 40, 48, 256_000),
    "Nemotron-340B": Shape(18_432, 96, 96, 8, 192, 73_728, False, 256_000, rope=True, tied=False),
}


def nemo_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """A row of NeMo's performance summary.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    shape = NEMO_SHAPES[row["model"]]
    ways = re.search(r"TP(\d+) PP(\d+) CP(\d+) VP(\d*)", row["notes"])
    if ways is None or not row["gpu"].startswith("H100 80GB SXM") or row["precision"] != "fp8":
        return LeftOut("GPU, parallelism or precision are not known")
    tensor, pipeline, context, interleaved = (int(way or 1) for way in ways.groups())
    gpus = int(row["num_gpus"])
    data = gpus // (tensor * pipeline * context)
    adapter = None
    if row["method"] == "lora":
        adapter = Adapter(32, ("q", "k", "v"))
    return timed(
        row,
        configuration=f"FP8 {row['method']}",
        family="transformer engine",
        shape=_published(shape) if isinstance(shape, str) else shape,
        device="NVIDIA H100 80GB HBM3",
        tokens_per_s=float(row["tokens_per_s"]) * gpus,
        products="fp8",
        adapter=adapter,
        kernels=frozenset({"norm", "rope", "mlp", "loss"}),
        attention="flash3",
        optimizer_bytes=MEGATRON_ADAM_BYTES,
        spread=Spread(
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            interleaved=interleaved,
            context=context,
            sharded="gradients",
            sequence=True,
            overlapped=True,
        ),
    )


def _published(name: str) -> Shape:
    found = catalog.find(name)
    if found is None:
        raise KeyError(name)
    return shape_of(found.config)


TITAN_MODELS = {
    "8B": "meta-llama/Llama-3.1-8B",
    "70B": "meta-llama/Llama-3.1-70B",
    "405B": "meta-llama/Llama-3.1-405B",
}
TITAN_DEVICES = {
    "H100 96GB HBM2e (2.4 TB/s, 500 W)": "NVIDIA H100 96GB HBM2e",
    "H100": "NVIDIA H100 96GB HBM2e",
    "H200 141GB SXM": "NVIDIA H200",
}
TITAN_SELECTIVE = 0.5


def torchtitan_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """A row of torchtitan's tables.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    if not row["micro_batch"].isdigit() or row["activation_checkpointing"].startswith("see"):
        return LeftOut("batch and recomputation are not in the row")
    if "rowwise" in row["precision"]:
        return LeftOut("row-wise scaled FP8 of 2025, whose kernels were slower than 16-bit ones")
    shape = _published(TITAN_MODELS[row["model"].split()[-1]])
    gpus = int(row["num_gpus"])
    ways: dict[str, Any] = {
        name: int(found[1]) if (found := re.search(rf"\b{name}(\d+)", row["notes"])) else 1
        for name in ("TP", "PP", "CP")
    }
    data = gpus // (ways["TP"] * ways["PP"] * ways["CP"])
    micro_batch, accumulation = int(row["micro_batch"]), int(row["grad_accum"] or 1)
    if ways["PP"] > 1:
        micro_batch, accumulation = 1, accumulation * micro_batch
    precision = "fp8" if row["precision"].startswith("float8") else "bf16"
    checkpointing = row["activation_checkpointing"]
    return timed(
        row,
        configuration=f"{precision} {'compiled' if row['compile'] == 'yes' else 'eager'}",
        family="torchtitan" if row["compile"] == "yes" else "eager",
        shape=shape,
        device=TITAN_DEVICES[row["gpu"]],
        micro_batch=micro_batch,
        accumulation=accumulation,
        tokens_per_s=float(row["tokens_per_s"]) * gpus,
        products=precision,
        recompute=(
            1.0
            if checkpointing == "full"
            else TITAN_SELECTIVE
            if checkpointing.startswith("selective")
            else 0.0
        ),
        kernels=frozenset({"norm"}),
        spread=Spread(
            data=data,
            tensor=ways["TP"],
            pipeline=ways["PP"],
            interleaved=2 if "Interleaved" in row["notes"] else 1,
            context=ways["CP"],
            sharded="full",
            sequence=True,
            overlapped="AsyncTP" in row["notes"],
        ),
    )


READERS = {
    "mosaicml/llm-foundry": foundry_stack,
    "VIA-Research/vTrain": vtrain_stack,
    "NVIDIA/NeMo": nemo_stack,
    "pytorch/torchtitan": torchtitan_stack,
}
