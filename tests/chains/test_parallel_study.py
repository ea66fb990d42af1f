"""Variants side by side, each in a process of its own: what one device makes of them, whatever
becomes of the others.
"""

import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from finished_runs import newest_of
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.base.rundir import read_json
from brimful.chains import calls, pipeline
from brimful.chains.parallel_study import ParallelVariants, devices_here
from brimful.chains.study import VariantsFailed, run_variant
from brimful.cli import app
from brimful.runs.files import STATUS_FILE
from brimful.training.checkpoint import differences

pytestmark = pytest.mark.usefixtures("warm_processes")


@pytest.mark.long
def test_what_fails_is_told_at_the_end_and_the_others_are_what_one_device_makes_of_them(
    tiny: MakeRecipe, recipe_file: Path, refuses: Refuses
) -> None:
    variants = (
        "study.variants={good: [seed=1], wild: [optimizer.learning_rate=1.0e+30,"
        " optimizer.clip_norm=1.0e+30], large: [plan.leave_gib=100000]}"
    )
    options, told = [variants, "training.steps=6"], list[str]()
    recipe = tiny(*options)
    here = devices_here(2, "cpu")
    cores = [each.cores for each in here]
    assert not cores[0] & cores[1] or len(os.sched_getaffinity(0)) < 2

    def beside(folder: Path, names: Any) -> Any:
        command = ["run", str(recipe_file), *options]
        return ParallelVariants(command, folder, here, told.append).run(names)

    with refuses(VariantsFailed):
        calls.run_several(recipe, Console(file=StringIO()), side_by_side=beside)

    folder = pipeline.folder_of(recipe)
    left_out = read_json(folder / "study.json")["left_out"]
    assert set(left_out) == {"wild", "large"}
    assert "MiB to use" in left_out["large"]
    assert "| good" in (folder / "study.md").read_text()
    assert [line.split()[0] for line in told[:2]] == ["good", "wild"]
    alone = run_variant(tiny(*options, "run.name=alone"), "good", Console(file=StringIO()))
    assert differences(newest_of(folder / "good"), newest_of(alone)) == []


@pytest.mark.long
def test_ctrl_c_ends_all_and_the_same_command_continues(
    tiny: MakeRecipe, recipe_file: Path, snapshot: SnapshotAssertion
) -> None:
    variants = "study.variants={one: [seed=1], two: [seed=2]}"
    options = [variants, "training.steps=200", "evaluation.every=200"]
    folder = pipeline.folder_of(tiny(*options))
    command = [sys.executable, "-m", "brimful", "run", str(recipe_file), *options]
    process = subprocess.Popen(
        [*command, "--devices", "2", "--parallel"], stderr=subprocess.PIPE, text=True
    )
    until_s = time.monotonic() + 240
    journals = [folder / name / "metrics.jsonl" for name in ("one", "two")]
    while time.monotonic() < until_s and not all(each.exists() for each in journals):
        time.sleep(0.02)

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()

    assert process.returncode == 130, errors
    assert errors == snapshot
    statuses = [read_json(folder / name / STATUS_FILE)["status"] for name in ("one", "two")]
    assert "stopped" in statuses
    assert not (folder / "study.md").exists()
    again = subprocess.run([*command, "--devices", "2", "--parallel"], check=False)
    assert again.returncode == 0
    assert all(f"| {name}" in (folder / "study.md").read_text() for name in ("one", "two"))


@pytest.mark.parametrize(
    ("study", "options", "message"),
    [
        (False, ["--parallel", "--devices", "2"], "--parallel is for studies"),
        (True, ["--parallel"], "--parallel goes with --devices"),
        (True, ["--only", "one", "--devices", "2"], "--only one takes one device"),
        (True, ["--only", "three"], "has no such variant. It has one, two"),
        (True, ["--only", "one", "--parallel"], "nothing runs beside it"),
    ],
    ids=["no-study", "no-devices", "devices-for-one", "unknown", "both"],
)
def test_options_that_do_not_go_together_are_refused(
    recipe_file: Path, study: bool, options: list[str], message: str
) -> None:
    variants = ["study.variants={one: [seed=1], two: [seed=2]}"] if study else []

    with pytest.raises(Exception, match=message) as caught:
        app(["run", str(recipe_file), *variants, *options], standalone_mode=False)

    assert caught.value.exit_code == 2
