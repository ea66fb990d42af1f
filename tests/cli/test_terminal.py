"""What verbs print in a real terminal of 80 columns: the answer first, no line that the terminal would
wrap, no word cut, and where it is not a terminal nothing that moves.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from terminal import COLUMNS as WIDTH
from terminal import left_on_screen, on_terminal

pytestmark = pytest.mark.usefixtures("warm_processes")
MOVEMENTS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "brimful", *arguments]


def _printed(*arguments: str, exit_code: int = 0) -> str:
    """What a command prints on a terminal, with what moves the cursor."""
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("COLUMNS", None)
    command = shlex.join(_command(*arguments))
    printed, ended, _ = on_terminal(command, Path.cwd(), environment)
    assert ended == exit_code
    return printed


def _rows(printed: str) -> list[str]:
    """The rows that stay on the terminal, and those that were overwritten."""
    text = MOVEMENTS.sub("", printed).replace("\r\n", "\n").replace("\r", "\n")
    return [line.rstrip() for line in text.splitlines()]


def _rows_of_answer(rows: list[str], answer: str) -> list[str]:
    """The rows from the answer on; before it the line that says what is being done."""
    first = next(number for number, row in enumerate(rows) if row.startswith(answer))
    assert any("starting" in row or "tracing" in row for row in rows[:first])
    return rows[first:]


def _words(text: str) -> set[str]:
    return set(text.split())


@pytest.mark.parametrize(
    ("on", "answer"),
    [("Tesla T4", "Fits Tesla T4: "), ("Tesla T4,Quadro RTX 6000,2080-ti", "3 of 3 devices fit; ")],
)
def test_a_plan_begins_with_the_answer_and_no_row_is_wrapped_or_cut(
    recipe_file: Path, on: str, answer: str
) -> None:
    arguments = ("plan", str(recipe_file), "plan={}", "--on", on, "--session", "12h")

    rows = _rows_of_answer(_rows(_printed(*arguments)), answer)
    piped = subprocess.run(_command(*arguments), capture_output=True, text=True, check=True)

    assert max(map(len, rows)) <= WIDTH
    assert piped.stdout.startswith(answer)
    assert piped.stderr == ""
    if "," not in on:  # several devices have fewer columns in a narrow terminal
        assert _words(" ".join(rows[1:])) <= _words(piped.stdout)


def test_json_is_alone_on_standard_output(recipe_file: Path) -> None:
    asked = _command("plan", str(recipe_file), "plan={}", "--on", "Tesla T4", "--json")

    told = subprocess.run(asked, capture_output=True, text=True, check=True)

    assert json.loads(told.stdout)["devices"][0]["verdict"] == "fits"
    assert told.stderr == ""


def test_training_says_little_before_its_first_step_and_no_row_is_wrapped(
    recipe_file: Path,
) -> None:
    printed = _printed("train", str(recipe_file), "training.steps=2")
    rows, staying = _rows(printed), left_on_screen(printed).splitlines()

    first = next(number for number, row in enumerate(staying) if row.startswith("tiny"))
    last = next(number for number, row in enumerate(staying) if row.startswith("step "))
    lines = staying[first:last]
    assert len(lines) <= 12, "\n".join(lines)
    assert any(line.startswith("plan: ") for line in lines)
    # A path is never broken, so that it can be copied; it may stand indented on a row of its own.
    assert [row for row in rows if len(row) > WIDTH and " " in row.strip()] == []


def test_notes_and_errors_are_broken_between_words_and_go_on_indented(recipe_file: Path) -> None:
    """A changed batch is noted, then an unknown device is refused."""
    arguments = ("plan", str(recipe_file), "batch.sequences=64", "plan.device=cuda:99")
    rows = _rows(_printed(*arguments, exit_code=2))

    assert max(map(len, rows)) <= WIDTH
    (note,) = [number for number, row in enumerate(rows) if row.startswith("note B101: ")]
    assert rows[note + 1].startswith("  ")
    assert any(row.startswith("brimful: ") for row in rows)
