"""Traces that come with brimful for single steps: those of shipped recipes on CPUs whose attention
works in blocks, so that no other length shares a recording with them.

`benchmarks/ship_traces.py` makes them. They are used where the installed libraries have the same
major and minor versions; else a step is traced.
"""

import dataclasses
import functools
import hashlib
import json
import lzma
from collections.abc import Mapping
from pathlib import Path

from brimful.planning.step import StepSpec
from brimful.rehearsal.shipped import ABOUT, agree, read_entry, traces_of

SHIPPED_TRACES = Path(__file__).parent / "traces"


def trace_with_brimful(spec: StepSpec, name: str, folder: Path) -> bytes | None:
    """Return the file called `name` of a step as it would be stored after tracing; None where it
    does not come with brimful, or not for these libraries.
    """
    entry = name_of_trace(spec, name)
    for path, versions in _archives(folder):
        content = read_entry(path, entry)
        if content is not None and agree(versions):
            try:
                return lzma.decompress(content)
            except lzma.LZMAError:  # a damaged archive: the step is traced
                return None
    return None


def name_of_trace(spec: StepSpec, name: str) -> str:
    """Return the name of an entry: a digest of all that decides it but the libraries."""
    spec = dataclasses.replace(spec, flash=spec.flash and spec.cuda)  # only there one is asked for
    what = f"{traces_of(spec)} {spec.key()} {name}"
    return f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.xz"


@functools.cache
def _archives(folder: Path) -> list[tuple[Path, Mapping[str, str]]]:
    """Return the readable archives with the versions of the libraries that they were made with."""
    found: list[tuple[Path, Mapping[str, str]]] = []
    for path in sorted(folder.glob("*.zip")):
        content = read_entry(path, ABOUT)
        try:
            found.append((path, dict(json.loads(content or b"")["versions"])))
        except (TypeError, ValueError, KeyError):
            continue  # a damaged archive: its steps are traced
    return found
