"""What the phases of a job took, from run folders."""

from pathlib import Path

import pytest
from finished_runs import train
from fixture_types import MakeRecipe

from brimful.base.rundir import write_json_atomically
from brimful.chains.measured_phases import phases_beside_measured
from brimful.chains.phases import Member
from brimful.planning.job import ANSWERS, SAMPLING, TRAINING


def test_tasks_that_share_answers_count_their_writing_once(
    tiny: MakeRecipe, tmp_path: Path
) -> None:
    """A plan that is gone leaves what was measured, and nothing is made up."""
    recipe = tiny("training.steps=1")
    run = train(recipe)
    base = tmp_path / "base"
    (base / "evaluations").mkdir(parents=True)
    (base / "recipe.yaml").write_text("name: base\n")
    for task, judging_s in (("syntax", 0.0), ("bleu", 0.5)):
        path = base / "evaluations" / f"{task}.json"
        values = {"metrics": {task: {"value": 1.0}}, "seconds": 7.0}
        judged = {"verification_seconds": judging_s}
        write_json_atomically(path, values | judged, with_checksum=True)

    (run / "plan.json").unlink()
    drawn = [{"seconds": 3.0}, {"seconds": 4.0}]
    records = phases_beside_measured(recipe, base, [Member("", recipe)], drawn)

    measured = {record["name"]: record["measured_s"] for record in records}
    assert measured[SAMPLING] == 7.0
    assert measured[ANSWERS] == pytest.approx(7.5)
    assert measured[TRAINING] > 0
    assert all("expected_s" not in record for record in records)
