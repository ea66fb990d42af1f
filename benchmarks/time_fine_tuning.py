"""Timed rows of fms-acceleration, peft's method comparison and fsdp_qlora: fine-tuning with
transformers' eager modules.

The stacks are those of `memory_fms` and `memory_peft`; what is added here is what time needs:
- fms-acceleration times 20 to 100 steps of Hugging Face's Trainer. Packed rows have 4,096 positions
  (2,048 for santacoder). Rows of refs_orca take whole epochs of 2,000 math problems: 289 tokens in
  the mean; padded to the longest of a micro-batch the mean grows by 78 with every doubling of the
  micro-batch, as tokens per second times seconds per step say in all of these rows.
- peft counts 840 real tokens per micro-batch of 4; padded they are 896 positions
  (`memory_peft.MEAN_PADDED_TOKENS`).
- FSDP with adapters wraps every adapter matrix by itself (peft's fsdp_auto_wrap_policy), so that a
  block has many small units to gather.
"""

import math
import re
from collections.abc import Mapping

import memory_rows
from brimful.model import catalog
from left_out import LeftOut
from memory_fms import GPTQ_BASES, KERNELS
from memory_peft import MEAN_PADDED_TOKENS
from memory_stack import Stack
from memory_truth import spec_of
from time_stack import Adapter, Spread, TimedStack, shape_of, timed

FOREACH_16BIT_BYTES = 46
"""Twenty passes over two bytes by the update, three by clipping."""
ORCA_TOKENS = 289
ORCA_PADDING_PER_DOUBLING = 78
PEFT_TOKENS_PER_SAMPLE = 210


def fms_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """A row of fms-acceleration's tables.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    found = re.search(r"framework_config=([^;]+)", row["notes"])
    name = found[1].strip() if found else ""
    model = GPTQ_BASES.get(row["model"], row["model"])
    switches = (
        {"padding_free": True} if name == "aadp-padding-free-multipack" else KERNELS.get(name)
    )
    row_of_model = catalog.find(model)
    if "_moe" in row["source_path"] or name.startswith("moe-"):
        return LeftOut(
            "routed experts on alpaca without packing: lengths, versions and the experts' kernels"
            " are not published"
        )
    if switches is None or row_of_model is None:
        return LeftOut(f"framework {name!r} or model {model!r} is not known")
    if row["gpu"] != "NVIDIA A100-SXM4-80GB":
        return LeftOut(f"GPU {row['gpu']!r} is not known")
    foak, liger, amp = (
        bool(switches.get("foak")),
        bool(switches.get("liger")),
        "no AMP" not in row["precision"],
    )
    gpus = int(row["num_gpus"])
    orca = "refs_orca" in row["source_path"]
    joined = bool(switches.get("padding_free"))
    positions = 2048 if "bigcode" in model else 4096
    if orca:
        positions = round(
            ORCA_TOKENS
            + (0 if joined else ORCA_PADDING_PER_DOUBLING * math.log2(int(row["micro_batch"])))
        )
    elif row["seq_len"] != "4096":
        return LeftOut(f"length {row['seq_len']!r} is not known")
    bigcode = "bigcode" in model
    adapter = None
    if row["method"] != "full":
        targets = ("q", "k", "v") if bigcode else tuple(row["lora_targets"].split("+"))
        adapter = Adapter(
            int(row["lora_rank"]),
            targets,
            fp32=not amp,
            dropout=True,
            fused=foak and "quantize" in switches and not bigcode,
        )
    kernels = {"loss"} if foak or liger else set()
    return timed(
        row,
        configuration=(
            f"{'orca ' if orca else ''}{name} {row['method']}{' FSDP' if gpus > 1 else ''}"
        ),
        family="eager",
        shape=shape_of(row_of_model.config),
        device=row["gpu"],
        positions=positions,
        tokens_per_s=float(row["tokens_per_s"]),
        products="fp16" if row["precision"].startswith("float16") else "bf16",
        hidden_bytes=4 if switches.get("fp32_norms") and gpus == 1 else 2,
        adapter=adapter,
        quantize={"nf4_double": "nf4", "gptq4": "gptq4"}.get(str(switches.get("quantize")), "no"),
        kernels=frozenset(kernels | ({"norm", "rope"} if foak and not bigcode else set())),
        recompute=1.0,
        optimizer_bytes=FOREACH_16BIT_BYTES,
        spread=Spread(data=gpus, sharded="full" if gpus > 1 else "no"),
    )


VIRTUAL_TOKENS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING")


def peft_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """A row of peft's MetaMathQA comparison: Llama-3.2-3B on an L40S, peft's own loop. Its adapters
    are as many as peft has, so the operators are those that the rehearsal records; methods with
    virtual tokens run the frozen model on longer sequences.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    if row["micro_batch"] != "4" or row["seq_len"] != "768" or row["grad_accum"] != "1":
        return LeftOut(
            "another batch or length: the mean length of its micro-batches is not published"
        )
    found, declared = catalog.find(row["model"]), memory_rows.stack_of(row)
    if not isinstance(declared, Stack) or found is None:
        words = declared.reason if not isinstance(declared, Stack) else "model"
        return LeftOut(
            "an adapter whose settings are not in the row or not known" if ": " in words else words
        )
    adapter = declared.adapter
    virtual = 0
    if adapter is not None and adapter.peft_type in VIRTUAL_TOKENS:
        virtual = int(adapter.settings["num_virtual_tokens"])
    return timed(
        row,
        configuration=row["method"],
        family="eager",
        shape=shape_of(found.config),
        device=declared.device,
        micro_batch=4,
        positions=MEAN_PADDED_TOKENS
        + (0 if adapter is None or adapter.peft_type == "PREFIX_TUNING" else virtual),
        accumulation=1,
        measured_s=4 * PEFT_TOKENS_PER_SAMPLE / float(row["tokens_per_s"]),
        method="lora" if row["method"] == "lora" else row["method"].split(":")[0],
        adapter=None if adapter is None else Adapter(0, ()),
        recompute=1.0 if row["activation_checkpointing"] == "True" else 0.0,
        optimizer_bytes=FOREACH_16BIT_BYTES,
        spec=None if virtual else spec_of(declared, MEAN_PADDED_TOKENS),
    )


FSDP_MODELS = {
    "Llama-2 7B": "meta-llama/Llama-2-7b-hf",
    "Llama-2 70B": "NousResearch/Llama-2-70b-hf",
    "Yi 34B": "01-ai/Yi-34B",
    "Mistral 7B v0.2": "mistralai/Mistral-7B-v0.1",
}
FSDP_DEVICES = {
    "RTX 3090": "NVIDIA GeForce RTX 3090",
    "RTX 4090": "NVIDIA GeForce RTX 4090",
    "RTX A5000 24GB": "NVIDIA RTX A5000",
    "RTX 6000 Ada 48GB": "NVIDIA RTX 6000 Ada Generation",
    "A100 40GB SXM": "NVIDIA A100-SXM4-40GB",
    "H100 80GB SXM": "NVIDIA H100 80GB HBM3",
}
FSDP_SAMPLES = 1024


def fsdp_qlora_stack(row: Mapping[str, str]) -> TimedStack | LeftOut:
    """A row of fsdp_qlora's benchmark of March 2024: 1,024 dummy sequences, adapters of rank 64 on
    all linear layers, reentrant checkpointing.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    if "offload" in row["notes"] and "no offload" not in row["notes"]:
        return LeftOut(
            "weights wait in host memory: the host's links decide the time and are not stated"
        )
    found = catalog.find(FSDP_MODELS.get(row["model"], row["model"]))
    device = FSDP_DEVICES[row["gpu"]]
    if found is None:
        return LeftOut(f"model {row['model']!r} is not known")
    config = {"model_type": "llama", **found.config}
    gpus = int(row["num_gpus"])
    total_s = float(row["total_time"].split()[0])
    sharded = "DDP" not in row["notes"]
    return timed(
        row,
        configuration=f"{row['method']} {'FSDP' if sharded else 'DDP'}",
        family="eager",
        shape=shape_of(config),
        device=device,
        accumulation=1,
        measured_s=total_s * int(row["micro_batch"]) * gpus / FSDP_SAMPLES,
        adapter=Adapter(64, ("q", "k", "v", "o", "up", "gate", "down")),
        quantize="nf4" if row["method"] == "qlora" else "no",
        recompute=1.0,
        optimizer_bytes=FOREACH_16BIT_BYTES,
        spread=Spread(
            data=gpus,
            sharded="full" if sharded else "no",
            link="nvlink" if "SXM" in row["gpu"] else "pcie",
        ),
    )


READERS = {
    "foundation-model-stack/fms-acceleration": fms_stack,
    "huggingface/peft": peft_stack,
    "AnswerDotAI/fsdp_qlora": fsdp_qlora_stack,
    "unslothai/unsloth": lambda row: LeftOut(
        "tokens per sample are not published (1,024 is only the limit)"
    ),
}
