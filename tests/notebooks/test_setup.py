"""The cell that installs brimful: what it asks of pip, and what it says where it cannot go on."""

import importlib.metadata
import importlib.util
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixture_types import Captured

SETUP = Path(__file__).parents[2] / "notebooks" / "text" / "setup.py"


class _Machine:
    """A machine without brimful: what is installed, what pip is asked and answers."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        installed: dict[str, str],
        *,
        code: int = 0,
    ) -> None:
        self.asked: list[list[str]] = []
        monkeypatch.chdir(folder)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

        def version(name: str) -> str:
            if name not in installed:
                raise importlib.metadata.PackageNotFoundError(name)
            return installed[name]

        def run(words: list[str], **options: object) -> SimpleNamespace:
            self.asked.append(words)
            return SimpleNamespace(returncode=code, stderr="no matching distribution")

        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr(subprocess, "run", run)

    def set_up(self) -> None:
        code = (
            SETUP.read_text(encoding="utf-8")
            .replace("EXTRAS", "")
            .replace("REPOSITORY", "github.com/brimful/brimful")
        )
        exec(compile(code, "setup", "exec"), {})  # noqa: S102 - the notebook's own cell


def test_pip_is_told_to_keep_what_the_machine_came_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    machine = _Machine(
        monkeypatch,
        tmp_path,
        {"torch": "2.12.1+cu130", "torchvision": "0.27.0+cu130", "numpy": "2.3.0", "rich": "13.0"},
    )
    machine.set_up()

    (command,) = machine.asked
    assert command[command.index("--constraint") + 1] == "kept.txt"
    assert command[-1] == "brimful[] @ git+https://github.com/brimful/brimful"
    assert "--upgrade" not in command
    assert (tmp_path / "kept.txt").read_text().splitlines() == [
        "torch==2.12.1+cu130",
        "torchvision==0.27.0+cu130",
        "numpy==2.3.0",
    ]
    assert (
        capsys.readouterr().out
        == "kept: torch 2.12.1+cu130, torchvision 0.27.0+cu130, numpy 2.3.0\n"
    )


def test_a_torch_that_is_too_old_is_told_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = _Machine(monkeypatch, tmp_path, {"torch": "2.9.0+cu126"})
    with pytest.raises(
        SystemExit, match=r"came with torch 2\.9\.0\+cu126, and brimful needs 2\.11 or newer"
    ):
        machine.set_up()
    assert machine.asked == []


def test_a_failure_of_pip_is_told_and_ends_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = _Machine(monkeypatch, tmp_path, {"torch": "2.13.0"}, code=1)
    with pytest.raises(SystemExit, match=r"(?s)could not be installed.*no matching distribution"):
        machine.set_up()
