"""The GPU day's script on a CPU, in small: what it calls exists, and what it finds is kept."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.prove.trials import chosen, trials_for

DAY = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_day" / "day.sh"


@pytest.mark.long
def test_a_call_keeps_what_it_finds(tmp_path: Path) -> None:
    environment = os.environ | {
        "DRY": "1",
        "OUT": str(tmp_path / "out"),
        "WORK": str(tmp_path / "work"),
        "PYTHON": sys.executable,
        "TRIALS": "",
        "GPU_TESTS": "",
        "TOTAL_S": "3000",
        "LONGEST_S": "3000",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", str(DAY), "1"], env=environment, capture_output=True, text=True, check=True
    )
    kept = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert {"probe.json", "versions.json"} <= set(kept), done.stdout + done.stderr
    assert json.loads(kept["versions.json"])["missing"] == {}
    answers = json.loads(kept["probe.json"])
    assert answers
    assert not {name: answer for name, answer in answers.items() if "failed" in answer}


def test_trials_of_both_calls_exist() -> None:
    asked = re.findall(r"\$\{TRIALS-([^}]+)\}", DAY.read_text())
    assert len(asked) == 2
    for names in asked:
        assert chosen(trials_for("cuda"), names.split(","))
