"""Rows of foundation-model-stack/fms-acceleration (scripts/benchmarks): Hugging Face's Trainer with
and without its plugins, on A100-80GB.

What is known, and from where:
- benchmark.py runs `tuning.sft_trainer` (trl's SFTTrainer) and reads Trainer's own memory metrics:
  the peak is the largest of allocation after a stage plus that stage's peak delta, which is torch's
  absolute allocated peak; the driver's figure is the maximum of nvidia-smi minus its first reading,
  taken once a second.
- defaults.yaml: gradient checkpointing (Trainer's default is reentrant), flash-attention 2, 20
  steps, weight decay; AdamW is Trainer's default adamw_torch, which is foreach on CUDA; gradients
  are clipped at 1.
- scenarios*.yaml: LoRA r 16, alpha 16, dropout 0.1 on q, k, v, o. peft keeps the adapters in fp32
  (static bytes: 12 per adapter weight).
- sample-configurations: "foak-fast-kernels" patches cross-entropy, RMSNorm and rotary embedding;
  the "-foak" configurations of quantised bases patch the LoRA functions of q, k, v and o as well;
  "-liger" uses a fused linear cross-entropy; "accelerated-peft-bnb" quantises to NF4 and leaves
  norms, embeddings and head in bf16; "baseline-peft-bnb" is trl's own way, which leaves norms in
  fp32: its static bytes are 532,480 above the accelerated ones on Mistral-7B, exactly 65 norms of
  4096 at 2 more bytes.
- GPT-BigCode has an own loss in 4.48: logits not upcast, shifted by a copy, cross-entropy in the
  dtype that autocast gives it (fp32 with, bf16 without). Only its cross-entropy is patched by
  "foak". Its LayerNorm answers in fp32 under autocast and bitsandbytes keeps that dtype, so its
  QLoRA rows hold fp32 hidden states; and it caches keys and values while it recomputes. Static
  bytes plus these terms give the peaks of its rows to 0.6 %.
- GPTQ groups were not read from the checkpoints; the allocation after training tells: Mistral and
  Llama-3 have groups of 128, Llama-2-70B and Mixtral none (33.64 GiB are measured for the 70B
  model, groups would make it 34.87).
- requirements*.txt beside the tables: the library versions; peft 0.12 or 0.13, bitsandbytes 0.43.3
  (dequantises one weight at a time).
- Several GPUs: accelerate.yaml asks for FSDP (torch's older wrapper) with FULL_SHARD, a unit for each
  block and BACKWARD_PRE. In 16-bit precision trained weights are fp32 (accelerate), what is gathered
  and reduced is 16-bit. 4-bit weights are stored in elements of the other weights' type, so norms are
  not in fp32. The plugins for quantised bases leave adapters out of FSDP: allocation after training
  on two and on four GPUs differs by exactly the parts of the other weights, and what is left is 8
  bytes for each adapter weight, so they are 16-bit there; 16 bytes in parts without the plugins.
- max_seq_length 4096 is cut to what the tokenizer allows: 2048 for santacoder, as tokens per second
  times step time confirm.
- refs_orca trains a whole epoch of 2,000 math problems without packing, two micro-batches per step
  (gradients of the adapters stand during the second). The longest sample is not published. It
  follows from the QLoRA rows: their slope between micro-batch 4 and 8 is 2,495 tokens with the
  torch loss and with the kernel in place, and the rest is the adapters' gradients to 1 MB. The
  longest joined micro-batches (padding-free) follow from the rows with the torch loss in the same
  way.
"""

import math
import random
import re
from collections.abc import Mapping
from typing import Any

from brimful.base.units import GIB
from brimful.integrations.other_tools.stand_ins import LossChain
from left_out import LeftOut
from memory_stack import Adapter, Stack, loss_of_transformers, version_of

DEVICE = "NVIDIA A100-SXM4-80GB"
VERSIONS = {
    "refs/a100_80gb.csv": ("2.4.1", "4.48.1"),
    "refs/a100_80gb_update_cross_entropy_and_deps.csv": ("2.4.1", "4.48.1"),
    "refs/a100_80gb_granite.csv": ("2.4.1", "4.45.0"),
    "refs/a100_80gb_liger.csv": ("2.4.1", "4.45.2"),
    "refs_orca/a100_80gb_pf.csv": ("2.4.0", "4.44.0"),
}
GPTQ_BASES = {
    "TheBloke/Mistral-7B-v0.1-GPTQ": "mistralai/Mistral-7B-v0.1",
    "TechxGenus/Meta-Llama-3-8B-GPTQ": "meta-llama/Meta-Llama-3-8B",
    "TheBloke/Llama-2-70B-GPTQ": "NousResearch/Llama-2-70b-hf",
    "TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ": "mistralai/Mixtral-8x7B-Instruct-v0.1",
}
MODELS = {*GPTQ_BASES.values(), "ibm/PowerLM-3b", "bigcode/gpt_bigcode-santacoder"}
KERNELS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "foak-fast-kernels": {"foak": True},
    "foak-fast-kernels-liger": {"foak": True, "liger": True},
    "aadp-padding-free": {"padding_free": True},
    "baseline-peft-bnb": {"quantize": "nf4_double", "fp32_norms": True},
    **{
        f"accelerated-peft-{short}{'-foak' if foak else ''}{suffix}": {
            "quantize": quantize,
            "foak": foak,
            **more,
        }
        for short, quantize in (("bnb", "nf4_double"), ("autogptq", "gptq4"))
        for foak in (False, True)
        for suffix, more in (
            ("", {}),
            ("-liger", {"liger": True}),
            ("-padding-free", {"padding_free": True}),
        )
        if foak or suffix != "-liger"
    },
}
UNGROUPED_GPTQ = ("TheBloke/Llama-2-70B-GPTQ", "TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ")
ORCA_LONGEST_TOKENS = 2495
ORCA_LONGEST_JOINED_TOKENS = {4: 3091, 8: 4296}
ORCA_TEXTS, ORCA_MEAN_TOKENS, ORCA_SPREAD = 2000, 289, 0.74
"""Texts, their mean length from tokens per second and step times, and the standard deviation of its
logarithm with which the longest of so many is ORCA_LONGEST_TOKENS.
"""


def orca_passes(micro_batch: int, *, joined: bool) -> list[float]:
    """Return tokens of a row in successive passes over texts with these figures: as long as its
    longest text, or its texts joined.
    """
    mean = math.log(ORCA_MEAN_TOKENS) - ORCA_SPREAD**2 / 2
    draw, passes = random.Random(0).lognormvariate, []
    for _ in range(ORCA_TEXTS // micro_batch):
        texts = [min(draw(mean, ORCA_SPREAD), ORCA_LONGEST_TOKENS) for _ in range(micro_batch)]
        passes.append(sum(texts) if joined else max(texts))
    return passes


def stack_of(row: Mapping[str, str]) -> Stack | LeftOut:
    """The stack of a row of fms-acceleration's tables.

    Raises:
        KeyError, ValueError: a column is missing or malformed.
    """
    table = row["source_path"].removeprefix("scripts/benchmarks/")
    name = framework_of(row)
    model = GPTQ_BASES.get(row["model"], row["model"])
    problem = _problem(table, name, model, row)
    if problem:
        return LeftOut(problem)
    torch_version, library_version = VERSIONS[table]
    switches = KERNELS[name]
    foak, bigcode, mixture = switches.get("foak", False), "bigcode" in model, "Mixtral" in model
    weights, autocast = _precision(row["precision"])
    gpus, quantize = int(row["num_gpus"]), switches.get("quantize", "none")
    if gpus > 1 and row["method"] == "full" and autocast != "none":
        weights = "fp32"
    whole = gpus > 1 and name.startswith("accelerated-peft")
    measured, others = _measured(row)
    return Stack(
        configuration=f"{table.rsplit('/')[-1].removesuffix('.csv')} {name} {row['method']}",
        model=model,
        micro_batch=int(row["micro_batch"]),
        device=DEVICE,
        kind="allocated" if row["memory_kind"] == "allocated" else "driver",
        measured_gib=measured,
        others_gib=others,
        driver_baseline="idle",
        status="oom" if row["status"] == "oom" else "ok",
        loss=_loss(version_of(library_version), bigcode, switches),
        weights=weights,
        autocast=autocast,
        adapter=None if row["method"] == "full" else _adapter(row, bigcode, whole=whole),
        quantize=quantize,
        gptq_group=0 if row["model"] in UNGROUPED_GPTQ else 128,
        fp32_norms=switches.get("fp32_norms", False) and gpus == 1,
        recompute="reentrant",
        attention="flash2",
        repeats_keys="stral" in model and version_of(library_version) < (4, 48),
        optimizer="foreach",
        accumulation=int(row["grad_accum"]),
        fused_rms_norm=foak and not bigcode,
        fused_rope=foak and not bigcode,
        fused_lora=foak and switches.get("quantize") is not None and not bigcode,
        keeps_fused_qkv=bigcode,
        fp32_outputs=autocast != "none",
        ranks=gpus,
        gpus=gpus,
        replicates_adapters=whole,
        mixture=mixture,
        torch_version=torch_version,
        library_version=library_version,
        doubt=(
            "transformers 4.4x had one linear layer per expert, newer ones fuse them"
            if mixture
            else ""
        ),
        **_lengths(table, model, int(row["micro_batch"]), switches),
    )


def framework_of(row: Mapping[str, str]) -> str:
    """The name of the configuration of plugins in a row's notes."""
    found = re.search(r"framework_config=([^;]+)", row["notes"])
    return found[1].strip() if found else ""


def _problem(table: str, name: str, model: str, row: Mapping[str, str]) -> str | None:
    switches = KERNELS.get(name)
    checks = {
        "routed experts with lengths that depend on the data set, only the driver's figure, library versions unknown": (
            table.endswith("_moe.csv") or name.startswith("moe-")
        ),
        f"the library versions of {table} are not known": table not in VERSIONS,
        f"framework configuration {name!r} is not known": switches is None,
        f"model {model!r} is not known": model not in MODELS,
        f"method {row['method']!r} does not go with {name}": (
            row["method"] not in ("full", "lora", "qlora")
            or (row["method"] == "qlora") != ("quantize" in (switches or {}))
        ),
        "the longest sample lies on one of the ranks, and which lengths the others have is not published": (
            table.startswith("refs_orca") and row["num_gpus"] != "1"
        ),
        f"the longest joined micro-batch of {row['micro_batch']} sequences is not known": (
            bool((switches or {}).get("padding_free"))
            and int(row["micro_batch"]) not in ORCA_LONGEST_JOINED_TOKENS
        ),
        f"{row['optimizer']}, {row['attention_impl']}, checkpointing {row['activation_checkpointing']} on {row['gpu']} is not known": not (
            "adamw_torch" in row["optimizer"]
            and row["attention_impl"] == "flash_attention_2"
            and row["activation_checkpointing"].startswith("yes")
            and row["gpu"] == DEVICE
        ),
        f"length {row['seq_len']!r} is not known": (
            not table.startswith("refs_orca") and row["seq_len"] != "4096"
        ),
    }
    return next((reason for reason, holds in checks.items() if holds), None)


def _precision(words: str) -> tuple[Any, Any]:
    found = re.match(r"(bfloat16|float16|float32) weights, (no AMP|bf16 AMP|fp16 AMP)", words)
    if found is None:
        raise ValueError(f"precision {words!r}")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[found[1]], found[
        2
    ].removesuffix(" AMP").replace("no", "none")


def _measured(row: Mapping[str, str]) -> tuple[float | None, dict[str, float]]:
    others = {}
    after = re.search(r"after-train alloc ([\d.]+) B", row["memory_as_published"])
    if after:
        others["allocated_after_train"] = float(after[1]) / GIB
    if row["nvidia_smi_gib"]:
        others["driver"] = float(row["nvidia_smi_gib"])
    peak = re.search(r"torch peak ([\d.]+) B", row["memory_as_published"])
    if peak and row["memory_kind"] == "allocated":
        return float(peak[1]) / GIB, others
    value = row["peak_memory_gib"] or row["nvidia_smi_gib"]
    return (float(value) if value else None), others


def _loss(version: tuple[int, ...], bigcode: bool, switches: Mapping[str, Any]) -> LossChain:
    chain = (
        LossChain(upcast="none", shifted_copy=True) if bigcode else loss_of_transformers(version)
    )
    if switches.get("liger") and not bigcode:
        return LossChain(upcast="none", shifted_copy=False, cross_entropy="fused_linear")
    return (
        LossChain(chain.upcast, chain.shifted_copy, "in_place") if switches.get("foak") else chain
    )


def _adapter(row: Mapping[str, str], bigcode: bool, *, whole: bool) -> Adapter:
    targets = (
        ("c_attn",)
        if bigcode
        else tuple(f"{letter}_proj" for letter in row["lora_targets"].split("+"))
    )
    rank = int(row["lora_rank"])
    settings = {"r": rank, "lora_alpha": 16, "lora_dropout": 0.1, "target_modules": list(targets)}
    dtype: Any = "weights" if whole else "fp32"
    return Adapter("LORA", settings, rank=rank, targets=targets, dropout=0.1, dtype=dtype)


def _lengths(
    table: str, model: str, micro_batch: int, switches: Mapping[str, Any]
) -> dict[str, Any]:
    if not table.startswith("refs_orca"):
        return {"sequence_length": 2048 if "bigcode" in model else 4096}
    if switches.get("padding_free"):
        return {
            "sequence_length": ORCA_LONGEST_JOINED_TOKENS[micro_batch],
            "lengths": "padding_free",
            "length_inferred": True,
        }
    return {
        "sequence_length": ORCA_LONGEST_TOKENS,
        "lengths": "longest",
        "length_inferred": True,
        "padded": True,
    }
