"""Memory that runs of other tools published, beside what `brimful plan FILE` says of their files, and how
wide intervals have to be, chosen without each source.

    python benchmarks/declared_jobs.py .../memory.csv [--answered FILE] [--no-record]

Rows: `declared_jobs.json` has jobs on one GPU with a published peak, listed before they were planned
(some settings were mended after that, docs/log):
configurations that Axolotl's examples state the memory of (as torch reserves it), torchtune's README
(allocated), Unsloth's notebooks (reserved; as TRL's keys) and LLaMA-Factory's wiki (whole GB of the
driver). A model that the catalog lacks is replaced by one of the same shape. Rows of fms-acceleration
without its plugins, or with bitsandbytes as TRL had it, come from the table, as arguments of TRL 0.12
and, once more, without its version. Of padded rows only the longest possible length is known.

Plans widen the ends of all intervals of such jobs by the ratios DECLARED_SHARE. Here they do not, and
"needed" is how far a measurement is beyond an end. The ratio to choose is the least that holds HELD of the
rows of all other sources, each source counting the same.
"""

import argparse
import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import memory_fms
import memory_rows
from brimful.base.errors import BrimfulError
from brimful.base.units import GIB
from brimful.hardware import catalog as devices
from brimful.integrations.other_tools import planned
from brimful.integrations.other_tools.job import read_job
from brimful.integrations.other_tools.planned import JobTraces, job_traces, look_up, plan_job
from brimful.integrations.other_tools.recognise import tool_named
from left_out import LeftOut
from memory_stack import Stack
from record import write_record

STORED = Path(__file__).with_suffix(".json")
HELD = 0.9
SHIPPED = planned.DECLARED_SHARE
VERSION = "0.12"
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


def rows_of(path: str) -> Iterator[dict[str, Any]]:
    """Yield the stored jobs, and fms-acceleration's with and without TRL's version."""
    yield from json.loads(STORED.read_text(encoding="utf-8"))
    with open(path, encoding="utf-8", newline="") as file:
        table = [row for row in csv.DictReader(file) if row["source_repo"] == SOURCE]
    for row in table:
        stack = memory_rows.stack_of(row)
        if isinstance(stack, LeftOut) or stack.ranks > 1 or stack.lengths != "fixed":
            continue
        framework = memory_fms.framework_of(row)
        if framework not in ("none", "baseline-peft-bnb") or stack.mixture:
            continue
        keys = arguments_of(stack)
        if stack.quantize != "none":
            keys |= {"load_in_4bit": True, "use_bnb_nested_quant": True}
        fails = stack.status == "oom"
        figures = (
            {"driver": None} if fails else {stack.kind: stack.measured_gib, **stack.others_gib}
        )
        for source, version in (("TRL", {"trl_version": VERSION}), ("TRL, no version", {})):
            for kind in ("driver",) if fails else ("allocated", "driver"):
                yield {
                    "source": source,
                    "address": f"github.com/{SOURCE}",
                    "tool": "trl",
                    "device": stack.device,
                    "kind": kind,
                    "gib": figures[kind],
                    "setting": f"{stack.configuration} {stack.model} {stack.micro_batch}",
                    "keys": {**keys, **version},
                }


def answer(row: Mapping[str, Any], traces: JobTraces) -> dict[str, Any]:
    """Return a row with the prediction of its figure, or what refuses it."""
    told: dict[str, Any] = {
        name: row[name] for name in ("source", "setting", "device", "kind", "gib")
    }
    device = devices.get(row["device"])
    read = read_job(tool_named(row["tool"]), row["keys"], native_bf16=device.abilities.bf16)
    if read.job is None:
        return {**told, "refused": ", ".join(each.key for each in read.unknown)}
    try:
        model = look_up(read.job.model)
        planned.DECLARED_SHARE = SHIPPED
        told["verdict"] = plan_job(read.job, model, device, traces, searches=False).verdict
        planned.DECLARED_SHARE = (1.0, 1.0)
        entry = plan_job(read.job, model, device, traces, searches=False)
    except BrimfulError as error:
        return {**told, "refused": str(error).split(" - did", maxsplit=1)[0][:80]}
    if row["gib"] is None:
        return told
    found = getattr(entry.footprint, row["kind"])
    ends = [round(each / GIB, 3) for each in (found.low, found.value, found.high)]
    return {**told, "rows": read.job.rows, "predicted_gib": ends}


def verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return verdicts on jobs that ran, and on those that ran out of memory, once for each job whose
    device is stated: Axolotl's examples mostly say none.
    """
    told: dict[str, Counter[str]] = {"ran": Counter(), "failed": Counter()}
    jobs = {(row["source"], row["setting"]): row for row in rows if "verdict" in row}
    for row in jobs.values():
        if row["source"] != "axolotl" or row["device"] != memory_fms.DEVICE:
            told["failed" if row["gib"] is None else "ran"][row["verdict"]] += 1
    return {name: dict(count) for name, count in told.items()}


def needed(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return how far a measurement is beyond the low and the high end, as ratios."""
    low, _, high = row["predicted_gib"]
    return min(1.0, row["gib"] / low), max(1.0, row["gib"] / high)


def width_of(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the ratios to widen both ends by, so that HELD of the rows are inside."""
    sources = Counter(row["source"] for row in rows)
    weights_R = np.array([1 / sources[row["source"]] for row in rows])
    both = np.array([needed(row) for row in rows])
    beyond_R = np.maximum(1 / both[:, 0], both[:, 1])
    order_R = np.argsort(beyond_R)
    held_R = np.cumsum(weights_R[order_R]) / weights_R.sum()
    least = float(beyond_R[order_R][np.searchsorted(held_R, HELD)])
    return 1 / least, least


def inside(rows: Sequence[Mapping[str, Any]], low: float, high: float) -> int:
    """Return how many rows are inside, with ends widened by these ratios."""
    return sum(low <= needed(row)[0] and needed(row)[1] <= high for row in rows)


def left_out(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return by source how many rows are inside, as shipped and with the width of all others."""
    made = {}
    for source, kind in dict.fromkeys((row["source"], row["kind"]) for row in rows):
        own = [row for row in rows if (row["source"], row["kind"]) == (source, kind)]
        low, high = width_of([row for row in rows if row["source"] != source])
        errors = [abs(row["predicted_gib"][1] / row["gib"] - 1) for row in own]
        made[f"{source}, {kind}"] = {
            "rows": len(own),
            "median_percent": round(100 * float(np.median(errors)), 1),
            "ninetieth_percent": round(100 * float(np.quantile(errors, 0.9)), 1),
            "inside_shipped": inside(own, *SHIPPED),
            "inside_left_out": inside(own, low, high),
            "widened_by": round(high, 3),
            "high_over_low": round(
                float(
                    np.median([row["predicted_gib"][2] / row["predicted_gib"][0] for row in own])
                ),
                2,
            ),
        }
    return made


def main() -> None:
    """Plan, judge, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv")
    parser.add_argument("--answered", type=Path, help="rows planned so far, one a line")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    known = {}
    if asked.answered is not None and asked.answered.exists():
        for line in asked.answered.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            known[row["source"], row["setting"], row["kind"]] = row
    results = []
    with job_traces() as traces:
        for row in rows_of(asked.csv):
            key = row["source"], row["setting"], row["kind"]
            results.append(known.get(key) or answer(row, traces))
            print(json.dumps(results[-1]), flush=True)
            if asked.answered is not None and key not in known:
                with asked.answered.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    judged = [row for row in results if "predicted_gib" in row]
    with_version = [row for row in judged if row["source"] != "TRL, no version"]
    no_version = {name: row for name, row in left_out(judged).items() if name.startswith("TRL, no")}
    tables = {
        "rows": len(results),
        "verdicts": verdicts([row for row in results if row["source"] != "TRL, no version"]),
        "verdicts_without_version": verdicts(
            [row for row in results if row["source"] == "TRL, no version"]
        ),
        "refused": dict(Counter(row["source"] for row in results if "refused" in row)),
        "versions_known": left_out(with_version),
        "one_unknown": no_version,
        "inside": {
            "rows": len(with_version),
            "shipped": inside(with_version, *SHIPPED),
            "source_left_out": sum(
                row["inside_left_out"] for row in left_out(with_version).values()
            ),
        },
        "width_of_all": [round(each, 3) for each in width_of(with_version)],
    }
    print(json.dumps(tables, indent=1))
    if not asked.no_record:
        print(write_record("declared_jobs", {**tables, "results": results}))


if __name__ == "__main__":
    main()
