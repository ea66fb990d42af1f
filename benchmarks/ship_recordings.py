"""Make the recordings that come with brimful: families of all steps that plans of the models most
asked for, and of some shipped recipes, need on every kind of card (docs/plan.md).

    python benchmarks/ship_recordings.py [--questions WORD ...] [--types TYPE ...] [--minutes 60]

Archives by model type lie in src/brimful/rehearsal/recordings. What is there is not made again
(delete an archive first), and nothing is dropped. Several processes may work at the same time on
different types. A test asks the same questions, and makes some families anew
(tests/rehearsal/test_canaries.py).
"""

import argparse
import dataclasses
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig

from archives import families_in, write_archive
from brimful.base.errors import BrimfulError
from brimful.chains.plans import SurveyRequest, survey_jobs
from brimful.hardware import catalog as devices
from brimful.hardware.device import Abilities
from brimful.hardware.groups import Group, parse
from brimful.model import catalog as models
from brimful.model.registered import register
from brimful.planning.architecture import BLOCKS, KEYS, Widths
from brimful.planning.block_rows import NEIGHBOURS, Irregular
from brimful.planning.compiled import Untraced
from brimful.planning.family import Family
from brimful.planning.family_file import from_bytes, to_bytes
from brimful.planning.family_key import LONGEST, TraceFamilyKey
from brimful.planning.memory import Replays
from brimful.planning.remedies import remedies
from brimful.planning.specs import model_facts
from brimful.planning.step import StepSpec, canonical
from brimful.planning.surveyed import Surveyed
from brimful.recipe import Recipe, load
from brimful.rehearsal.shipped import (
    FOLDER,
    About,
    library_versions,
    name_of,
    widened,
)
from brimful.rehearsal.store import NO_FAMILY, StoredFamilies, StoredTraces, canonical_step
from brimful.rehearsal.tracer import record_family

MODELS = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.2-3B",
    "meta-llama/Llama-3.1-70B",
    "meta-llama/Meta-Llama-3-8B",
    "meta-llama/Llama-2-7b-hf",
    "HuggingFaceTB/SmolLM2-135M",
    "HuggingFaceTB/SmolLM2-1.7B",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen2.5-3B",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen2.5-14B",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-8B",
    "google/gemma-2-2b",
    "google/gemma-2-9b",
    "allenai/OLMo-2-1124-7B",
    "ibm/PowerLM-3b",
)
"""The most asked for."""
NEWER = (
    "Qwen/Qwen3.5-0.8B",
    "Qwen/Qwen3.5-2B",
    "Qwen/Qwen3.5-4B",
    "Qwen/Qwen3.5-9B",
    "Qwen/Qwen3.5-35B-A3B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "google/gemma-3-270m",
    "google/gemma-3-1b-pt",
    "google/gemma-3-4b-pt",
    "google/gemma-4-E2B",
    "google/gemma-4-E4B",
    "google/gemma-4-31B",
    "openai/gpt-oss-20b",
    "HuggingFaceTB/SmolLM3-3B",
    "microsoft/Phi-3.5-mini-instruct",
    "microsoft/phi-4",
    "mistralai/Mistral-7B-v0.3",
    "mistralai/Mistral-Small-24B-Base-2501",
    "mistralai/Ministral-3-8B-Base-2512",
    "zai-org/GLM-4-9B-0414",
    "zai-org/GLM-4.7-Flash",
    "LiquidAI/LFM2-1.2B",
    "LiquidAI/LFM2-8B-A1B",
)
"""Of 2024 to 2026. Most are of types whose blocks differ, which no family of every width serves: how
most people tune them on NVIDIA's cards is recorded for each by itself.
"""
IN_PARTS = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen2.5-32B",
    "Qwen/Qwen2.5-72B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B",
)
"""Most asked for on several devices that hold the model in parts."""
METHODS = {
    "LoRA": ("adapter.rank=16",),
    "QLoRA": ("adapter.rank=16", "quantize=nf4"),
    "full": (),
}
"""How most people tune."""
LENGTH = 2048
RECIPES = (
    *("code-full", "code-offline-base", "code-qlora", "code-rank-study", "code-rft"),
    *("code-smollm2", "code-smollm2-full", "code-smollm2-qlora", "continue-text", "gpt-124m"),
    *("gsm8k-rft", "lora", "moderation", "moderation-minilm", "moderation-offline"),
    *("okadfa-ablation", "okadfa-small", "okadfa-wikitext", "quickstart", "shakespeare-char"),
    *("tiny-encoder", "tiny-gpt", "tiny-gpt-cloud", "unit-base", "unit-rft", "wikitext2-small"),
)
"""Shipped recipes that are asked about on every kind of card."""
EVERYWHERE = "code-lora"
"""One that is asked about on all cards."""
SMALL = ("quickstart", "shakespeare-char", "wikitext2-small", "code-smollm2")
"""Those that are trained on a CPU first, whose attention in blocks gives recordings of one network
and length.
"""
CARDS = (
    "NVIDIA A100-SXM4-40GB",
    "Tesla T4",
    "AMD Instinct MI300X",
    "Tesla P100-PCIE-16GB",
    "Apple M1",
    "Apple M3 Max",
)
"""With a flash kernel; without; another maker's; without 16-bit matrix units; without kernels of
NVIDIA's, and without or with 16-bit precision.
"""
GROUPS = ("2 x Tesla T4", "2 x NVIDIA L4", "8 x NVIDIA H100 80GB HBM3")
"""A recording in parts serves every number of devices."""
_CPU = dataclasses.replace(
    devices.get("Apple M1"), name="CPU", kind="cpu", dense_flop_per_s={"fp32": 1e12, "bf16": 4e12}
)
CPUS = {
    f"CPU in {precision}": dataclasses.replace(_CPU, abilities=Abilities(bf16=precision == "bf16"))
    for precision in ("fp32", "bf16")
}


@dataclass(frozen=True)
class Question:
    """A recipe on several devices, none of which is looked at closely: that takes long and asks for
    no other step.

    Attributes:
        name: Says it.
        words: Of the recipe.
        devices: Their names, as `--on` takes them or among `CPUS`.
    """

    name: str
    words: tuple[str, ...]
    devices: tuple[str, ...]

    @property
    def recipe(self) -> Recipe:
        """Return the recipe."""
        return load(self.words[0], list(self.words[1:]))

    @property
    def groups(self) -> list[Group]:
        """Return its devices, or groups of them, one by one."""
        return [Group(CPUS[name]) if name in CPUS else parse(name) for name in self.devices]

    @property
    def model_type(self) -> str:
        """Return the type of its model."""
        try:
            return str(model_facts(self.recipe).config["model_type"])
        except BrimfulError:
            return ""


def questions() -> Iterator[Question]:
    """Yield all questions that record nothing."""
    for model in (*MODELS, *NEWER):
        for method in METHODS:
            if method == "full" and model in NEWER:
                continue
            cards = CARDS if method == "LoRA" and model in MODELS else CARDS[:2]
            yield Question(f"{model} {method}", _tuning(model, method, 16), cards)
    for model in IN_PARTS:
        for method in METHODS:
            yield Question(f"{model} {method} in parts", _tuning(model, method, 64), GROUPS)
    for name in RECIPES:
        yield Question(name, (name,), (*CARDS, *(CPUS if name in SMALL else ())))
    yield Question(EVERYWHERE, (EVERYWHERE,), tuple(devices.names()))


def _tuning(model: str, method: str, sequences: int) -> tuple[str, ...]:
    """Return the words of a recipe that tunes a model with batches of so many sequences."""
    found = models.find(model)
    length = min(LENGTH, (found and found.context) or LENGTH)
    sizes = (f"sequence_length={length}", f"batch.sequences={sequences}")
    return ("quickstart", f"model={model}", "tokenizer=null", *sizes, *METHODS[method])


class AskedTraces:
    """A Tracer that remembers nothing but steps.

    Args:
        families: From which they are taken.
    """

    def __init__(self, families: StoredFamilies) -> None:
        self._families = families
        self._replays: dict[StepSpec, Replays] = {}

    def __call__(self, spec: StepSpec) -> Replays:
        if spec.compiled != "none":
            raise Untraced("a compiled step")
        key = canonical_step(spec)
        if key not in self._replays:
            self._replays[key] = Replays(StoredTraces(key, None, self._families), {})
        return self._replays[key]


def ask(question: Question, families: StoredFamilies) -> list[str]:
    """Plan what a question asks for; return why that cannot be, on devices where it cannot."""
    try:
        traces = AskedTraces(families)
        surveyed = survey_jobs(question.recipe, question.groups, SurveyRequest(traces))
        for group, found in zip(question.groups, surveyed, strict=True):
            if group.count == 1 and isinstance(found, Surveyed) and found.verdict != "fits":
                derived = found.derived
                remedies(derived.prepared, traces, recomputes=derived.plan.recompute)
    except BrimfulError as error:
        return [str(error)]
    return [found.reason for found in surveyed if not isinstance(found, Surveyed)]


class Shipping(StoredFamilies):
    """Families that are recorded into archives, each of all networks of a structure where it can
    be.

    Args:
        records: Whether what is missing is recorded; else it is only noted.

    Attributes:
        kept: Files by model type and name.
        missing: Names that are not kept.
    """

    def __init__(self, *, records: bool = True) -> None:
        super().__init__(None, None)
        self._records = records
        self.kept: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.missing: list[str] = []
        self._changed: set[str] = set()
        for path in FOLDER.glob("*.zip"):
            self.kept[path.stem] = families_in(path)

    def _load(self, key: TraceFamilyKey, fewest: int) -> Family | None:
        model_type = str(key.spec.config["model_type"])
        wide = widened(key, defaults_of(model_type))
        if wide is not None and wide[1].blocks > min(NEIGHBOURS) + 3:
            family = self._family(model_type, wide[0], key, wide[1], fewest)
            if family is not None and (own := family.of(wide[1])) is not None:
                return own
        return self._family(model_type, key, key, None, fewest)

    def _family(
        self,
        model_type: str,
        key: TraceFamilyKey,
        own: TraceFamilyKey,
        widths: Widths | None,
        fewest: int,
    ) -> Family | None:
        name = name_of(key, defaults_of(model_type))
        content = self.kept[model_type].get(name)
        if content is None:
            self.missing.append(name)
            if not self._records:
                raise LookupError(said(own))
            start_s = time.process_time()
            content = recorded(key, own, widths, fewest)
            self.kept[model_type][name] = content
            self._changed.add(model_type)
            took_s = time.process_time() - start_s
            print(f"  {said(key)}: {len(content):,} bytes, {took_s:.0f} CPU s", flush=True)
        return None if content == NO_FAMILY else from_bytes(content)

    def write(self) -> None:
        """Write the archives that have changed."""
        FOLDER.mkdir(exist_ok=True)
        for model_type in self._changed:
            about = About(library_versions(), defaults_of(model_type))
            write_archive(FOLDER / f"{model_type}.zip", about, self.kept[model_type])


def recorded(
    key: TraceFamilyKey, own: TraceFamilyKey, widths: Widths | None, fewest: int = 0
) -> bytes:
    """Return the content of a family's file.

    Args:
        key: Of the family.
        own: Of one of its networks.
        widths: Of that one, where the family is of every one.
        fewest: As in `record_family`.
    """
    if widths is not None:
        plain = {
            name: each
            for name, each in own.spec.config.items()
            if name not in (*KEYS.values(), BLOCKS)
        }
        for name in ("max_position_embeddings", "sliding_window"):
            if plain.get(name):
                plain[name] = LONGEST
        key = dataclasses.replace(
            key, spec=dataclasses.replace(key.spec, config_json=canonical(plain))
        )
    try:
        return to_bytes(record_family(key, widths, fewest))
    except Irregular as irregular:
        print(f"  {said(key)}: {irregular}", flush=True)
        return NO_FAMILY


_DEFAULTS: dict[str, dict[str, Any]] = {}


def defaults_of(model_type: str) -> dict[str, Any]:
    """Return what a config of this type says where nothing is given."""
    if model_type not in _DEFAULTS:
        register()  # brimful's own types, whatever was imported before
        config = AutoConfig.for_model(model_type).to_dict()
        _DEFAULTS[model_type] = json.loads(json.dumps(config))
    return _DEFAULTS[model_type]


def said(key: TraceFamilyKey) -> str:
    """Return what a family's step is, in words."""
    spec = key.spec
    words = [spec.weights, spec.autocast, spec.attention, spec.optimizer, spec.quantize]
    words += ["LoRA" if spec.adapter else "full", "cuda" if spec.cuda else "not cuda"]
    words += ["recomputed"] * bool(spec.recompute) + ["one sequence"] * key.is_single
    words += ["every width"] * key.any_width + ["every length"] * (key.lengths is not None)
    return " ".join([str(spec.config.get("model_type")), *words])


def main() -> None:
    """Make or check the archives, and print what was done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--questions", nargs="+", default=[""], help="words in their names; all")
    parser.add_argument("--types", nargs="+", help="of models; all")
    parser.add_argument("--minutes", type=float, default=60, help="nothing is asked after these")
    options = parser.parse_args()
    end_s, families = time.monotonic() + 60 * options.minutes, Shipping()
    for question in questions():
        if not any(word in question.name for word in options.questions):
            continue
        if options.types and question.model_type not in options.types:
            continue
        if time.monotonic() > end_s:
            break
        before = len(families.missing)
        why = ask(question, families)
        print(question.name, *why, flush=True)
        if len(families.missing) > before:
            families.write()


if __name__ == "__main__":
    main()
