"""Public configuration files of other tools through the tables that a user's file goes through:
planned on two devices, or refused with the deciding key named.

    python benchmarks/foreign_configs.py [--only WORDS] [--no-record]
    python benchmarks/foreign_configs.py --sample [--plan]

`foreign_configs.json` has the address of each file, and the keys in it that decide memory and time, as
they were read. A row with changes is the same file after a user followed the advice of the refusal, such
as to name a length.

--sample only reads the 200 files of `foreign_sample.json`, drawn by a seed from public repositories
and split before anyone looked at them: what one half was refused for was mended, the other half is
reported on. Of each file it holds the deciding keys, as a user reads them in a checkout of the
repository, and whether it was planned when it was drawn. With --plan
those that are read are planned on an H100, too, and the record says how many are.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brimful.base.dotted import override
from brimful.base.errors import BrimfulError
from brimful.chains.devices import rates_of
from brimful.hardware import catalog as devices
from brimful.integrations.other_tools.job import ReadJob, model_key, read_job
from brimful.integrations.other_tools.planned import JobTraces, job_traces, look_up, plan_job
from brimful.integrations.other_tools.recognise import tool_named
from brimful.model import catalog as models
from brimful.report.plan.jobs import described
from record import write_record

STORED = Path(__file__).with_suffix(".json")
SAMPLE = STORED.with_name("foreign_sample.json")
DEVICES = ("NVIDIA L4", "NVIDIA H100 80GB HBM3")
SHOWN_FACTS = ("model", "weights", "adapter", "quantize", "sequence_length", "micro_batch", "loss")


def main() -> None:
    """Read, plan, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only addresses with these words")
    parser.add_argument("--sample", action="store_true", help="read the drawn files")
    parser.add_argument("--plan", action="store_true", help="plan the drawn files that are read")
    parser.add_argument("--no-record", action="store_true")
    asked = parser.parse_args()
    if asked.sample:
        drawn = json.loads(SAMPLE.read_text(encoding="utf-8"))
        print("\n".join(sample_lines(drawn)))
        if asked.plan:
            print(write_record("foreign_sample", _planned_sample(drawn)))
        return
    rows = json.loads(STORED.read_text(encoding="utf-8"))
    chosen = [row for row in rows if asked.only in row["address"]]
    with job_traces() as traces:
        results = []
        for row in chosen:
            results.append(_result(row, traces))
            print(json.dumps(results[-1]), flush=True)
    print(_counts(results))
    if not asked.no_record and not asked.only:
        print(write_record("foreign_configs", {"summary": _counts(results), "files": results}))


def sample_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each half and tool how many of the drawn files are planned, and were before."""
    lines = []
    for half, tool in sorted({(row["half"], row["tool"]) for row in rows}):
        chosen = [row for row in rows if (row["half"], row["tool"]) == (half, tool)]
        before = sum(row["planned_before"] for row in chosen)
        now = sum(not refused_now(row) for row in chosen)
        lines.append(f"{half}, {tool}: {now} of {len(chosen)} planned, {before} before")
    return lines


def _planned_sample(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return for each half and tool how many files get which verdict on the last of DEVICES."""
    counts: dict[str, Counter[str]] = {}
    reasons = []
    with job_traces() as traces:
        for row in rows:
            verdict = "refused"
            if not refused_now(row):
                read = read_job(tool_named(row["tool"]), row["keys"])
                said = _planned(read, DEVICES[-1], traces, searches=False)
                verdict = said["verdict"]
                reasons += [f"{row['half']}: {said['reason']}"] if "reason" in said else []
            counts.setdefault(f"{row['half']}, {row['tool']}", Counter())[verdict] += 1
            print(row["half"], row["tool"], verdict, flush=True)
    return {
        "device": DEVICES[-1],
        "files": len(rows),
        "verdicts": {name: dict(count) for name, count in sorted(counts.items())},
        "not_estimated": reasons,
    }


def refused_now(row: Mapping[str, Any]) -> list[str]:
    """Return the keys of a drawn file that are not understood, or what else refuses it."""
    if not row["keys"]:
        return list(row["refused"])
    read = read_job(tool_named(row["tool"]), row["keys"])
    if read.job is not None and models.find(read.job.model) is None:
        return ["the model is not in the catalog"]
    return [each.key for each in read.unknown]


def _result(row: Mapping[str, Any], traces: JobTraces) -> dict[str, Any]:
    """Return what is said of a file on both devices."""
    keys = dict(row["keys"])
    for change in row["changes"]:
        if not change.startswith("--"):
            change_key(keys, change)
    read = read_job(tool_named(row["tool"]), keys)
    result = {
        "address": row["address"],
        "tool": row["tool"],
        "changes": row["changes"],
        "facts": {
            name: described(name, read.values[name]) for name in SHOWN_FACTS if name in read.values
        },
        "refused": [each.describe() for each in read.unknown],
        "devices": {},
    }
    if read.job is not None and models.find(read.job.model) is None:
        result["refused"] = [f"{model_key(read.said_by)}: the model is not in the catalog"]
    if not result["refused"]:
        result["devices"] = {name: _planned(read, name, traces) for name in DEVICES}
    return result


def change_key(keys: dict[str, Any], change: str) -> None:
    """Apply a change to keys that are flat already."""
    key, _, _ = change.partition("=")
    nested: dict[str, Any] = {}
    override(change, nested, {})
    for part in key.split("."):
        nested = nested[part]
    keys[key] = nested


def _planned(
    read: ReadJob, name: str, traces: JobTraces, *, searches: bool = True
) -> dict[str, Any]:
    device = devices.get(name)
    assert read.job is not None  # asked by the caller
    try:
        model = look_up(read.job.model)
        planned = plan_job(read.job, model, device, traces, rates_of(device), searches=searches)
    except BrimfulError as error:
        return {"verdict": "cannot be estimated", "reason": str(error)}
    driver = planned.footprint.driver
    step = planned.step_s
    return {
        "verdict": planned.verdict,
        "memory_bytes": [round(each) for each in (driver.value, driver.low, driver.high)],
        "largest_micro_batch": planned.largest,
        "step_time_s": None if step is None else [step.value, step.low, step.high],
    }


def _counts(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    keys = Counter(
        (result["tool"], reason.partition(":")[0])
        for result in results
        for reason in result["refused"][:1]
    )
    return {
        "rows": len(results),
        "files": len({result["address"] for result in results}),
        "planned": sum(not result["refused"] for result in results),
        "refused": sum(bool(result["refused"]) for result in results),
        "planned_by_tool": dict(Counter(each["tool"] for each in results if not each["refused"])),
        "first_refused_key": {" ".join(key): count for key, count in keys.most_common()},
        "verdicts": {
            name: dict(
                Counter(
                    result["devices"][name]["verdict"] for result in results if result["devices"]
                )
            )
            for name in DEVICES
        },
    }


if __name__ == "__main__":
    main()
