"""Recordings that come with brimful and cannot be used: that is said, and the answer is the same."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.chains import plans
from brimful.rehearsal import store
from brimful.rehearsal.shipped import FOLDER, Shipped, obstacle

WORDS = (
    *("plan", "quickstart", "model=Qwen/Qwen3-0.6B", "tokenizer=null", "adapter.rank=16"),
    *("sequence_length=512", "--on", "a100-sxm4-40gb"),
)


@pytest.mark.long
def test_a_damaged_archive_is_named_and_its_steps_are_recorded_instead(
    said: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    whole_code, whole, nothing = said(*WORDS)
    folder = shutil.copytree(FOLDER, tmp_path / "recordings")
    archive = folder / "qwen3.zip"
    archive.write_bytes(archive.read_bytes()[:100_000])
    monkeypatch.setattr(store, "Shipped", lambda _: Shipped(folder))
    monkeypatch.setattr(plans, "obstacle", partial(obstacle, folder=folder))
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "empty"))

    code, damaged, note = said(*WORDS)

    assert (whole_code, code) == (0, 0)
    assert "note" not in nothing
    told = " ".join(note.split())
    assert f"{archive} is damaged" in told
    assert told == snapshot
    assert damaged == whole
    assert list((tmp_path / "empty" / "traces").glob("row-families-*/*"))
