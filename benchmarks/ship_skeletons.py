"""Make the skeletons that come with brimful: recordings of steps for every network of a structure,
whatever its widths and number of blocks (docs/plan.md).

    python benchmarks/ship_skeletons.py [--models NAME ...] [--minutes 20]

The models say which structures. Archives by model type lie in src/brimful/rehearsal/skeletons; what
is there is not made again (delete an archive first). skeletons_equal.py checks them.
"""

import argparse
import dataclasses
import itertools
import json
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig

from brimful.base.errors import PlanError
from brimful.hardware import catalog as devices
from brimful.hardware.device import Abilities
from brimful.model import catalog as models
from brimful.planning.architecture import (
    BLOCKS,
    KEYS,
    SMALL_STATES,
    SizedNetwork,
)
from brimful.planning.family import ShortFamily
from brimful.planning.family_file import to_bytes
from brimful.planning.family_key import LONGEST, TraceFamilyKey, family_keys_of
from brimful.planning.parametric import Irregular
from brimful.planning.skeleton_file import to_bytes as skeleton_to_bytes
from brimful.planning.step import StepSpec, canonical
from brimful.planning.survey import prepare
from brimful.recipe import Recipe, load, shipped_names
from brimful.rehearsal.shipped import ABOUT, library_versions, write_archive
from brimful.rehearsal.shipped_skeletons import (
    SKELETONS,
    AboutType,
    ShippedSkeletons,
    about_type,
    name_of_skeleton,
    network_of_key,
)
from brimful.rehearsal.skeletons import trace_skeleton
from brimful.rehearsal.store import canonical_step

MODELS = (
    "meta-llama/Llama-3.1-8B",
    "HuggingFaceTB/SmolLM2-135M",
    "google/gemma-2-2b",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-7B",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-8B",
    "meta-llama/Llama-2-7b-hf",
    "HuggingFaceTB/SmolLM2-1.7B",
    "Qwen/Qwen2.5-14B",
    "allenai/OLMo-2-1124-7B",
    "ibm/PowerLM-3b",
)
"""One of each structure, the most asked for first."""
LENGTHS = (2048, 1000)
"""One for all multiples of GRANULE, one for all others."""
METHODS = {
    "LoRA": ("adapter.rank=16",),
    "QLoRA": ("adapter.rank=16", "quantize=nf4"),
    "full": (),
}
CARDS = ("NVIDIA A100-SXM4-40GB", "Tesla T4", "Apple M1", "Tesla P100-PCIE-16GB")
"""With a flash kernel; without; without kernels or 16-bit precision of NVIDIA's; without the
latter.
"""
_CPU = dataclasses.replace(devices.get("Apple M1"), name="CPU", kind="cpu", dense_flop_per_s={})
CPUS = {
    "CPU in fp32": _CPU,
    "CPU in bf16": dataclasses.replace(
        _CPU,
        abilities=Abilities(bf16=True),
        dense_flop_per_s={"fp32": 1e12, "bf16": 4e12},
    ),
}


@dataclasses.dataclass(frozen=True)
class Asked:
    """Which steps are recorded.

    Attributes:
        cards: Names in the catalog of devices, or of CPUS.
        methods: Of METHODS.
        lengths: Of sequences, for published models.
    """

    cards: tuple[str, ...] = CARDS
    methods: tuple[str, ...] = tuple(METHODS)
    lengths: tuple[int, ...] = LENGTHS

    def keys_of(self, what: str) -> Iterator[TraceFamilyKey]:
        """Yield the families of these steps."""
        for step in self.steps_of(what):
            yield family_keys_of(canonical_step(step))[0]

    def steps_of(self, what: str) -> Iterator[StepSpec]:
        """Yield the steps that plans of a model, or of a recipe, ask for, those of remedies last."""
        if what in shipped_names():
            yield from self._steps([load(what)])
            return
        found = models.find(what)
        context = (found and found.context) or max(self.lengths)
        words = (f"model={what}", "tokenizer=null", "batch.sequences=16")
        for length in self.lengths:
            at = f"sequence_length={min(length, context)}"
            yield from self._steps(
                [load("quickstart", [*words, at, *METHODS[name]]) for name in self.methods]
            )

    def _steps(self, recipes: Sequence[Recipe]) -> Iterator[StepSpec]:
        eight_bit = []
        for card, recipe, recompute in itertools.product(self.cards, recipes, (False, True)):
            device = CPUS.get(card) or devices.get(card)
            try:
                prepared = prepare(recipe, device)
            except PlanError:  # refused before any step is asked for, as QLoRA on Apple GPUs
                continue
            yield prepared.spec(recompute=recompute)
            if recipe.adapter is None and device.kind == "cuda":
                eight_bit.append(prepared.spec(recompute=recompute, optimizer="8bit"))
        yield from eight_bit


SHIPPED = (Asked(), Asked(tuple(CPUS), ("LoRA",)))
"""What is recorded where nothing else is asked for. On CPUs most people tune adapters."""


def defaults_of(model_type: str) -> dict[str, Any]:
    """Return what a config of this type says where nothing is given."""
    values: dict[str, Any] = json.loads(json.dumps(AutoConfig.for_model(model_type).to_dict()))
    return values


def recorded(key: TraceFamilyKey, network: SizedNetwork) -> bytes:
    """Return the skeleton of a family's structure as the content of a file."""
    plain = {
        name: each for name, each in key.spec.config.items() if name not in (*KEYS.values(), BLOCKS)
    }
    for name in ("max_position_embeddings", "sliding_window"):
        if plain.get(name):
            plain[name] = LONGEST
    lengths = None if key.lengths is None else (key.lengths[0], LONGEST)
    spec = dataclasses.replace(key.spec, config_json=canonical(plain))
    widths = network.widths.values
    skeleton = trace_skeleton(
        dataclasses.replace(key, spec=spec, lengths=lengths, follows=""),
        every_head=widths["n"] == widths["g"],
        large=widths["h"] >= SMALL_STATES or spec.optimizer != "8bit",
    )
    return skeleton_to_bytes(skeleton)


def ship(model: str, asked: Asked, end_s: float) -> bool:
    """Record what is missing for a model's structure; return whether time was enough."""
    keys = list(dict.fromkeys(asked.keys_of(model)))
    config = keys[0].spec.config
    model_type = str(config["model_type"])
    path = SKELETONS / f"{model_type}.zip"
    about = about_type(path) or AboutType(library_versions(), defaults_of(model_type))
    kept = _entries(path)
    pending: list[tuple[TraceFamilyKey, bool]] = [(key, False) for key in keys]
    while pending:
        key, is_single = pending.pop(0)
        key = dataclasses.replace(key, is_single=is_single)
        network = network_of_key(key, about.defaults)
        name = name_of_skeleton(key, network.structure)
        if name not in kept:
            if time.monotonic() > end_s:
                return False
            start_s = time.process_time()
            try:
                kept[name] = recorded(key, network)
            except Irregular as irregular:
                print(f"{model} {said(key)}: {irregular}", flush=True)
                continue
            print(
                f"{model} {said(key)}: {len(kept[name]):,} bytes,"
                f" {time.process_time() - start_s:.0f} s of CPU time",
                flush=True,
            )
            SKELETONS.mkdir(exist_ok=True)
            write_archive(path, dataclasses.asdict(about), kept)
            about_type.cache_clear()
        family = ShippedSkeletons().family(key)
        if not is_single and family is not None and family.lowest > 1:
            pending.insert(0, (key, True))
    return True


def _entries(path: Path) -> dict[str, bytes]:
    if not path.exists():
        return {}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != ABOUT}


def said(key: TraceFamilyKey) -> str:
    """Return what a family's step is, in words."""
    spec = key.spec
    words = [spec.weights, spec.autocast, spec.attention, spec.optimizer, spec.quantize]
    words += ["LoRA" if spec.adapter else "full", "cuda" if spec.cuda else "not cuda"]
    words += ["recomputed"] * bool(spec.recompute) + ["one sequence"] * key.is_single
    words += ["any length"] * key.any_length
    return " ".join(words)


def content_of(family: ShortFamily) -> bytes:
    """Return all of a family but what the updates of its first recording held."""
    calls = {
        name: dataclasses.replace(
            each := getattr(family, name),
            calls=dataclasses.replace(each.calls, elements_L=np.zeros_like(each.calls.elements_L)),
        )
        for name in ("short", "longer")
    }
    return to_bytes(dataclasses.replace(family, **calls))


def main() -> None:
    """Make or check the skeletons, and print what was done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="or recipes")
    parser.add_argument("--minutes", type=float, default=20, help="nothing is recorded after these")
    parser.add_argument("--cards", nargs="+", help=f"also {', '.join(CPUS)}; all that ship")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    options = parser.parse_args()
    steps: tuple[Asked, ...] = SHIPPED
    if options.cards:
        steps = (Asked(tuple(options.cards), tuple(options.methods)),)
    end_s = time.monotonic() + 60 * options.minutes
    for asked, model in itertools.product(steps, options.models):
        if not ship(model, asked, end_s):
            break


if __name__ == "__main__":
    main()
