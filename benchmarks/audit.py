"""Known weaknesses of the pinned libraries, and the licences of those that brimful needs.

    python benchmarks/audit.py              # look up constraints.txt, write docs/licences.md
    python benchmarks/audit.py --licences   # the licences alone; no network

The look-up is pip-audit's (https://pypi.org/project/pip-audit), which uv fetches and which asks the
Python package index. Where the index cannot be asked that is said, and the exit code is 3; with
known weaknesses it is 1.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
HEAD = """# Licences of what brimful needs

brimful's wheel holds files of this repository alone, under its [licence](../LICENSE). This table has what it needs, in the
versions of `constraints.txt`, with the licence that each package states. `make audit` writes it.

| Package | Version | Licence |
|---|---|---|
"""
WEAK, NOT_ASKED = 1, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--licences", action="store_true", help="no look-up")
    asked = parser.parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    if not asked.licences:
        lines, code = verdict(_look_up())
        print("\n".join(lines))
        sys.exit(code)


def page() -> str:
    """Return the page of licences, of what is installed here."""
    found = sorted(needed("brimful"), key=lambda each: canonicalize_name(each.name))
    rows = [
        f"| {each.name} | {each.version.partition('+')[0]} | {licence_of(each)} |\n"
        for each in found
    ]
    return HEAD + "".join(rows)


def needed(name: str) -> list[Distribution]:
    """Return all that a package needs without its extras, and what that needs."""
    found: dict[str, Distribution] = {}
    left = [(name, frozenset[str]())]
    while left:
        package, extras = left.pop()
        for requirement in map(Requirement, distribution(package).requires or ()):
            contexts: Iterator[dict[str, str]] = ({"extra": extra} for extra in ("", *extras))
            key = canonicalize_name(requirement.name)
            is_needed = requirement.marker is None or any(
                map(requirement.marker.evaluate, contexts)
            )
            if is_needed and key not in found and key != canonicalize_name(name):
                try:
                    found[key] = distribution(requirement.name)
                except PackageNotFoundError:
                    continue  # for another device than this machine's
                left.append((requirement.name, frozenset(requirement.extras)))
    return list(found.values())


def licence_of(package: Distribution) -> str:
    """Return what a package's metadata states: an expression, a line, or its classifiers."""
    facts = package.metadata
    lines = (facts.get_all(key) or [""] for key in ("License-Expression", "License"))
    stated = next((line for line, *_ in lines if line), "")
    if stated and "\n" not in stated and len(stated) <= 60:
        return stated
    classified = [
        each.rpartition(" :: ")[2]
        for each in facts.get_all("Classifier") or ()
        if each.startswith("License ::")
    ]
    return ", ".join(classified) or (stated.strip().splitlines() or ["not stated"])[0]


def _look_up() -> list[dict[str, Any]]:
    """Return pip-audit's answer about each package; none where it does not run."""
    pins = str(ROOT / "constraints.txt")
    command = [sys.executable, "-m", "uv", "tool", "run", "pip-audit", "-r", pins]
    ended = subprocess.run(
        [*command, "--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return list(json.loads(ended.stdout)["dependencies"])
    except ValueError:
        print(ended.stderr.strip()[-1000:], file=sys.stderr)
        return []


def verdict(packages: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Return what the answers say, and the exit code."""
    asked = [each for each in packages if "skip_reason" not in each]
    weak = [
        f"{each['name']} {each['version']}: {weakness['id']}, mended in"
        f" {', '.join(weakness['fix_versions']) or 'no version yet'}"
        for each in asked
        for weakness in each["vulns"]
    ]
    lines = [*weak, f"{len(asked)} of {len(packages)} packages looked up, weaknesses: {len(weak)}"]
    if weak:
        return lines, WEAK
    if not asked or len(asked) < len(packages):
        return [*lines, "the index cannot be asked about all of them from here"], NOT_ASKED
    return lines, 0


if __name__ == "__main__":
    main()
