"""Recordings that come with brimful and cannot be used: that is said, and the answer is the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from syrupy.assertion import SnapshotAssertion

import brimful

WORDS = (
    *("plan", "quickstart", "model=Qwen/Qwen3-0.6B", "tokenizer=null", "adapter.rank=16"),
    *("sequence_length=512", "--on", "a100-sxm4-40gb"),
)


def _asked(source: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from brimful.cli import main; main()", *WORDS],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ
        | {"PYTHONPATH": str(source), "BRIMFUL_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
    )


def test_a_damaged_archive_is_named_and_its_steps_are_recorded_instead(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    source, package = tmp_path / "src", Path(brimful.__file__).parent
    shutil.copytree(package, source / "brimful")
    archive = source / "brimful" / "rehearsal" / "skeletons" / "qwen3.zip"

    whole = _asked(source, tmp_path / "one")
    archive.write_bytes(archive.read_bytes()[:200_000])
    damaged = _asked(source, tmp_path / "other")

    assert (whole.returncode, damaged.returncode) == (0, 0)
    assert "note" not in whole.stderr
    said = " ".join(damaged.stderr.split())
    assert f"{archive} is damaged" in said
    assert said == snapshot
    assert damaged.stdout == whole.stdout
