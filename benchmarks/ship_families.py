"""Make the families of traces that come with brimful for single networks: the steps that plans of
published models, or of shipped recipes, ask for (all networks of a structure: ship_skeletons.py).

    python benchmarks/ship_families.py [--models NAME ...] [--minutes 20] [--check]

An archive for each network lies in src/brimful/rehearsal/families; one that is there is not made
again (delete it first). With --check nothing is written: each of the named models' families is
made anew and compared with its file, byte for byte.
"""

import argparse
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from brimful.planning.step import StepSpec
from brimful.rehearsal.family_store import StoredFamilies
from brimful.rehearsal.models import config_of
from brimful.rehearsal.shipped import ABOUT, FOLDER, About, library_versions, write_archive
from brimful.rehearsal.store import canonical_step
from ship_skeletons import CARDS, CPUS, Asked

MODELS = (
    "openai-community/gpt2",
    "microsoft/phi-2",
    "google/gemma-3-1b-pt",
    "openai-community/gpt2-medium",
)
"""The most asked for first."""
RECIPES = ("quickstart", "tiny-gpt", "gpt-124m", "wikitext2-small", "unit-base", "tiny-encoder")
"""Their networks have fewer blocks than a skeleton, or are of another architecture."""


def steps_of(what: str) -> Iterator[StepSpec]:
    """Yield the steps that plans of a model or a recipe ask for on cards and CPUs."""
    return Asked((*CARDS, *CPUS) if what in RECIPES else CARDS[:2]).steps_of(what)


def families_of(model: str, folder: Path, end_s: float) -> dict[str, bytes] | None:
    """Trace a model's families, with those of one sequence where that is a special case, into a
    cache folder; return their files by name, or None where time is over before.
    """
    families = StoredFamilies(folder, shipped=None)
    for step in steps_of(model):
        if time.monotonic() > end_s:
            return None
        spec = canonical_step(step)
        member = families.member(spec)
        if member is not None and member.lowest > 1:
            families.member(spec, is_single=True)
    return {path.name: path.read_bytes() for path in folder.rglob("*.xz")}


def about(model: str) -> About:
    """Return what an archive says of a model's network."""
    step = next(steps_of(model))
    values = json.loads(json.dumps(config_of(step).to_dict()))
    return About(model, library_versions(), step.config_json, values)


def differences(model: str, families: dict[str, bytes]) -> list[str]:
    """Return the names of families that are not those of the archive."""
    with zipfile.ZipFile(_path(model)) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name != ABOUT}
    return sorted(name for name in kept.keys() | families if kept.get(name) != families.get(name))


def _path(model: str) -> Path:
    model_type = json.loads(next(steps_of(model)).config_json)["model_type"]
    return FOLDER / f"{model_type}.{model.rpartition('/')[2].lower()}.zip"


def main() -> None:
    """Make or check the archives, and print what was done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=[*RECIPES, *MODELS])
    parser.add_argument("--minutes", type=float, default=20, help="no family starts after these")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    end_s, bad = time.monotonic() + 60 * options.minutes, False
    for model in options.models:
        path = _path(model)
        if path.exists() != options.check:
            continue
        start_s = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            families = families_of(model, Path(folder), end_s)
        if families is None:
            break
        took_s = time.process_time() - start_s
        done = f"{model}: {len(families)} families in {took_s:.0f} s of CPU time"
        if options.check:
            other = differences(model, families)
            bad |= bool(other)
            print(f"{done}, {len(other)} differ {' '.join(other)}".rstrip(), flush=True)
            continue
        FOLDER.mkdir(exist_ok=True)
        write_archive(path, about(model), families)
        print(f"{done}, {path.stat().st_size:,} bytes", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
