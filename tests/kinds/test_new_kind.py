"""A further kind of run needs one row, one module and one method, and nothing else."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import brimful.kinds
import brimful.training.methods
from brimful.base.rundir import read_journal, read_json
from brimful.chains import pipeline
from brimful.recipe import KINDS, Kind, Recipe

HERE = Path(__file__).parent


@pytest.fixture
def _pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kind `pairs` with the method `prefer`, as if their two files and their row were there."""
    for package, file, name in (
        (brimful.kinds, "toy_kind.py", "pairs"),
        (brimful.training.methods, "toy_method.py", "prefer"),
    ):
        folder = tmp_path / package.__name__
        folder.mkdir()
        shutil.copy(HERE / file, folder / f"{name}.py")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    pairs = Kind("pairs", ("prefer",), rows="texts", starts_from="published")
    monkeypatch.setitem(KINDS, "pairs", pairs)
    yield
    for module in ("brimful.kinds.pairs", "brimful.training.methods.prefer"):
        sys.modules.pop(module, None)


@pytest.mark.usefixtures("_pairs")
def test_a_kind_of_pairs_is_planned_trained_scored_and_reported(
    tuning: Callable[..., Recipe], tmp_path: Path
) -> None:
    rows = [
        {"prompt": f"say red {number}", "chosen": " red red red", "rejected": " blue blue"}
        for number in range(40)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    recipe = tuning("method=prefer", f"data.path={path}", "training.steps=6")

    report = pipeline.run(recipe, Console(file=StringIO(), width=160))

    folder = report.parent
    records = list(read_journal(folder / "metrics.jsonl"))
    losses = [record["loss"] for record in records if record["kind"] == "step"]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert {"validation"} <= set(read_json(folder / "scores.json"))
    assert "rejected" in read_json(folder / "data.json")["fingerprints"]
    assert "prefer" in report.read_text()
