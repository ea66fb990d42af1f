"""A run folder with real checkpoints of a few bytes, and its mirror, without training."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fixture_types import MakeRecipe

from brimful.base.rundir import read_json, write_json_atomically
from brimful.mirror.copier import Patience
from brimful.mirror.files import Files
from brimful.mirror.listener import Mirror
from brimful.mirror.place import Place
from brimful.recipe import Recipe
from brimful.training.admission import Admission, describe
from brimful.training.checkpoint import CheckpointStore, Snapshot

QUICK = Patience(
    points_s=0.0,
    points_share=1e9,
    logs_s=0.05,
    log_share=0.9,
    first_retry_s=0.02,
    last_retry_s=0.1,
    final_retries_s=(0.02, 0.05),
)


@dataclass
class Run:
    """A described run that writes a checkpoint when it is told to."""

    folder: Path
    recipe: Recipe
    drive: Path
    said: list[str]

    def save(self, step: int, *, best: int | None = None, keep: int = 2) -> None:
        """A journal record and a checkpoint of a step."""
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as journal:
            journal.write(json.dumps({"kind": "step", "step": step}) + "\n")
        tensors = {
            name: {"x": torch.full((40,), float(step))} for name in ("model", "optimizer", "random")
        }
        journal_bytes = (self.folder / "metrics.jsonl").stat().st_size
        state = {"progress": {"step": step, "best_step": best}, "journal_bytes": journal_bytes}
        CheckpointStore(self.folder / "checkpoints", keep=keep).save(
            Snapshot(step, tensors, state, {"data": "d"}), protect_step=best
        )

    def finish(self) -> None:
        """An exported model and the status of a finished run."""
        (self.folder / "model").mkdir()
        (self.folder / "model" / "model.safetensors").write_bytes(b"weights")
        (self.folder / "evaluations").mkdir()
        (self.folder / "evaluations" / "bleu.json").write_text("{}")
        values = read_json(self.folder / "run.json")
        write_json_atomically(
            self.folder / "run.json", {**values, "status": "finished"}, with_checksum=True
        )

    @property
    def place(self) -> Place:
        return Place.of(str(self.drive), self.folder)

    @property
    def mirrored(self) -> Path:
        return self.drive / self.folder.name

    @property
    def run_id(self) -> str:
        found: str = json.loads((self.folder / "run.json").read_text())["id"]
        return found

    def mirror(self, files: Files | None = None, **patience: float) -> Mirror:
        """Its mirror, not started yet."""
        return Mirror(
            self.place,
            self.folder,
            self.said.append,
            files=files,
            patience=dataclasses.replace(QUICK, **patience),
        )  # type: ignore[arg-type]

    def copy(self, *, is_finished: bool = False, files: Files | None = None) -> Mirror:
        """Mirror all there is, once."""
        mirror = self.mirror(files)
        mirror.start(self.run_id, goes_on=not is_finished)
        mirror.finish(is_finished=is_finished)
        return mirror


@pytest.fixture
def run(tmp_path: Path, tiny: MakeRecipe) -> Run:
    folder, drive = tmp_path / "runs" / "tiny", tmp_path / "drive"
    folder.mkdir(parents=True)
    drive.mkdir()
    recipe = tiny(f"run.mirror={drive}")
    describe(Admission(folder, continues=False, finished=False, changed=()), recipe)
    (folder / "plan.json").write_text("{}")
    return Run(folder, recipe, drive, [])
