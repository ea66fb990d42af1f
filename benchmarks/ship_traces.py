"""Make the traces that come with brimful for single steps: those that shipped recipes with fresh
models ask for on CPUs, where attention in blocks shares its recordings with no other length.

    python benchmarks/ship_traces.py [--recipes NAME ...]
    python benchmarks/ship_traces.py --check [--recipes NAME ...]

An archive for each recipe lies in src/brimful/rehearsal/traces. With --check nothing is written:
all is traced anew and compared, byte for byte.
"""

import argparse
import dataclasses
import json
import lzma
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from brimful.base.kept_values import read_whole
from brimful.planning.family_key import family_keys_of
from brimful.planning.step import StepSpec
from brimful.rehearsal.shipped import ABOUT, library_versions, write_archive
from brimful.rehearsal.shipped_traces import SHIPPED_TRACES, name_of_trace
from brimful.rehearsal.store import StoredTraces, TraceFiles, canonical_step
from ship_skeletons import CPUS, Asked

RECIPES = ("quickstart",)
"""Those that people run first."""


def steps_of(recipe: str) -> Iterator[StepSpec]:
    """Yield the steps that a recipe's plans ask for on CPUs, without computing anything again, and
    that belong to no family.
    """
    for step in Asked(tuple(CPUS)).steps_of(recipe):
        spec = canonical_step(step)
        if not spec.recompute and not family_keys_of(spec):
            yield spec


def traced(recipe: str) -> dict[str, bytes]:
    """Trace a recipe's steps; return the entries of its archive by name."""
    entries = {}
    with tempfile.TemporaryDirectory() as folder:
        files = TraceFiles(Path(folder), shipped=None)
        for spec in steps_of(recipe):
            StoredTraces(spec, Path(folder), shipped=None).at(1)
            anywhere = dataclasses.replace(spec, loss_chunk=0)
            for asked, name in ((anywhere, "all"), (spec, "1")):
                path = files.path(asked, name)
                content = None if path is None else read_whole(path)
                if content is not None:
                    entries[name_of_trace(asked, name)] = lzma.compress(content)
    return entries


def contents(entries: Mapping[str, bytes]) -> dict[str, tuple[Any, bytes]]:
    """Return what entries hold, by name: the header of a safetensors file, whose order says
    nothing, and all values.
    """
    found = {}
    for name, content in entries.items():
        whole = lzma.decompress(content)
        end = 8 + int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:end])
        header["__metadata__"].pop("content")  # names the step as this CPU asks for it
        found[name] = (header, whole[end:])
    return found


def kept(recipe: str) -> dict[str, bytes]:
    """Return the entries of a recipe's archive."""
    with zipfile.ZipFile(SHIPPED_TRACES / f"{recipe}.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != ABOUT}


def main() -> None:
    """Make or check the archives, and print what was done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    differ = False
    for recipe in options.recipes:
        path, start_s = SHIPPED_TRACES / f"{recipe}.zip", time.process_time()
        entries = traced(recipe)
        took = f"{recipe}: {len(entries)} traces in {time.process_time() - start_s:.0f} CPU s"
        if options.check:
            equal = contents(kept(recipe)) == contents(entries)
            differ |= not equal
            print(f"{took}, {'equal' if equal else 'DIFFER'}")
            continue
        SHIPPED_TRACES.mkdir(exist_ok=True)
        write_archive(path, {"versions": dict(library_versions())}, entries)
        print(f"{took}, {path.stat().st_size:,} bytes")
    sys.exit(differ)


if __name__ == "__main__":
    main()
