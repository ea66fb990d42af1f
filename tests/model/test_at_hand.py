"""Models on this disk: what the hub library's cache holds whole, and what runs exported."""

import json
from pathlib import Path

from brimful.model.at_hand import cached_models, own_models


def _cached(cache: Path, name: str, *files: str) -> Path:
    folder = cache / ("models--" + name.replace("/", "--")) / "snapshots" / "0123abc"
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_text("{}")
    return folder


def test_a_cached_model_has_a_config_and_all_its_weights(tmp_path: Path) -> None:
    _cached(tmp_path, "owner/whole", "config.json", "model.safetensors")
    _cached(tmp_path, "older", "config.json", "pytorch_model.bin")
    _cached(tmp_path, "owner/only-asked-for", "config.json")
    _cached(tmp_path, "owner/no-config", "model.safetensors")
    part = _cached(tmp_path, "owner/half", "config.json", "model-1-of-2.safetensors")
    (part / "model-2-of-2.safetensors").symlink_to(tmp_path / "under-way")
    assert cached_models(tmp_path) == {"owner/whole", "older"}
    assert cached_models(tmp_path / "absent") == frozenset()


def test_whole_models_of_runs_are_counted_by_their_headers(base_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    runs = base_model.parent / "runs"
    (runs / "study" / "first").mkdir(parents=True)
    base_model.rename(runs / "study" / "first" / "model")
    adapters = runs / "adapted" / "model"
    adapters.mkdir(parents=True)
    (adapters / "adapter_config.json").write_text("{}")
    damaged = runs / "damaged" / "model"
    damaged.mkdir(parents=True)
    (damaged / "config.json").write_text("{")
    torn = runs / "torn" / "model"
    torn.mkdir(parents=True)
    (torn / "config.json").write_text(json.dumps({"max_position_embeddings": 4}))
    (torn / "model.safetensors").write_bytes(b"\xff" * 8 + b"{}{")

    [model] = own_models(runs)

    assert model.folder == runs / "study" / "first" / "model"
    assert model.context == 128
    assert model.parameters == AutoModelForCausalLM.from_pretrained(model.folder).num_parameters()
