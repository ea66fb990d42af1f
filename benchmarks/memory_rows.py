"""What was measured in each row of a table of published memory peaks: the software stack as options
a trace can be told, or why the row is left out.

    python benchmarks/memory_rows.py .../memory.csv

prints, per source and configuration, how many rows can be predicted and why the others cannot.
Nothing here is about one row: a stack follows from the source and from the columns, and a value
that was not seen before leaves its row out with a reason. fms-acceleration and peft are read in
`memory_fms` and `memory_peft`; here are one GPT-2 script on many rented GPUs, one BERT run of
transformers' documentation, and why others are left out. Of several GPUs:
- fsdp_qlora (benchmarks_03_2024.md, train.py): its own loop over transformers 4.3x on two consumer
  GPUs, FSDP of blocks and adapters, bf16, `use_reentrant=True`, dummy data; reserved peaks, the whole
  model on each GPU as "DDP".
- torchtitan (llama3_h100_202412_torchtitan.md): fully_shard of blocks in bf16 over fp32 weights, a
  fused AdamW, reserved peaks. Compiled rows, Float8 and more than one kind of parallelism are steps
  that nothing here records; selective recomputation of single operators is one, too.
"""

import csv
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping

import memory_fms
import memory_peft
from brimful.base.units import GIB, MIB
from brimful.integrations.other_tools.stand_ins import LossChain
from left_out import LeftOut, declared
from memory_stack import Stack

Row = Mapping[str, str]

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


def gpt2_stack(row: Row) -> Stack | LeftOut:
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


def bert_stack(row: Row) -> Stack | LeftOut:
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


def _driver_gib(row: Row) -> float | None:
    printed = re.match(r"(\d+) ?(MiB|MB)", row["memory_as_published"])
    if printed:
        return int(printed[1]) * MIB / GIB
    return float(row["peak_memory_gib"]) if row["peak_memory_gib"] else None


def _of_unsloth(row: Row) -> str:
    """Why rows of Unsloth's README cannot be predicted."""
    if row["memory_kind"].startswith("GRAM"):
        return "rounded to a whole GB of unstated meaning, lengths of the samples not stated"
    if "capacity" in row["memory_kind"]:
        return "a capacity (the longest context that fits), not a peak"
    return (
        "the peak is that of the longest batch, whose length is not stated (2,048 is only the"
        " limit)"
    )


def _of_fsdp_qlora(row: Row) -> str:
    if "offload" in row["notes"]:
        return "weights wait in host memory, which no plan of brimful does"
    return (
        "not read yet: versions of a loop of its own from March 2024, and which of flash-attn and"
        " SDPA a row used, are not in the row"
    )


def _of_torchtitan(row: Row) -> str:
    if any(word in row["notes"] for word in ("TP", "PP", "CP")):
        return "tensor, pipeline or context parallelism, which no plan of brimful does"
    if "float8" in row["precision"]:
        return "Float8 products"
    if row["compile"] == "yes":
        return "compiled blocks of a loop and a model of its own"
    return "every second product is recomputed (selective per operator): no such step here"


Reader = Callable[[Row], Stack | LeftOut]


def _left_out(reason: str | Callable[[Row], str]) -> Reader:
    return lambda row: LeftOut(reason if isinstance(reason, str) else reason(row))


FMS, UNSLOTH, SPEEDRUN, TITAN, FSDP_QLORA = (
    "foundation-model-stack/fms-acceleration",
    "unslothai/unsloth",
    "KellerJordan/modded-nanogpt",
    "pytorch/torchtitan",
    "AnswerDotAI/fsdp_qlora",
)
ONE_GPU: Mapping[str, Reader] = {
    FMS: memory_fms.stack_of,
    "huggingface/peft": memory_peft.stack_of,
    "gpt2-124m on 20 rented GPUs (one public script)": gpt2_stack,
    "huggingface/transformers": bert_stack,
    UNSLOTH: _left_out(_of_unsloth),
    SPEEDRUN: _left_out(
        "an architecture of its own (value embeddings, skips, FP8 head), compiled, sharded Muon"
    ),
    TITAN: _left_out("sharded over several GPUs"),
    FSDP_QLORA: _left_out("sharded over several GPUs"),
}
SEVERAL_GPUS: Mapping[str, Reader] = {
    FMS: memory_fms.stack_of,
    FSDP_QLORA: _left_out(_of_fsdp_qlora),
    TITAN: _left_out(_of_torchtitan),
    UNSLOTH: _left_out(
        "two GPUs with the whole model: the length of the longest batch, which decides, is not stated"
    ),
    SPEEDRUN: _left_out(
        "a model of its own that changes from record to record, compiled; neither its shape nor"
        " its tokens per step are in the row"
    ),
}


def stack_of(row: Row, readers: Mapping[str, Reader] = ONE_GPU) -> Stack | LeftOut:
    """The declared software stack of one row, or the reason why it is left out. Never raises on an
    unseen value.
    """
    reader = readers.get(row.get("source_repo", ""))
    if reader is None:
        return LeftOut(f"no reader for the source {row.get('source_repo', '')!r}")
    if row.get("status") not in ("ok", "oom"):
        return LeftOut(
            "a capacity (the longest context that fits), not a peak"
            if row.get("status") == "capacity"
            else f"status {row.get('status')!r}"
        )
    if readers is ONE_GPU and row.get("num_gpus") != "1":
        return LeftOut(
            "several GPUs: what stands on each depends on how model and optimizer are sharded"
        )
    return declared(lambda row: _sane(reader(row)), row)


def _sane(verdict: Stack | LeftOut) -> Stack | LeftOut:
    if isinstance(verdict, LeftOut):
        return verdict
    if min(verdict.micro_batch, verdict.sequence_length, verdict.accumulation) < 1:
        return LeftOut("micro-batch, length or accumulation below 1")
    return (
        LeftOut("no measurement in the row")
        if verdict.status == "ok" and not verdict.measured_gib
        else verdict
    )


def print_table(rows: list[Mapping[str, str]]) -> None:
    """One line per source, configuration and verdict with its number of rows."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        verdict = stack_of(row)
        if isinstance(verdict, Stack):
            counts[
                row["source_repo"],
                f"{verdict.configuration}: {verdict.status}{', in doubt' if verdict.doubt else ''}",
            ] += 1
        else:
            counts[row["source_repo"], f"left out: {verdict.reason}"] += 1
    for (source, words), count in sorted(counts.items()):
        print(f"{count:5d}  {source[:42]:42s}  {words}")
    usable = sum(count for (_, words), count in counts.items() if not words.startswith("left out"))
    print(f"{len(rows)} rows, {usable} usable, {len(rows) - usable} left out")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        print_table(list(csv.DictReader(file)))
