"""Rows of several GPUs in a table of published memory peaks: what each source states, as options that
a trace can be told, or why a row is left out.

fms-acceleration is read in `memory_fms`. The others:
- fsdp_qlora (benchmarks_03_2024.md, train.py): its own loop over transformers 4.3x on two consumer
  GPUs, FSDP of blocks and adapters, bf16, `use_reentrant=True`, dummy data; reserved peaks, the whole
  model on each GPU as "DDP".
- torchtitan (llama3_h100_202412_torchtitan.md): fully_shard of blocks in bf16 over fp32 weights, a
  fused AdamW, reserved peaks. Compiled rows, Float8 and more than one kind of parallelism are steps
  that nothing here records; selective recomputation of single operators is one, too.
- modded-nanogpt and unsloth: as in `memory_others`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import memory_fms
from left_out import LeftOut, declared
from memory_stack import Stack

MOE_TABLE = "a100_80gb_moe.csv"


def _left_out(reason: str) -> Callable[[Mapping[str, str]], LeftOut]:
    return lambda row: LeftOut(reason)


def fsdp_qlora_stack(row: Mapping[str, str]) -> LeftOut:
    """Why rows of fsdp_qlora cannot be predicted."""
    if "offload" in row["notes"]:
        return LeftOut("weights wait in host memory, which no plan of brimful does")
    return LeftOut(
        "not read yet: versions of a loop of its own from March 2024, and which of flash-attn and"
        " SDPA a row used, are not in the row"
    )


def torchtitan_stack(row: Mapping[str, str]) -> LeftOut:
    """Why rows of torchtitan cannot be predicted."""
    if any(word in row["notes"] for word in ("TP", "PP", "CP")):
        return LeftOut("tensor, pipeline or context parallelism, which no plan of brimful does")
    if "float8" in row["precision"]:
        return LeftOut("Float8 products")
    if row["compile"] == "yes":
        return LeftOut("compiled blocks of a loop and a model of its own")
    return LeftOut("every second product is recomputed (selective per operator): no such step here")


READERS: Mapping[str, Callable[[Mapping[str, str]], Stack | LeftOut]] = {
    "foundation-model-stack/fms-acceleration": memory_fms.stack_of,
    "AnswerDotAI/fsdp_qlora": fsdp_qlora_stack,
    "pytorch/torchtitan": torchtitan_stack,
    "unslothai/unsloth": _left_out(
        "two GPUs with the whole model: the length of the longest batch, which decides, is not stated"
    ),
    "KellerJordan/modded-nanogpt": _left_out(
        "a model of its own that changes from record to record, compiled; neither its shape nor"
        " its tokens per step are in the row"
    ),
}


def stack_of(row: Mapping[str, str]) -> Stack | LeftOut:
    """The declared stack of a row with several GPUs, or why it is left out."""
    reader = READERS.get(row.get("source_repo", ""))
    if reader is None:
        return LeftOut(f"no reader for the source {row.get('source_repo', '')!r}")
    if row.get("status") not in {"ok", "oom"}:
        return LeftOut(f"status {row.get('status')!r}")
    verdict = declared(reader, row)
    if isinstance(verdict, LeftOut):
        return verdict
    if verdict.mixture and verdict.quantize != "none":
        return LeftOut("4-bit experts: transformers 5 fuses what was one linear layer each")
    if verdict.status == "ok" and not verdict.measured_gib:
        return LeftOut("no measurement in the row")
    return verdict


def reasons(rows: Sequence[Mapping[str, str]]) -> Counter[str]:
    """How many rows of each source are left out, and why."""
    counts: Counter[str] = Counter()
    for row in rows:
        verdict = stack_of(row)
        if isinstance(verdict, LeftOut):
            counts[f"{row['source_repo']}: {verdict.reason}"] += 1
    return counts
