"""Timed rows of GPT-2 and BERT: one script on twenty rented GPUs, nanoGPT, llm.c, NVIDIA's BERT,
transformers' BERT; and speedruns, which are left out.
"""

import re
from collections.abc import Mapping

from brimful.model import catalog
from left_out import LeftOut
from memory_rows import RENTED
from time_parallel import gpt
from time_stack import Spread, TimedStack, shape_of, timed

GPT2 = {
    "124M": (768, 12, 12),
    "125M": (768, 12, 12),
    "350M": (1024, 24, 16),
    "774M": (1280, 36, 20),
    "1558M": (1600, 48, 25),
}
PADDED_VOCABULARY = 50_304
FUSED_ADAMW_BYTES = 40
"""28 by the update, 12 by clipping, in fp32."""
LAMB_BYTES = 60


def rented_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """GPT-2 124M under torch.compile with bf16 autocast over fp32 weights and fused AdamW, one
    script on every GPU.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    if row["gpu"] not in RENTED or not row["model"].startswith("GPT-2 124M (50304 vocab"):
        return LeftOut(f"{row['model']!r} on {row['gpu']!r} is not known")
    if "looks throttled" in row["notes"] and row["gpu"] == "H100 NVL":
        return LeftOut("throttled, says the source")
    return timed(
        row,
        configuration="gpt2-124m compiled",
        family="compiled",
        shape=gpt(*GPT2["124M"], PADDED_VOCABULARY),
        device=RENTED[row["gpu"]],
        tokens_per_s=float(row["tokens_per_s"]),
        weight_bytes=4,
        casts=True,
        hidden_bytes=4,
        optimizer_bytes=FUSED_ADAMW_BYTES,
    )


def nanogpt_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """nanoGPT's README and issues: 12 x 1024 per micro-batch, 40 micro-batches over all GPUs.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    if row["model"] != "GPT-2 124M":
        return LeftOut(f"model {row['model']!r}: a run that its owner calls unhealthy")
    if row["source_path"].startswith("README"):
        return LeftOut(
            "milliseconds per iteration without the sequences of an iteration (the 40 micro-batches"
            " of its default would exceed the peak)"
        )
    device = {"A100": "NVIDIA A100-SXM4-40GB", "RTX 4090": "NVIDIA GeForce RTX 4090"}[row["gpu"]]
    compiled = row["compile"] == "yes"
    return timed(
        row,
        configuration="gpt2-124m",
        family="compiled" if compiled else "eager",
        shape=gpt(*GPT2["124M"], PADDED_VOCABULARY),
        device=device,
        weight_bytes=4,
        casts=True,
        hidden_bytes=4,
        optimizer_bytes=FUSED_ADAMW_BYTES,
        spread=Spread(data=int(row["num_gpus"])),
    )


def llmc_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """llm.c: CUDA without a framework, bf16, cuDNN's attention; times are those in the comments of
    its scripts.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    device = {"A100 80GB SXM": "NVIDIA A100-SXM4-80GB", "H100 80GB": "NVIDIA H100 80GB HBM3"}[
        row["gpu"]
    ]
    tokens = re.search(r"tokens/step (\d+)", row["notes"])
    if tokens is None:
        return LeftOut("tokens per step are not in the row")
    micro_batch_tokens = int(row["micro_batch"]) * int(row["seq_len"]) * int(row["num_gpus"])
    return timed(
        row,
        configuration="llm.c",
        family="cuda c",
        shape=gpt(*GPT2[row["model"].split()[-1]], PADDED_VOCABULARY),
        device=device,
        accumulation=int(tokens[1]) // micro_batch_tokens,
        kernels=frozenset({"norm", "loss"}),
        optimizer_bytes=FUSED_ADAMW_BYTES,
        spread=Spread(data=int(row["num_gpus"]), sharded="gradients"),
    )


BERT_DEVICES = {
    "A100 80GB SXM": "NVIDIA A100-SXM4-80GB",
    "V100-SXM2-32GB": "Tesla V100-SXM2-32GB",
    "Tesla V100-SXM2-16GB": "Tesla V100-SXM2-16GB",
}
BERT_PRECISIONS = {"tf32": "tf32", "fp16 AMP": "fp16", "fp32": "fp32"}


def bert_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """BERT-large: NVIDIA's (TorchScript, LAMB or Adam; its step is a micro-batch) and transformers'
    (eager).

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    found = catalog.find("google-bert/bert-large-uncased")
    if found is None or "bert-large" not in row["model"].lower():
        return LeftOut(f"model {row['model']!r} is not known")
    fused = "NVIDIA" in row["source_repo"]
    if fused and row["seq_len"] == "512":
        return LeftOut(
            "more tokens per second than the same model at a quarter of the length: how many"
            " positions are computed is not known"
        )
    products = BERT_PRECISIONS[row["precision"]]
    return timed(
        row,
        configuration=f"bert-large {row['precision']}",
        family="jit" if fused else "eager",
        shape=shape_of(found.config),
        device=BERT_DEVICES[row["gpu"]],
        tokens_per_s=float(row["tokens_per_s"]),
        products=products,
        weight_bytes=4,
        casts=products == "fp16",
        hidden_bytes=2 if products == "fp16" else 4,
        attention="scores",
        score_passes=6.5 if fused else 10.0,
        optimizer_bytes=LAMB_BYTES,
        spread=Spread(data=int(row["num_gpus"])),
    )


def speedrun_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """modded-nanogpt: of its first records, which train GPT-2 124M itself with Muon, the tokens per
    step are known: 512 sequences of 1,024.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    if not re.match(r"GPT-2 124M", row["model"]) or (row["seq_len"], row["micro_batch"]) != (
        "1024",
        "64",
    ):
        return LeftOut(
            "a model of its own, changed from record to record; neither its shape nor its tokens"
            " per step are in the row"
        )
    if row["optimizer"] not in ("AdamW", "Muon + Adam(W)"):
        return LeftOut(f"optimizer {row['optimizer']!r} has no closed form here")
    return timed(
        row,
        configuration="speedrun of 2024",
        family="cuda c" if "llm.c" in row["model"] else "compiled",
        shape=gpt(*(768, 12, 6), PADDED_VOCABULARY),
        device="NVIDIA H100 80GB HBM3",
        micro_batch=64,
        positions=1024,
        accumulation=1,
        weight_bytes=4,
        casts=True,
        hidden_bytes=4,
        optimizer_bytes=FUSED_ADAMW_BYTES,
        spread=Spread(data=8),
    )


READERS = {
    "gpt2-124m on 20 rented GPUs (one public script)": rented_stack,
    "karpathy/nanoGPT": nanogpt_stack,
    "karpathy/llm.c": llmc_stack,
    "karpathy/nanochat": lambda row: LeftOut(
        "a model of its own (value embeddings, sliding windows); its shape is not in the row"
    ),
    "NVIDIA/DeepLearningExamples": bert_stack,
    "huggingface/transformers": bert_stack,
    "KellerJordan/modded-nanogpt": speedrun_stack,
}
