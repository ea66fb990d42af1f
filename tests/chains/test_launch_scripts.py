"""Scripts that launchers take: valid, with the recipe's own command in them; torchrun's trains."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from finished_runs import records_of
from fixture_types import MakeRecipe, Refuses

from brimful.base.errors import RequestError
from brimful.base.rundir import read_json
from brimful.chains import pipeline
from brimful.chains.launch_scripts import SCRIPTS, script

COMMAND = ("train", "my recipe.yaml", "run.name=it's $HOME")


def _is_shell(text: str) -> bool:
    return subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", SCRIPTS)
@pytest.mark.parametrize("machines", [1, 3])
def test_a_script_is_valid_and_gives_brimful_its_command_as_it_is(
    tiny: MakeRecipe, kind: str, machines: int, tmp_path: Path, snapshot: Any
) -> None:
    text = script(tiny(), kind, COMMAND, machines=machines, devices=2)

    shell = yaml.safe_load(text)["run"] if kind == "skypilot" else text
    assert _is_shell(shell)
    assert text == snapshot
    told = tmp_path / "told"
    for name in ("torchrun", "srun", "scontrol"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}\n')
        program.chmod(0o755)
    names = ("FIRST_MACHINE", "SLURM_NNODES", "SLURM_JOB_ID", "SLURM_JOB_NODELIST")
    nodes = ("NODE_IPS", "NUM_NODES", "NUM_GPUS_PER_NODE", "NODE_RANK")
    given = dict.fromkeys([*names, *(f"SKYPILOT_{name}" for name in nodes)], "1")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", shell], env=given | path, check=True)
    assert told.read_text().splitlines()[-4:] == ["brimful", *COMMAND]


def test_skypilot_gets_the_numbers_of_machines_and_devices(tiny: MakeRecipe) -> None:
    task = yaml.safe_load(script(tiny(), "skypilot", COMMAND, machines=3, devices=2))

    assert task["name"] == "tiny"
    assert task["num_nodes"] == 3
    assert task["resources"]["accelerators"].endswith(":2")


def test_more_ranks_than_sequences_are_refused_before_a_cluster_is_asked(
    tiny: MakeRecipe, refuses: Refuses
) -> None:
    with refuses(RequestError):
        script(tiny(), "slurm", COMMAND, machines=3, devices=3)


@pytest.mark.usefixtures("warm_processes")
def test_the_script_of_torchrun_trains_on_two_ranks(
    tiny: MakeRecipe, recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ("batch.sequences=7", "training.steps=3", "plan.spread=replicated")
    recipe = tiny(*changes)
    text = script(recipe, "torchrun", ["train", str(recipe_file), *changes], machines=1, devices=2)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    ended = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    folder = pipeline.folder_of(recipe)
    steps = records_of(folder, "step")
    assert len(steps) == 3
    assert read_json(folder / "plan.json")["devices"] == 2
    assert ended.stdout.count("best model: step 3") == 1
