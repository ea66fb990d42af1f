"""Make the families of traces that come with brimful for single networks: the steps that plans of
published models, or of shipped recipes, ask for (all networks of a structure: ship_skeletons.py).

    python benchmarks/ship_families.py [--models NAME ...] [--minutes 20] [--check] [--in-parts]

An archive for each network lies in src/brimful/rehearsal/families; one that is there is not made
again (delete it first). With --in-parts: the same for steps of a model in parts on several devices,
in an archive of their own. With --check nothing is written: each of the named models' families is
made anew and compared with its file, byte for byte.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from brimful.hardware import catalog as devices
from brimful.planning.step import StepSpec
from brimful.planning.survey import Sharing, prepare
from brimful.recipe import load
from brimful.rehearsal.family_store import StoredFamilies
from brimful.rehearsal.models import config_of
from brimful.rehearsal.shipped import (
    ABOUT,
    FOLDER,
    IN_PARTS,
    About,
    library_versions,
    write_archive,
)
from brimful.rehearsal.store import canonical_step
from ship_skeletons import CARDS, CPUS, LENGTHS, METHODS, Asked

MODELS = (
    "openai-community/gpt2",
    "microsoft/phi-2",
    "google/gemma-3-1b-pt",
    "openai-community/gpt2-medium",
)
"""The most asked for first."""
MODELS_IN_PARTS = (
    "meta-llama/Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen2.5-32B",
    "Qwen/Qwen2.5-72B",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen2.5-14B",
)
"""Large ones, the most asked for first."""
RECIPES = ("quickstart", "tiny-gpt", "gpt-124m", "wikitext2-small", "unit-base", "tiny-encoder")
"""Their networks have fewer blocks than a skeleton, or are of another architecture."""
WINDOWED = {"google/gemma-2-2b": Asked(CARDS[:1], ("LoRA", "QLoRA"), (4096, 5000))}
"""Networks with an attention window: their steps from its length on, which no skeleton serves."""


def steps_of(what: str, *, in_parts: bool = False) -> Iterator[StepSpec]:
    """Yield the steps that plans of a model or a recipe ask for on cards and CPUs, or on several
    cards with a flash kernel that hold it in parts.
    """
    if in_parts:
        return _steps_in_parts(what)
    if what in WINDOWED:
        return WINDOWED[what].steps_of(what)
    return Asked((*CARDS, *CPUS) if what in RECIPES else CARDS[:2]).steps_of(what)


def _steps_in_parts(model: str) -> Iterator[StepSpec]:
    words = (f"model={model}", "tokenizer=null", "batch.sequences=16")
    for method in METHODS.values():
        recipe = load("quickstart", [*words, f"sequence_length={LENGTHS[0]}", *method])
        prepared = prepare(recipe, devices.get(CARDS[0]), sharing=Sharing(8, 8))
        yield from (prepared.spec(recompute=recompute) for recompute in (False, True))


def families_of(
    model: str, folder: Path, end_s: float, *, in_parts: bool = False
) -> dict[str, bytes] | None:
    """Trace a model's families, with those of one sequence where that is a special case, into a
    cache folder; return their files by name, or None where time is over before.
    """
    families = StoredFamilies(folder, shipped=None)
    for step in steps_of(model, in_parts=in_parts):
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


def differences(path: Path, families: dict[str, bytes]) -> list[str]:
    """Return the names of families that are not those of the archive."""
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name != ABOUT}
    return sorted(name for name in kept.keys() | families if kept.get(name) != families.get(name))


def _path(model: str, *, in_parts: bool) -> Path:
    model_type = json.loads(next(steps_of(model)).config_json)["model_type"]
    of = IN_PARTS if in_parts else "-windowed" * (model in WINDOWED)
    return FOLDER / f"{model_type}.{model.rpartition('/')[2].lower()}{of}.zip"


def main() -> None:
    """Make or check the archives, and print what was done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", help="all")
    parser.add_argument("--in-parts", action="store_true", help="on several devices")
    parser.add_argument("--minutes", type=float, default=20, help="no family starts after these")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    end_s, bad = time.monotonic() + 60 * options.minutes, False
    in_parts = options.in_parts
    for model in options.models or (
        MODELS_IN_PARTS if in_parts else [*RECIPES, *MODELS, *WINDOWED]
    ):
        path = _path(model, in_parts=in_parts)
        if path.exists() != options.check:
            continue
        start_s = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            families = families_of(model, Path(folder), end_s, in_parts=in_parts)
        if families is None:
            break
        took_s = time.process_time() - start_s
        done = f"{model}: {len(families)} families in {took_s:.0f} s of CPU time"
        if options.check:
            other = differences(path, families)
            bad |= bool(other)
            print(f"{done}, {len(other)} differ {' '.join(other)}".rstrip(), flush=True)
            continue
        FOLDER.mkdir(exist_ok=True)
        write_archive(path, dataclasses.asdict(about(model)), families)
        print(f"{done}, {path.stat().st_size:,} bytes", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
