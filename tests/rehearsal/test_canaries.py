"""Recordings that come with brimful are those that the present code and libraries make, to the byte:
a few of them are made anew. And they serve what is asked.
"""

import dataclasses
from collections.abc import Mapping

import pytest

from brimful.base.types import Json
from brimful.planning.family_file import opened
from brimful.planning.family_key import TraceFamilyKey, family_keys_of
from brimful.planning.survey import prepare
from brimful.recipe import load
from brimful.rehearsal.shipped import FOLDER, Shipped, agree, name_of, widened
from brimful.rehearsal.store import StoredFamilies, canonical_step
from ship_recordings import (
    METHODS,
    Question,
    ask,
    defaults_of,
    devices,
    questions,
    recorded,
)

A100, T4, M3 = "NVIDIA A100-SXM4-40GB", "Tesla T4", "Apple M3 Max"
CANARIES: Mapping[str, tuple[str, str, str, bool, Json]] = {
    "an 8-bit optimizer": ("meta-llama/Llama-3.1-8B", T4, "full", False, {"optimizer": "8bit"}),
    "tied heads": ("HuggingFaceTB/SmolLM2-135M", T4, "full", False, {}),
    "4 bits and windows": ("mistralai/Mistral-7B-v0.1", A100, "QLoRA", False, {}),
    "biases": ("Qwen/Qwen2.5-7B", T4, "QLoRA", True, {}),
    "norms of heads": ("Qwen/Qwen3-0.6B", A100, "full", False, {}),
    "capped scores": ("google/gemma-2-2b", A100, "LoRA", False, {}),
    "adapters, not on CUDA": ("HuggingFaceTB/SmolLM2-135M", M3, "LoRA", False, {}),
    "a key head for each query head": ("meta-llama/Llama-2-7b-hf", T4, "LoRA", True, {}),
    "a model in parts": ("Qwen/Qwen2.5-7B", A100, "QLoRA", False, {"ranks": 4}),
    "blocks of several kinds": ("Qwen/Qwen3.5-0.8B", A100, "LoRA", False, {}),
}
"""Model, card, method, whether blocks are recomputed, other values of the step."""


def _key(model: str, card: str, method: str, recompute: bool, values: Json) -> TraceFamilyKey:
    words = [f"model={model}", "tokenizer=null", "sequence_length=2048", *METHODS[method]]
    recipe = load("quickstart", [*words, "batch.sequences=16"])
    step = prepare(recipe, devices.get(card)).spec(recompute=recompute)
    return family_keys_of(dataclasses.replace(canonical_step(step), **values))[0]


def _shipped(key: TraceFamilyKey, own: TraceFamilyKey) -> bytes | None:
    shipped = Shipped()
    about = shipped.about(own)
    if not agree(about.versions):
        pytest.skip(f"recordings are of {about.versions}, and not used with these libraries")
    return shipped.read(own, name_of(key, about.defaults))


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
@pytest.mark.long_but("tied heads")
def test_a_recording_made_anew_is_the_one_that_comes_with_brimful(
    canary: tuple[str, str, str, bool, Json],
) -> None:
    """Where this fails, raise `shipped.TRACES` and run benchmarks/ship_recordings.py."""
    own = _key(*canary)
    key, widths = widened(own, defaults_of(str(own.spec.config["model_type"]))) or (own, None)

    shipped = _shipped(key, own)

    assert shipped is not None
    assert opened(recorded(key, own, widths)) == shipped


def test_archives_are_half_as_large_as_they_were() -> None:
    """7.15 MB before lengths, ranks and widths had one kind of recording."""
    assert sum(path.stat().st_size for path in FOLDER.glob("*.zip")) <= 3_580_000


@pytest.mark.parametrize("question", [pytest.param(each, id=each.name) for each in questions()])
@pytest.mark.long_but(
    *("quickstart", "lora", "code-qlora", "moderation", "tiny-encoder", "okadfa-small"),
    *("meta-llama/Llama-3.1-8B QLoRA", "Qwen/Qwen3.5-9B LoRA", "HuggingFaceTB/SmolLM2-135M full"),
)
def test_what_ships_serves_what_is_asked(
    question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No plan of a shipped recipe, or of one of the models most asked for, records anything on any
    kind of device. Where one would, run benchmarks/ship_recordings.py.
    """
    recordings: list[str] = []

    def refuse(key: TraceFamilyKey, fewest: int) -> None:
        recordings.append(key.spec.key())

    monkeypatch.setattr("brimful.rehearsal.store._recorded", refuse)

    ask(question, StoredFamilies(None))

    assert recordings == []
