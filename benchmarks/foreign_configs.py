"""Public configuration files of other tools through the tables that a user's file goes through:
planned on two devices, or refused with the deciding key named.

    python benchmarks/foreign_configs.py [--only WORDS] [--no-record]
    python benchmarks/foreign_configs.py --folder FOLDER [--store]
    python benchmarks/foreign_configs.py --sample [--plan]

Without a folder it works from `foreign_configs.json`: the address of each file, and the keys in it
that decide memory and time, as they were read. With a folder that holds the files
(OWNER+REPOSITORY/PATH) these are read again and compared; --store writes what was read. A row with
changes is the same file after a user followed the advice of the refusal, such as to name a length.

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
from brimful.base.units import format_bytes, format_duration
from brimful.chains.devices import rates_of
from brimful.hardware import catalog as devices
from brimful.integrations.other_tools.file import read_values, tool_of
from brimful.integrations.other_tools.job import ReadJob, Tool, model_key, read_job
from brimful.integrations.other_tools.planned import JobTraces, job_traces, look_up, plan_job
from brimful.integrations.other_tools.recognise import tool_named
from brimful.integrations.other_tools.settings import is_off, matches
from brimful.model import catalog as models
from brimful.report.plan.jobs import described
from record import write_record

STORED = Path(__file__).with_suffix(".json")
SAMPLE = STORED.with_name("foreign_sample.json")
DEVICES = ("NVIDIA L4", "NVIDIA H100 80GB HBM3")
NOT_STORED = ("datasets", "dataset_mixture", "learning_rate")
"""Keys that say what to learn from, not how much memory that takes."""
LONGEST = 400
"""Characters of a value that is stored."""
SHOWN_FACTS = ("model", "weights", "adapter", "quantize", "sequence_length", "micro_batch", "loss")


def main() -> None:
    """Read, plan, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the files lie")
    parser.add_argument("--store", action="store_true", help="write what was read from them")
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
    if asked.folder is not None:
        read = [_read_again(row, asked.folder) for row in rows]
        differing = [new["address"] for row, new in zip(rows, read, strict=True) if new != row]
        print(f"{len(rows)} files read; {len(differing)} differ from what is stored")
        if asked.store:
            STORED.write_text(json.dumps(read, indent=1) + "\n", encoding="utf-8")
        return
    chosen = [row for row in rows if asked.only in row["address"]]
    with job_traces() as traces:
        results = []
        for row in chosen:
            results.append(_result(row, traces))
            print("\n".join(_lines(results[-1])), flush=True)
    print(_summary(results))
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


def _path_of(address: str, folder: Path) -> Path:
    """`github.com/OWNER/NAME@COMMIT/PATH` below the folder."""
    repository, _, rest = address.removeprefix("github.com/").partition("@")
    return folder / repository.replace("/", "+") / rest.partition("/")[2]


def _read_again(row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    path, changes = _path_of(row["address"], folder), row["changes"]
    named = [each.removeprefix("--tool=") for each in changes if each.startswith("--tool=")]
    name = tool_of(str(path), (), next(iter(named), None))
    if name is None:
        raise SystemExit(f"{path}: the keys of no tool")
    tool = tool_named(name)
    given = tool.flat(read_values(path))
    keys = {key: _stored(value) for key, value in given.items() if _decides(tool, key, value)}
    return {"address": row["address"], "tool": name, "changes": changes, "keys": keys}


def _decides(tool: Tool, key: str, value: Any) -> bool:
    if key in NOT_STORED or (is_off(value) and key not in tool.defaults) or value is None:
        return False
    return key in tool.defaults or not matches(key, tool.idle, tool.idle_prefixes)


def _stored(value: Any) -> Any:
    """Long values only count as given."""
    return value if len(json.dumps(value, default=str)) < LONGEST else "given"


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


def _lines(result: Mapping[str, Any]) -> list[str]:
    words = result["address"].removeprefix("github.com/").partition("@")
    changes = f" with {' '.join(result['changes'])}" if result["changes"] else ""
    lines = [f"{words[0]} {words[2].partition('/')[2]}{changes}"]
    lines += [f"    refused: {reason}" for reason in result["refused"]]
    if not result["refused"]:
        lines.append("    " + "; ".join(map(str, result["facts"].values())))
    for name, said in result["devices"].items():
        lines.append(f"    {name}: {_said(said)}")
    return lines


def _said(said: Mapping[str, Any]) -> str:
    if "reason" in said:
        return f"{said['verdict']}: {said['reason']}"
    words = f"{said['verdict']}, {format_bytes(said['memory_bytes'][0])}"
    if said["largest_micro_batch"] is not None:
        words += f", largest micro-batch {said['largest_micro_batch']}"
    if said["step_time_s"] is not None:
        words += f", a step {format_duration(said['step_time_s'][0])}"
    return words


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


def _summary(results: Sequence[Mapping[str, Any]]) -> str:
    counts = _counts(results)
    return (
        f"{counts['files']} files in {counts['rows']} rows: {counts['planned']} planned,"
        f" {counts['refused']} refused; {counts['verdicts']}"
    )


if __name__ == "__main__":
    main()
