"""What can go wrong with a run, made to happen: the cases of `faults.toml` by the tests named there.

    python benchmarks/faults.py [--only WORD ...]   # run the tests, write the record and docs/fault-cases.md

With --only, the rows of the cases whose fault holds one of these words are replaced or added, and no
others change.

A case holds where all of its tests pass. What a machine cannot make happen has its reason beside
it, and what a test shows only in part has a note.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from record import RECORDS, write_record

ROOT = Path(__file__).parents[1]
CASES = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "fault-cases.md"
NAME = "faults"
HEAD = """# Fault cases: what was tried

[When something goes wrong](faults.md) says what a user meets. This page lists the cases behind it. Each is made to happen
by tests, which `python benchmarks/faults.py` runs: {held} of {tried} held ({date}, {device}). `benchmarks/faults.toml`
names the tests.

| # | What happens | What comes of it | Seen |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Case:
    """A fault and what must come of it.

    Attributes:
        tests: Under `tests/`, each `FILE::NAME`; all parameters of a test count.
        not_here: Why it cannot be made to happen here; empty where it can.
        note: What the tests leave out.
    """

    fault: str
    outcome: str
    tests: tuple[str, ...] = ()
    not_here: str = ""
    note: str = ""


@dataclass(frozen=True)
class Result:
    """What the runs of a test gave: how many there were, how many passed, and their seconds."""

    runs: int
    passed: int
    seconds: float


def read_cases(path: Path = CASES) -> list[Case]:
    """Return the cases in their order."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["case"]
    return [Case(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows]


def run_tests(tests: Iterable[str]) -> dict[str, Result]:
    """Run tests once each, in a process of their own; return results by test."""
    nodes = sorted({f"tests/{test}" for test in tests})
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--junit-xml={written}"]
        subprocess.run([*command, *nodes], cwd=ROOT, check=False)
        return results_of(ET.parse(written).getroot())  # noqa: S314  # pytest wrote it just now


def results_of(report: ET.Element) -> dict[str, Result]:
    """Return the results in a JUnit report by test, `FILE::NAME`, parameters added up."""
    found: dict[str, list[ET.Element]] = defaultdict(list)
    for case in report.iter("testcase"):
        file = case.get("classname", "").replace(".", "/").removeprefix("tests/")
        found[f"{file}.py::{case.get('name', '').partition('[')[0]}"].append(case)
    return {
        test: Result(
            len(cases),
            sum(not len(case) for case in cases),
            sum(float(case.get("time", 0)) for case in cases),
        )
        for test, cases in found.items()
    }


def row_of(case: Case, results: Mapping[str, Result]) -> dict[str, Any]:
    """Return a case as the record holds it. A test that was not run, or was skipped, did not pass."""
    ran = [results.get(test, Result(1, 0, 0.0)) for test in case.tests]
    row: dict[str, Any] = {"fault": case.fault, "outcome": case.outcome}
    if case.not_here:
        return {**row, "held": None, "not_here": case.not_here}
    return {
        **row,
        "held": all(each.passed == each.runs for each in ran),
        "tests": sum(each.runs for each in ran),
        "seconds": round(sum(each.seconds for each in ran), 1),
        **({"note": case.note} if case.note else {}),
    }


def page(record: Mapping[str, Any]) -> str:
    """Return docs/fault-cases.md from a record."""
    rows: Sequence[Mapping[str, Any]] = record["cases"]
    tried = [row for row in rows if row["held"] is not None]
    head = HEAD.format(
        held=sum(row["held"] for row in tried),
        tried=len(tried),
        date=record["date"],
        device=record["device"],
    )
    lines = [
        f"| {number} | {row['fault']} | {row['outcome']} | {_seen(row)} |"
        for number, row in enumerate(rows, 1)
    ]
    return head + "\n".join(lines) + "\n"


def _seen(row: Mapping[str, Any]) -> str:
    if row["held"] is None:
        return f"not here: {row['not_here']}"
    tests = f"{row['tests']} test{'s' * (row['tests'] != 1)}, {row['seconds']:.0f} s"
    seen = f"held ({tests})" if row["held"] else f"**failed** ({tests})"
    return f"{seen}; {row['note']}" if "note" in row else seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose fault holds one")
    options = parser.parse_args()
    cases = [case for case in read_cases() if any(map(case.fault.__contains__, options.only))]
    results = run_tests(test for case in cases for test in case.tests)
    rows = [row_of(case, results) for case in cases]
    failed = [row["fault"] for row in rows if row["held"] is False]
    file = RECORDS / f"{NAME}.json"
    if options.only == [""]:
        write_record(NAME, {"cases": rows})
    record = json.loads(file.read_text(encoding="utf-8"))
    known = {row["fault"]: row for row in (*record["cases"], *rows)}
    record["cases"] = [known[case.fault] for case in read_cases() if case.fault in known]
    file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(record), encoding="utf-8")
    print(f"{len(rows)} cases, {len(failed)} failed: {', '.join(failed) or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
