"""What a shell completes, asked as a shell asks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def _completed(line: str, runs: Path) -> list[str]:
    """What bash is given for the last word of a command line."""
    environment = {
        **os.environ,
        "_BRIMFUL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "BRIMFUL_RUNS": str(runs),
    }
    program = "import sys; sys.argv = ['brimful']; from brimful.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("brimful calib", ["calibrate"]),
        ("brimful run quick", ["quickstart"]),
        ("brimful recipes show quick", ["quickstart"]),
        ("brimful plan quickstart --on t", ["t4", "titan"]),
        ("brimful plan quickstart --on t4,a10", None),
        ("brimful report mi", ["mine"]),
        ("brimful compare mine st", ["study/first"]),
        ("brimful watch x", []),
    ],
)
def test_names_are_completed(line: str, expected: list[str] | None, tmp_path: Path) -> None:
    for run in ("mine", "study/first"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "recipe.yaml").write_text("")
    completed = _completed(line, tmp_path)
    if expected is None:
        assert "t4,a10g" in completed
        assert all(name.startswith("t4,a10") for name in completed)
    else:
        assert completed == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_script_for_a_shell_is_shown() -> None:
    """The shell is the one that started the command: here always bash."""
    program = "import sys; sys.argv = ['brimful', '--show-completion', 'bash']"
    started = f"{program}; from brimful.cli import main; main()"
    # The second command keeps bash from becoming the first one.
    script = '"$0" -c "$1"; exit $?'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable, started], capture_output=True, text=True, check=True
    )
    assert "_BRIMFUL_COMPLETE=complete_bash" in done.stdout
