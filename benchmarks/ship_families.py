"""Make the families of traces that come with brimful for single networks: the steps that plans of
published models, or of shipped recipes, ask for (all networks of a structure: ship_skeletons.py).

    python benchmarks/ship_families.py [--models NAME ...] [--minutes 20] [--in-parts]
    python benchmarks/ship_families.py --check [--models NAME ...] [--minutes 20] [--in-parts]
    python benchmarks/ship_families.py --check-names

An archive for each network lies in src/brimful/rehearsal/families; what it holds is not made again
(delete it first), and what no step asks for any more is dropped. With --in-parts: the same for steps of a model in parts on several devices,
in an archive of their own. With --check nothing is written: each of the named models' families is
made anew and compared with its file, byte for byte. With --check-names nothing is recorded either:
an archive that comes with brimful must be one of these commands', hold a recording for each of its
steps, and nothing else.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from brimful.base.kept_values import read_whole, write_whole
from brimful.hardware import catalog as devices
from brimful.planning.family_key import family_keys_of
from brimful.planning.step import StepSpec
from brimful.planning.survey import Sharing, prepare
from brimful.recipe import load
from brimful.rehearsal.family_store import StoredFamilies, families_folder
from brimful.rehearsal.models import config_of
from brimful.rehearsal.shipped import (
    ABOUT,
    FOLDER,
    About,
    library_versions,
    name_of,
    write_archive,
)
from brimful.rehearsal.shipped_skeletons import ShippedSkeletons
from brimful.rehearsal.store import canonical_step
from ship_skeletons import CARDS, CPUS, LENGTHS, METHODS, Asked

MODELS = (
    "openai-community/gpt2",
    "microsoft/phi-2",
    "google/gemma-3-1b-pt",
    "openai-community/gpt2-medium",
)
"""The most asked for first."""
IN_PARTS, FROM_THE_WINDOW = "-in-parts", "-windowed"
"""At the end of the name of an archive of steps on several devices, or of such lengths."""
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
TUNED = ("lora", "code-smollm2", "unit-rft-smollm2")
"""Recipes that tune a small model on rows of packed examples, which on CPUs no skeleton serves."""
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
    if what in TUNED:
        return Asked(tuple(CPUS)).steps_of(what)
    return Asked((*CARDS, *CPUS) if what in RECIPES else CARDS[:2]).steps_of(what)


def _steps_in_parts(model: str) -> Iterator[StepSpec]:
    words = (f"model={model}", "tokenizer=null", "batch.sequences=16")
    for method in METHODS.values():
        recipe = load("quickstart", [*words, f"sequence_length={LENGTHS[0]}", *method])
        prepared = prepare(recipe, devices.get(CARDS[0]), sharing=Sharing(8, 8))
        yield from (prepared.spec(recompute=recompute) for recompute in (False, True))


def families_of(
    model: str,
    folder: Path,
    end_s: float,
    *,
    in_parts: bool = False,
    kept: Mapping[str, bytes] = MappingProxyType({}),
) -> dict[str, bytes] | None:
    """Trace a model's families, with those of one sequence where that is a special case, into a
    cache folder; return their files by name, or None where time is over before.

    Args:
        model: Or a recipe.
        folder: An empty one.
        end_s: Nothing is traced after it.
        in_parts: On several devices.
        kept: Files that need not be made again.
    """
    families, asked = StoredFamilies(folder, shipped=None), set[str]()
    (folder / families_folder()).mkdir()
    for name, content in kept.items():
        write_whole(folder / families_folder() / name, content)
    for step in steps_of(model, in_parts=in_parts):
        if time.monotonic() > end_s:
            return None
        asked |= names_for(step)
        spec = canonical_step(step)
        member = families.member(spec)
        if member is not None and member.lowest > 1:
            families.member(spec, is_single=True)
    paths = [path for path in folder.rglob("*.xz") if path.name in asked]
    return {path.name: made for path in paths if (made := read_whole(path)) is not None}


def names_for(step: StepSpec) -> set[str]:
    """Return the names of the families that may serve a step, but for those that follow from
    skeletons.
    """
    keys = [
        dataclasses.replace(key, is_single=is_single)
        for key in family_keys_of(canonical_step(step))
        for is_single in (False, True)
    ]
    return {name_of(key) for key in keys if ShippedSkeletons().family(key) is None}


def about(model: str) -> About:
    """Return what an archive says of a model's network."""
    step = next(steps_of(model))
    values = json.loads(json.dumps(config_of(step).to_dict()))
    return About(model, library_versions(), step.config_json, values)


def entries(path: Path) -> dict[str, bytes]:
    """Return the families of an archive; none where it is missing."""
    if not path.exists():
        return {}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != ABOUT}


def differences(path: Path, families: dict[str, bytes]) -> list[str]:
    """Return the names of families that are not those of the archive."""
    kept = entries(path)
    return sorted(name for name in kept.keys() | families if kept.get(name) != families.get(name))


def misnamed(model: str, path: Path, *, in_parts: bool = False) -> list[str]:
    """Return the entries of an archive that none of its steps asks for, and the steps for which it
    has none and no skeleton is there.
    """
    present = frozenset(entries(path))
    asked, problems = set[str](), []
    for step in steps_of(model, in_parts=in_parts):
        names = names_for(step)
        first = [name_of(key) for key in family_keys_of(canonical_step(step))[:1]]
        if first and first[0] in names and not names & present:
            problems.append(f"no recording of {step.key()}")
        asked |= names
    return [*problems, *(f"{name} is asked for by no step" for name in sorted(present - asked))]


def archives() -> Iterator[tuple[str, Path, bool]]:
    """Yield all that these commands make: the model or recipe, its file, and whether it is in
    parts.
    """
    for what in (*RECIPES, *TUNED, *MODELS, *WINDOWED):
        yield what, _path(what, in_parts=False), False
    for model in MODELS_IN_PARTS:
        yield model, _path(model, in_parts=True), True


def check_names() -> bool:
    """Print what is wrong with names of archives and of their entries; return whether all are
    right.
    """
    known = {path: (what, in_parts) for what, path, in_parts in archives()}
    right = True
    for path in sorted(FOLDER.glob("*.zip")):
        what, in_parts = known.get(path, ("", False))
        problems = misnamed(what, path, in_parts=in_parts) if what else ["no command makes it"]
        right &= not problems
        print(path.name, "; ".join(problems) or "is what its command asks for", flush=True)
    return right


def _path(model: str, *, in_parts: bool) -> Path:
    model_type = json.loads(next(steps_of(model)).config_json)["model_type"]
    of = IN_PARTS if in_parts else FROM_THE_WINDOW * (model in WINDOWED)
    return FOLDER / f"{model_type}.{model.rpartition('/')[2].lower()}{of}.zip"


def main() -> None:
    """Make or check the archives, and print what was done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", help="all")
    parser.add_argument("--in-parts", action="store_true", help="on several devices")
    parser.add_argument("--minutes", type=float, default=20, help="no family starts after these")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--check-names", action="store_true", help="and record nothing")
    options = parser.parse_args()
    if options.check_names:
        sys.exit(not check_names())
    end_s, bad = time.monotonic() + 60 * options.minutes, False
    in_parts = options.in_parts
    for model in options.models or (
        MODELS_IN_PARTS if in_parts else [*RECIPES, *TUNED, *MODELS, *WINDOWED]
    ):
        path = _path(model, in_parts=in_parts)
        if options.check and not path.exists():
            continue
        start_s, kept = time.process_time(), {} if options.check else entries(path)
        with tempfile.TemporaryDirectory() as folder:
            families = families_of(model, Path(folder), end_s, in_parts=in_parts, kept=kept)
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
