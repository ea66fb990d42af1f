"""Published rows of Hugging Face's Trainer and TRL through the tables that a user's file goes
through.

    python benchmarks/foreign_rows.py .../memory.csv [--no-record]

A row of fms-acceleration without its plugins is written as the arguments that its command line had,
read by the table of TRL, and made a step. That step is compared with the one that `memory_fms`
declares for the row and `memory_truth` predicts. What the tables cannot know is the version of the
libraries: they are of today's, the rows of 2024 and 2025. So the loss, and whether accelerate
casts the logits, are those of the declared step: today's TRL makes no logits. All else must be equal.
Rows of other sources are not of tools that brimful has tables of.
"""

import argparse
import csv
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import memory_fms
import memory_rows
from brimful.hardware import catalog as devices
from brimful.integrations.other_tools.job import read_job
from brimful.integrations.other_tools.planned import look_up, step_of
from brimful.integrations.other_tools.recognise import tool_named
from brimful.integrations.other_tools.stand_ins.attention import FLASH2, FLASH2_REPEATED
from brimful.integrations.other_tools.step import ForeignStep
from left_out import LeftOut
from memory_stack import Stack
from memory_truth import spec_of
from record import write_record

SOURCE = "foundation-model-stack/fms-acceleration"
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def arguments_of(stack: Stack) -> dict[str, Any]:
    """Return the arguments of `trl sft` for a declared run of Trainer's."""
    given: dict[str, Any] = {
        "model_name_or_path": stack.model,
        "dtype": DTYPES[stack.weights],
        "bf16": stack.autocast == "bf16",
        "fp16": stack.autocast == "fp16",
        "max_length": stack.sequence_length,
        "per_device_train_batch_size": stack.micro_batch,
        "gradient_accumulation_steps": stack.accumulation,
        "optim": "adamw_torch",
        "attn_implementation": "flash_attention_2",
        "loss_type": "nll",
        "gradient_checkpointing": stack.recompute != "none",
        "gradient_checkpointing_kwargs": {"use_reentrant": stack.recompute == "reentrant"},
    }
    if stack.lengths == "fixed":
        given |= {"packing": True, "packing_strategy": "wrapped"}
    if stack.adapter is not None:
        given |= {
            "use_peft": True,
            "lora_r": stack.adapter.rank,
            "lora_dropout": stack.adapter.dropout,
            "lora_target_modules": list(stack.adapter.targets),
        }
    return given


def by_the_tables(stack: Stack) -> ForeignStep:
    """Return the step that the tables make of these arguments, with the loss of the row's version."""
    read = read_job(tool_named("trl"), arguments_of(stack))
    assert read.job is not None, read.unknown
    step = step_of(read.job, look_up(read.job.model), devices.get(stack.device))
    declared = spec_of(stack)
    older: dict[str, Any] = {
        "chain": declared.chain,
        "quirks": dataclasses.replace(step.quirks, fp32_outputs=declared.quirks.fp32_outputs),
    }
    if declared.attention == FLASH2_REPEATED and step.attention == FLASH2:
        older["attention"] = declared.attention  # Mistral's class in transformers before 4.48
    return dataclasses.replace(step, **older)


def differences(stack: Stack) -> list[str]:
    """Return the fields in which the tables' step differs from the declared one."""
    made, declared = by_the_tables(stack), spec_of(stack)
    return [
        field.name
        for field in dataclasses.fields(made)
        if getattr(made, field.name) != getattr(declared, field.name)
    ]


def compared(rows: Sequence[Mapping[str, str]]) -> tuple[Counter[str], Counter[str]]:
    """Return how many rows differ in what ("equal" for none), and why others are left out."""
    differing: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for row in rows:
        stack = memory_rows.stack_of(row)
        if isinstance(stack, LeftOut):
            left_out[stack.reason] += 1
        elif memory_fms.framework_of(row) != "none":
            left_out["a plugin of fms-acceleration, for which there is no table"] += 1
        elif stack.mixture or "bigcode" in stack.model:
            left_out["an architecture whose loss or experts changed between the versions"] += 1
        else:
            differing[", ".join(differences(stack)) or "equal"] += 1
    return differing, left_out


def main() -> None:
    """Compare, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    with open(asked.csv, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source_repo"] == SOURCE]
    differing, left_out = compared(rows)
    for words, count in differing.most_common():
        print(f"{count:5d}  {words}")
    for reason, count in left_out.most_common():
        print(f"{count:5d}  left out: {reason}")
    if not asked.no_record:
        values = {"rows": len(rows), "steps": dict(differing), "left_out": dict(left_out)}
        print(write_record("foreign_rows", values))


if __name__ == "__main__":
    main()
