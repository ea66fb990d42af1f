"""The jobs of the five systems, in settings of a few minutes: what `brimful plan` says of each phase
before anything is trained, beside what it took.

    python benchmarks/jobs_measured.py --data DATA [--only NAME ...] [--folder RESULTS]

DATA holds `wikitext-2` and `sms_spam`. Each job has an empty cache folder: `brimful plan --json`
first, then `brimful run` with the same words. A job that ended replaces its row of the record; rows of
others stay, with the date, commit and device of their own. What phases took is what runs and studies
say of themselves; `wall_s` is the whole command, libraries and preparing data included, which no
phase is. The machine should do nothing else: an error of a total counts what other programs took.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.runs.files import STUDY_FILE
from brimful.runs.folder import read_run
from brimful.runs.measurements import stage_times_s
from fresh_process import Finished, brimful
from record import RECORDS, write_record

SYSTEMS: Mapping[str, tuple[str, ...]] = {
    "a GPT from scratch": ("quickstart", "training.steps=400"),
    "LoRA for Python code, a rank study": (
        "code-offline",
        "data.max_documents=1200",
        "evaluation.max_examples=40",
        'study={variants: {lora-8: ["adapter.rank=8"], full: ["adapter=null"]}}',
    ),
    "OKADFA on WikiText": ("okadfa-small", "training.steps=150", "data.path={data}/wikitext-2"),
    "moderation": (
        "moderation-offline",
        "training.epochs=1",
        "data.path={data}/sms_spam/SMSSpamCollection",
    ),
    "RFT of reasoning": (
        "unit-rft-offline",
        "training.tokens=200_000",
        "rft.questions.max_questions=200",
        "rft.rounds=1",
        "rft.seeds=[1]",
    ),
}
IN_ALL = "in all"
RECORD = "jobs_measured"


def main() -> None:
    """Plan, run, print, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--folder", type=Path, help="keep runs and caches here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        root = asked.folder or Path(made)
        jobs = kept(json.loads((RECORDS / f"{RECORD}.json").read_text(encoding="utf-8")))
        for name in asked.only:
            words = [word.replace("{data}", str(asked.data)) for word in SYSTEMS[name]]
            jobs[name] = _job(name, words, root / SYSTEMS[name][0])
            print("\n".join(_lines(jobs[name])), flush=True)
            write_record(RECORD, {"jobs": [jobs[each] for each in SYSTEMS if each in jobs]})


def kept(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the jobs of a record by system; each says by itself when and on what it was measured."""
    about = {name: record[name] for name in ("date", "commit", "device")}
    return {job["system"]: about | job for job in record["jobs"]}


def _job(name: str, words: list[str], folder: Path) -> dict[str, Any]:
    planned = _brimful(["plan", *words, "--json"], folder)
    expected = _expected(json.loads(planned.said)["devices"][0])
    load = os.getloadavg()[0]
    wall_s = _brimful(["run", *words], folder).wall_s
    took = _measured(folder / "runs", words[0])
    phases = []
    for phase in expected["phases"]:
        time_s, title = phase["time_s"], phase["name"]
        if phase["variant"]:
            title += f" of {phase['variant']}"
        phases.append(_row(title, time_s, took.get(title)))
    known = [each["measured_s"] or 0.0 for each in phases]
    phases.append(_row(IN_ALL, expected["predicted"]["total_time_s"], sum(known)))
    return {"system": name, "words": words, "load": load, "wall_s": wall_s, "phases": phases}


def _expected(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the job of a plan; one of a single training has no phases beside it."""
    if "job" in answer:
        job: dict[str, Any] = answer["job"]
        return job
    plan, name = answer["plan"], "total_time_s"
    low, high = plan["predicted_interval"][name]
    total = {"value": plan["predicted"][name], "low": low, "high": high}
    phase = {"name": "training", "variant": "", "time_s": total}
    return {"phases": [phase], "predicted": {name: total}}


def _brimful(words: list[str], folder: Path) -> Finished:
    done = brimful(words, folder)
    if done.code:
        raise SystemExit(f"brimful {' '.join(words)} ended with {done.code}:\n{done.errors}")
    return done


def _row(name: str, expected: Mapping[str, Any] | None, measured_s: float | None) -> dict[str, Any]:
    ends = {f"{key}_s": expected[key] for key in ("value", "low", "high")} if expected else {}
    return {"name": name, **ends, "measured_s": measured_s}


def _measured(runs: Path, name: str) -> dict[str, float | None]:
    """Return what the phases of a recipe's job took, by title."""
    took = {}
    for path in runs.glob("*/run.json"):
        run = read_run(path.parent)
        title = "training" if run.recipe.name == name else f"training of {run.recipe.name}"
        took[title] = stage_times_s(run)["total_time_s"]
    for study in runs.glob(f"*/{STUDY_FILE}"):
        for phase in json.loads(study.read_text(encoding="utf-8")).get("phases", []):
            if phase["measured_s"] is not None:
                took[phase["name"]] = phase["measured_s"]
    return took


def _lines(job: Mapping[str, Any]) -> list[str]:
    lines = [f"{job['system']}: {job['wall_s']:.0f} s by the wall"]
    for row in job["phases"]:
        told = "not known"
        if "value_s" in row:
            told = f"{row['value_s']:.1f} ({row['low_s']:.1f} to {row['high_s']:.1f})"
        took = row["measured_s"]
        lines.append(f"  {row['name']}: {told} s, took {'?' if took is None else f'{took:.1f}'}")
    return lines


if __name__ == "__main__":
    main()
