"""Public runs of GRPO with stated hardware, planned as `brimful plan FILE --on DEVICE` does: is said to fit
what is documented to run, and not to fit what is documented to run out of memory?

    python benchmarks/rewards_public.py [--only WORDS] [--no-record]

`rewards_public.toml` has the runs: what their scripts say, as TRL's own keys, and the address of each.
A verdict is right where the plan says that what runs surely fits, or that what fails surely does not;
"uncertain" is neither right nor wrong. Beside it stands the phase that decides: the update, or the drawing
of answers.
"""

import argparse
import json
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.base.units import GIB
from brimful.hardware import catalog
from brimful.integrations.other_tools.file import read_file
from brimful.integrations.other_tools.planned import job_traces, look_up, plan_job
from record import write_record

STORED = Path(__file__).with_suffix(".toml")
RIGHT = {"runs": "fits", "fails": "does not fit"}


def asked(report: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return what the plan of a run says."""
    path = folder / "grpo.json"
    path.write_text(json.dumps(report["keys"]))
    row = {
        key: report[key]
        for key in ("name", "address", "device", "ends", "told_gib")
        if key in report
    }
    row |= {key: report[key] for key in ("other", "found") if key in report}
    device = catalog.get(report["device"])
    job = read_file(path, "trl", native_bf16=device.abilities.bf16).job
    assert job is not None
    with job_traces() as traces:
        entry = plan_job(job, look_up(job.model), device, traces, searches=False)
    assert entry.sampled is not None
    step, drawn = entry.footprint, entry.sampled
    return row | {
        "verdict": entry.verdict,
        "is_right": entry.verdict == RIGHT[report["ends"]],
        "update": {
            "verdict": step.verdict,
            "gib": _gib(step.driver.value, step.driver.low, step.driver.high),
        },
        "sampling": {
            "verdict": drawn.verdict,
            "gib": _gib(drawn.memory.value),
            "about": drawn.about,
        },
        "usable_gib": _gib(step.usable_bytes)[0],
    }


def _gib(*sizes: float) -> list[float]:
    return [round(each / GIB, 2) for each in sizes]


def main() -> None:
    """Plan all runs and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Words that a run's name has.")
    parser.add_argument("--no-record", action="store_true")
    options = parser.parse_args()
    reports = [
        each for each in tomllib.loads(STORED.read_text())["report"] if options.only in each["name"]
    ]
    rows = []
    for report in reports:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(asked(report, Path(folder)))
        print(json.dumps(rows[-1]), flush=True)
    counts = Counter(
        "right"
        if row.get("is_right")
        else "uncertain"
        if row["verdict"] == "uncertain"
        else "wrong"
        for row in rows
    )
    print(dict(counts))
    if not options.no_record and not options.only:
        write_record("rewards_public", {"runs": len(rows), **counts, "rows": rows})


if __name__ == "__main__":
    main()
