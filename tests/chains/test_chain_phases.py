"""Measured times of a chain's phases, beside what was predicted (whole chains: test_rounds)."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from brimful.chains.chain_phases import phases_beside_measured
from rich.console import Console

from brimful.base.rundir import write_json_atomically
from brimful.chains import pipeline
from brimful.recipe import Recipe


def test_tasks_that_share_answers_count_their_writing_once(
    tiny: Callable[..., Recipe], tmp_path: Path
) -> None:
    """A recipe without rounds has no phases to predict, and none are made up."""
    recipe = tiny("training.steps=1")
    run = pipeline.train(recipe, Console(file=StringIO())).folder
    base = tmp_path / "base"
    (base / "evaluations").mkdir(parents=True)
    (base / "recipe.yaml").write_text("name: base\n")
    for task, judging_s in (("syntax", 0.0), ("bleu", 0.5)):
        path = base / "evaluations" / f"{task}.json"
        values = {"metrics": {task: {"value": 1.0}}, "seconds": 7.0}
        judged = {"verification_seconds": judging_s}
        write_json_atomically(path, values | judged, with_checksum=True)

    (run / "plan.json").unlink()
    records = phases_beside_measured(recipe, base, [run], [{"seconds": 3.0}, {"seconds": 4.0}])

    measured = {record["name"]: record["measured_s"] for record in records}
    assert measured["sampling"] == 7.0
    assert measured["task answers"] == pytest.approx(7.5)
    assert measured["training"] > 0
    assert all("expected_s" not in record for record in records)
