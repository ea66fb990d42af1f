"""A model's folder is what was written, or it is refused."""

import os
import time
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base import manifest
from brimful.base.env import cache_folder
from brimful.base.errors import RunFolderError
from brimful.base.manifest import MANIFEST, note_hashes, require_sound, sha256_of
from brimful.base.rundir import read_json, write_json_atomically

LONG_AGO_NS = 10**18


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"width": 8}')
    (made / "model.safetensors").write_bytes(b"weights")
    note_hashes(made)
    return made


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are hashed from here on."""
    names: list[str] = []

    def count(path: Path) -> str:
        names.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(manifest, "sha256_of", count)
    return names


def test_a_folder_as_it_was_written_passes_and_so_does_one_without_a_manifest(
    folder: Path,
) -> None:
    require_sound(folder)
    (folder / "README.md").write_text("about it")
    require_sound(folder)
    (folder / MANIFEST).unlink()
    require_sound(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"weightz"),
        ("model.safetensors", b"weight"),
        ("model.safetensors", None),
        ("config.json", b'{"width": 9}'),
        ("adapter_config.json", b"{}"),
        ("chat_template.jinja", b""),
        (MANIFEST, b"{"),
        (MANIFEST, b"[]"),
        (MANIFEST, b"{}"),
    ],
)
def test_what_is_lost_changed_or_added_is_refused(
    folder: Path, refuses: Refuses, name: str, content: bytes | None
) -> None:
    require_sound(folder)
    path = folder / name
    path.unlink() if content is None else path.write_bytes(content)
    with refuses(RunFolderError, names=[str(folder), name]):
        require_sound(folder)


def test_one_wrong_digit_of_a_hash_is_damage_of_the_manifest(
    folder: Path, refuses: Refuses
) -> None:
    path = folder / MANIFEST
    digits = sha256_of(folder / "config.json")
    other = ("0" if digits[0] != "0" else "1") + digits[1:]
    path.write_text(path.read_text().replace(digits, other))
    with refuses(RunFolderError, names=[MANIFEST, "checksum"]):
        require_sound(folder)


def test_files_are_hashed_again_when_their_size_or_times_change(
    folder: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_SETTLED_AFTER_S", -1.0)
    require_sound(folder)
    require_sound(folder)
    assert sorted(hashed) == ["config.json", "model.safetensors"]

    os.utime(folder / "config.json", ns=(LONG_AGO_NS, LONG_AGO_NS))
    require_sound(folder)
    assert sorted(hashed) == ["config.json", "config.json", "model.safetensors"]


def test_decay_that_changes_no_time_is_found_after_a_day(
    folder: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(manifest, "_SETTLED_AFTER_S", -1.0)
    require_sound(folder)
    content, state = b"weightz", manifest._state_of(folder / "model.safetensors")
    (folder / "model.safetensors").write_bytes(content)
    monkeypatch.setattr(manifest, "_state_of", lambda path: state)  # as decay leaves it
    hashed.clear()
    (memory,) = (cache_folder() / "verified").iterdir()
    known = read_json(memory)
    write_json_atomically(memory, {**known, "config.json": [*state, known["config.json"][-1]]})
    require_sound(folder)
    assert hashed == []

    a_day_ago = time.time() - 25 * 3600
    os.utime(memory, (a_day_ago, a_day_ago))
    with refuses(RunFolderError, names=["model.safetensors"]):
        require_sound(folder)


def test_a_file_that_has_just_changed_is_not_trusted_by_its_times(
    folder: Path, hashed: list[str]
) -> None:
    require_sound(folder)
    require_sound(folder)
    assert hashed.count("model.safetensors") == 2


def test_a_cache_that_is_damaged_or_cannot_be_written_costs_time_only(
    folder: Path, tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_SETTLED_AFTER_S", -1.0)
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("BRIMFUL_CACHE", str(blocked))
    require_sound(folder)
    require_sound(folder)
    assert hashed.count("config.json") == 2
