"""Rows of the smaller sources: one GPT-2 script on many rented GPUs, one BERT run of transformers'
documentation, and what is left out.
"""

import re
from collections.abc import Callable, Mapping

from brimful.base.units import GIB, MIB
from brimful.integrations.other_tools.stand_ins import LossChain
from left_out import LeftOut
from memory_stack import Stack

RENTED = {
    "RTX PRO 6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "H100 SXM": "NVIDIA H100 80GB HBM3",
    "H100 PCIe": "NVIDIA H100 PCIe",
    "H100 NVL": "NVIDIA H100 NVL",
    "H200": "NVIDIA H200",
    "H200 SXM": "NVIDIA H200",
    "H200 NVL": "NVIDIA H200 NVL",
    "B200": "NVIDIA B200",
    "L4": "NVIDIA L4",
    "L40": "NVIDIA L40",
    "L40S": "NVIDIA L40S",
    "RTX 3090": "NVIDIA GeForce RTX 3090",
    "RTX 4090": "NVIDIA GeForce RTX 4090",
    "RTX 5090": "NVIDIA GeForce RTX 5090",
    "RTX 2000 Ada": "NVIDIA RTX 2000 Ada Generation",
    "RTX 4000 Ada": "NVIDIA RTX 4000 Ada Generation",
    "RTX 6000 Ada": "NVIDIA RTX 6000 Ada Generation",
    "A100 PCIe": "NVIDIA A100 80GB PCIe",
    "A100 PCIe 80GB": "NVIDIA A100 80GB PCIe",
    "A100 SXM": "NVIDIA A100-SXM4-80GB",
    "A100 SXM 80GB": "NVIDIA A100-SXM4-80GB",
    "A30": "NVIDIA A30",
    "A40": "NVIDIA A40",
    "RTX A4000": "NVIDIA RTX A4000",
    "RTX A4500": "NVIDIA RTX A4500",
    "RTX A5000": "NVIDIA RTX A5000",
    "RTX A6000": "NVIDIA RTX A6000",
}


def gpt2_stack(row: Mapping[str, str]) -> Stack | LeftOut:
    """GPT-2 124M with 50,304 tokens under torch.compile: bf16 autocast over fp32 weights, fused
    AdamW, cross-entropy in autocast. The loop's `logits, loss = model(x, y)` holds the logits until
    the next forward pass returns.

    Its parameters are those of transformers' GPT-2 with this vocabulary: 124,475,904. The driver's
    figure holds the CUDA context.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    if row["gpu"] not in RENTED:
        return LeftOut(f"GPU {row['gpu']!r} is not in the catalog under a known name")
    if not row["model"].startswith("GPT-2 124M (50304 vocab"):
        return LeftOut(f"model {row['model']!r} is not known")
    if not (
        row["compile"] == "yes"
        and row["optimizer"] == "AdamW fused"
        and row["precision"].startswith("fp32 weights + bf16 autocast")
    ):
        return LeftOut(
            f"compile {row['compile']}, {row['optimizer']}, {row['precision']} is not known"
        )
    image = re.search(r"Pytorch ([\d.]+)", row["notes"])
    return Stack(
        configuration="gpt2-124m compiled",
        model="openai-community/gpt2",
        model_overrides={
            "vocab_size": 50_304,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "n_positions": 1024,
        },
        micro_batch=int(row["micro_batch"]),
        sequence_length=int(row["seq_len"]),
        device=RENTED[row["gpu"]],
        kind="driver",
        measured_gib=_driver_gib(row),
        loss=LossChain(upcast="none", shifted_copy=False),
        weights="fp32",
        autocast="bf16",
        optimizer="fused",
        attention="sdpa",
        accumulation=int(row["grad_accum"]),
        compile=True,
        keeps_outputs=True,
        torch_version=image[1] if image else None,
        notes="inductor fuses the cast of the logits into the loss; status at step 9",
    )


def bert_stack(row: Mapping[str, str]) -> Stack | LeftOut:
    """BERT-large with a two-class head by Hugging Face's Trainer: fp32, no checkpointing, dummy
    sequences of 512 (model_memory_anatomy.md).

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    if row["model"] != "google-bert/bert-large-uncased" or row["precision"] != "fp32":
        return LeftOut(f"model {row['model']!r} in {row['precision']} is not known")
    return Stack(
        configuration="bert-large anatomy",
        model=row["model"],
        task="sequence_classification",
        micro_batch=int(row["micro_batch"]),
        sequence_length=int(row["seq_len"]),
        device=row["gpu"],
        kind="driver",
        measured_gib=_driver_gib(row),
        loss=LossChain(upcast="none", shifted_copy=False),
        weights="fp32",
        optimizer="for_loop",
        attention="eager",
        accumulation=int(row["grad_accum"]),
        doubt=(
            "versions unknown (2022): a CUDA context of 1,343 MiB, and the optimizer was"
            " transformers' own loop"
        ),
    )


def _driver_gib(row: Mapping[str, str]) -> float | None:
    printed = re.match(r"(\d+) ?(MiB|MB)", row["memory_as_published"])
    if printed:
        return int(printed[1]) * MIB / GIB
    return float(row["peak_memory_gib"]) if row["peak_memory_gib"] else None


def _left_out(reason: str) -> Callable[[Mapping[str, str]], LeftOut]:
    return lambda row: LeftOut(reason)


def unsloth_stack(row: Mapping[str, str]) -> LeftOut:
    """Why rows of Unsloth's README cannot be predicted."""
    if row["memory_kind"].startswith("GRAM"):
        return LeftOut(
            "rounded to a whole GB of unstated meaning, lengths of the samples not stated"
        )
    if "capacity" in row["memory_kind"]:
        return LeftOut("a capacity (the longest context that fits), not a peak")
    return LeftOut(
        "the peak is that of the longest batch, whose length is not stated (2,048 is only the"
        " limit)"
    )


READERS: Mapping[str, Callable[[Mapping[str, str]], Stack | LeftOut]] = {
    "gpt2-124m on 20 rented GPUs (one public script)": gpt2_stack,
    "huggingface/transformers": bert_stack,
    "unslothai/unsloth": unsloth_stack,
    "KellerJordan/modded-nanogpt": _left_out(
        "an architecture of its own (value embeddings, skips, FP8 head), compiled, sharded Muon"
    ),
    "pytorch/torchtitan": _left_out("sharded over several GPUs"),
    "AnswerDotAI/fsdp_qlora": _left_out("sharded over several GPUs"),
}
