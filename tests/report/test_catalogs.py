"""The catalogs as tables: complete, and no line is wider than the terminal."""

from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.hardware import catalog
from brimful.report.catalogs import device_lines, find_devices, find_models, model_lines


@pytest.fixture(autouse=True)
def _no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def test_devices_stand_a_line_each_within_the_terminal() -> None:
    everything = find_devices("")
    assert [each.name for each in everything] == catalog.names()
    for width in (80, 120):
        lines = device_lines(everything, width)
        assert max(map(len, lines)) <= width
        assert len(lines) == 1 + len(everything) + 4
    assert "full name" not in device_lines(everything, 80)[0]
    assert "full name" in device_lines(everything, 120)[0]


def test_a_filter_selects_devices(snapshot: SnapshotAssertion) -> None:
    assert "\n".join(device_lines(find_devices("a100"), 120)) == snapshot
    assert [each.short_name for each in find_devices("m3 max")] == ["m3-max"]


def test_models_stand_in_80_columns_with_licence_and_gate(snapshot: SnapshotAssertion) -> None:
    lines = model_lines(find_models(""))
    assert max(map(len, lines)) <= 80
    assert "\n".join(model_lines(find_models("llama 3.1-8b"))) == snapshot
    assert "\n".join(model_lines(find_models("TinyLlama"))) == snapshot


def test_what_is_on_this_disk_is_marked(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / "1"
    kept.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (kept / name).write_text("{}")
    runs = tmp_path / "runs"
    (runs / "mine").mkdir(parents=True)
    base_model.rename(runs / "mine" / "model")
    by_id = {each.id: each for each in find_models("")}
    assert by_id["Qwen/Qwen3-0.6B"].at_hand == "hub cache"
    assert by_id[str(runs / "mine" / "model")].at_hand == "run"
    assert by_id["Qwen/Qwen3-1.7B"].at_hand is None
    assert model_lines(find_models("qwen3-0.6b"))[1].startswith("* Qwen/Qwen3-0.6B ")


def test_a_word_that_nothing_has_is_refused(refuses: Refuses) -> None:
    with refuses(RequestError):
        find_devices("t44")
    with refuses(RequestError):
        find_models("SmolLM9-135M")
