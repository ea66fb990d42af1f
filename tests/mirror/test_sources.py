"""What of a run is copied, and how it is held."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from brimful.mirror.sources import (
    PINS,
    all_files,
    drop_pins,
    folder_of_step,
    local_steps,
    pinned,
    run_files,
)

Run = Any


def test_a_checkpoint_that_is_held_outlives_rotation(run: Run) -> None:
    run.save(2)
    with pinned(run.folder, 2) as held:
        for step in (4, 6):
            run.save(step)
        assert local_steps(run.folder) == [4, 6]
        assert {path.name for path in held.folder.iterdir()} >= {
            "MANIFEST.json",
            "model.safetensors",
            "state.json",
        }
        assert (held.step, held.best_step) == (2, None)
    assert not any((run.folder / PINS).iterdir())
    with pytest.raises(FileNotFoundError), pinned(run.folder, 2):
        pass


def test_without_hard_links_the_files_are_used_as_they_lie(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: object) -> None:
        raise OSError("not here")

    monkeypatch.setattr(os, "link", refuse)
    run.save(2, best=2)
    with pinned(run.folder, 2) as held:
        assert held.folder == folder_of_step(run.folder, 2)
        assert held.best_step == 2
    assert held.folder.is_dir()


def test_two_checkpoints_of_a_step_are_told_apart(run: Run) -> None:
    versions = []
    for best in (None, 2):
        run.save(2, best=best)
        with pinned(run.folder, 2) as held:
            versions.append(held.version)
    assert versions[0] != versions[1]


def test_leases_pins_checkpoints_and_half_written_files_are_not_the_runs(run: Run) -> None:
    run.save(2)
    run.finish()
    for name in (
        "writer.lock",
        "mirror.json",
        ".plan.json.1.tmp",
        "model.tmp-12/x",
        "model.replaced-12/x",
        f"{PINS}/2/x",
    ):
        path: Path = run.folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("")
    own = ["metrics.jsonl", "plan.json", "recipe.yaml", "run.json"]

    assert [path.name for path in run_files(run.folder)] == own
    assert sorted(path.name for path in all_files(run.folder).values()) == sorted(
        [*own, "model.safetensors", "bleu.json"]
    )
    drop_pins(run.folder)
    assert not (run.folder / PINS).exists()
    shutil.rmtree(run.folder / "checkpoints")
    assert local_steps(run.folder) == []
