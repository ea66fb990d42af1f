"""Environments of users: which are made, what is said of them, and what is no fault of theirs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from environments import STEPS, Tried, environments, interpreters, out_of_reach, table
from record import RECORDS
from terminal import Outcome

SCRIPT = RECORDS.parent / "environments.py"
NO_INDEX = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}


def test_what_is_no_python_is_left_out(tmp_path: Path) -> None:
    here = Path(sys.executable)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)

    found = interpreters([broken, tmp_path / "absent", here])

    assert found == {"{}.{}".format(*sys.version_info): here}


def test_each_python_gets_the_newest_and_the_oldest_and_the_first_one_by_pip() -> None:
    pythons = {"3.11": Path("a"), "3.12": Path("b")}

    names = [each.name for each in environments(pythons, [""])]
    chosen = [each.name for each in environments(pythons, ["oldest", "pip"])]

    assert names == ["newest-3.11", "oldest-3.11", "newest-3.12", "oldest-3.12", "pip-3.11"]
    assert chosen == ["oldest-3.11", "oldest-3.12", "pip-3.11"]


def test_the_table_tells_what_failed_from_what_was_not_tried() -> None:
    took = Outcome("brimful doctor", 2.4, 0.1, 1.0)
    failed = Outcome("brimful run", 7.0, 0.1, 1.0, ["exit code 1, not 0"])
    tried = Tried("newest-3.11", 20.2, {"torch": "2"}, {"doctor": took, "pretrain": failed})
    unmade = Tried("oldest-3.11", steps={"install": failed})
    unreached = Tried("pip-3.11", out_of_reach="Failed to fetch")

    rows = table([tried, unmade, unreached]).splitlines()[2:]

    rest = " | ".join(["not tried"] * (len(STEPS) - 2))
    assert rows == [
        f"| newest-3.11 | 20 s | 2 s | FAILED | {rest} |",
        f"| oldest-3.11 | FAILED | not tried | not tried | {rest} |",
        f"| pip-3.11 | not tried | not tried | not tried | {rest} |",
    ]


def _refused(requirement: str) -> subprocess.CalledProcessError:
    """What uv says where there is no index."""
    pytest.importorskip("uv")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        subprocess.run(
            [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "-"],
            input=requirement,
            env=os.environ | NO_INDEX,
            capture_output=True,
            text=True,
            check=True,
        )
    return refused.value


def test_an_index_out_of_reach_is_no_fault_and_ranges_that_nothing_meets_are_one() -> None:
    assert out_of_reach(_refused("some-package>=1"))
    assert not out_of_reach(_refused("some-package>=2,<1"))


def test_without_an_index_nothing_is_tried_and_that_is_said(tmp_path: Path) -> None:
    pytest.importorskip("uv")
    cache = {"UV_CACHE_DIR": str(tmp_path)}

    ended = subprocess.run(
        [sys.executable, SCRIPT],
        check=False,
        env=os.environ | NO_INDEX | cache,
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("no environment was tried: ")
    assert "http://127.0.0.1:9/simple" in ended.stdout


def test_every_step_passed_in_the_environments_of_the_record() -> None:
    stored = json.loads((RECORDS / "environments.json").read_text(encoding="utf-8"))["tried"]

    assert {each["name"].partition("-")[0] for each in stored} == {"newest", "oldest", "pip"}
    for each in stored:
        assert each["steps"].keys() == STEPS.keys(), each["name"]
        assert [step["problems"] for step in each["steps"].values() if step["problems"]] == []
