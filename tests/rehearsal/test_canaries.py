"""Recordings that come with brimful are those that the present code and libraries make, to the
byte: a few of them are made anew.
"""

import pytest

from brimful.planning.family_file import to_bytes
from brimful.planning.family_key import TraceFamilyKey, family_keys_of
from brimful.rehearsal.shipped import FOLDER, ShippedFamilies, agree, read_entry
from brimful.rehearsal.shipped_skeletons import (
    SKELETONS,
    about_type,
    name_of_skeleton,
    network_of_key,
)
from brimful.rehearsal.store import canonical_step
from brimful.rehearsal.tracer import trace_family
from ship_families import archives, misnamed, steps_of
from ship_skeletons import Asked, recorded
from ship_traces import contents, kept, traced

A100, T4 = "NVIDIA A100-SXM4-40GB", "Tesla T4"
CANARIES = {
    "an 8-bit optimizer": ("meta-llama/Llama-3.1-8B", T4, "full", 2048, True, "8bit"),
    "tied heads": ("HuggingFaceTB/SmolLM2-135M", T4, "full", 2048, False, "fused"),
    "4 bits and windows": ("mistralai/Mistral-7B-v0.1", A100, "QLoRA", 2048, False, "fused"),
    "biases, any length": ("Qwen/Qwen2.5-7B", T4, "QLoRA", 1000, True, "fused"),
    "norms of heads, any length": ("Qwen/Qwen3-0.6B", A100, "full", 1000, False, "fused"),
    "capped scores": ("google/gemma-2-2b", A100, "LoRA", 2048, False, "fused"),
    "adapters on a CPU": (
        "HuggingFaceTB/SmolLM2-135M",
        "CPU in bf16",
        "LoRA",
        2048,
        False,
        "fused",
    ),
    "a key head for each query head": ("meta-llama/Llama-2-7b-hf", T4, "LoRA", 2048, True, "fused"),
}
"""Model, card, method, length, whether blocks are recomputed, optimizer."""


def _key(
    model: str, card: str, method: str, length: int, recompute: bool, optimizer: str
) -> TraceFamilyKey:
    keys = Asked((card,), (method,), (length,)).keys_of(model)
    return next(
        key for key in keys if (key.spec.recompute, key.spec.optimizer) == (recompute, optimizer)
    )


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)
def test_a_recording_made_anew_is_the_one_that_comes_with_brimful(
    canary: tuple[str, str, str, int, bool, str],
) -> None:
    key = _key(*canary)
    path = SKELETONS / f"{key.spec.config['model_type']}.zip"
    about = about_type(path)
    assert about is not None
    if not agree(about.versions):
        pytest.skip(f"recordings are of {about.versions}, and not used with these libraries")
    network = network_of_key(key, about.defaults)

    shipped = read_entry(path, name_of_skeleton(key, network.structure))

    assert shipped is not None
    assert recorded(key, network) == shipped


def test_a_family_made_anew_is_the_one_that_comes_with_brimful() -> None:
    """Where this fails, raise `shipped.TRACES` and run benchmarks/ship_families.py."""
    key = family_keys_of(canonical_step(next(steps_of("quickstart"))))[0]

    kept = ShippedFamilies().read(key)

    assert kept is not None
    assert kept == to_bytes(trace_family(key))


def test_a_trace_made_anew_is_the_one_that_comes_with_brimful() -> None:
    """Where this fails, raise `shipped.TRACES` and run benchmarks/ship_traces.py."""
    made, shipped = traced("quickstart"), kept("quickstart")

    assert len(shipped) == 4  # in fp32 and in bf16, all micro-batches and one row
    assert contents(made) == contents(shipped)


def test_archives_hold_what_their_commands_make_and_nothing_else() -> None:
    """`python benchmarks/ship_families.py --check` makes all anew and compares their bytes."""
    known = {path: (what, in_parts) for what, path, in_parts in archives()}

    found = {path.name: path in known for path in FOLDER.glob("*.zip")}
    assert all(found.values()), found
    wrong = {
        path.name: misnamed(what, path, in_parts=in_parts)
        for path, (what, in_parts) in known.items()
        if path.exists()
    }
    assert not any(wrong.values()), wrong
