"""What the documents say is what the program does."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful import cli
from brimful.recipe import load, shipped_names

ROOT = Path(__file__).parents[1]


def _commands(path: Path) -> Iterator[str]:
    """Every `brimful ...` line of the document's shell blocks, comments cut off."""
    for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            command = line.removeprefix("$ ").partition("  #")[0].strip()
            if command.startswith("brimful "):
                yield command


def test_docs_recipes_md_lists_every_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["brimful", "recipes", "keys"])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert exit_info.value.code in (0, None)
    table = capsys.readouterr().out.strip()
    assert table in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8"), "update the table in docs/recipes.md: brimful recipes keys"


def test_readme_commands_run(recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command runs as written, with shipped recipes and their runs replaced by a tiny one."""
    commands = list(dict.fromkeys(_commands(ROOT / "README.md")))
    assert len(commands) >= 8
    monkeypatch.chdir(tmp_path)
    for command in commands:
        words = shlex.split(command)[1:]
        _run(_made_tiny(words, recipe_file), monkeypatch)
        assert capsys.readouterr().out


def _made_tiny(words: list[str], recipe_file: Path) -> list[str]:
    verb, *rest = words
    if verb in ("run", "train", "plan"):
        load(rest[0], [word for word in rest[1:] if "=" in word])
        return [verb, str(recipe_file), *(word for word in rest[1:] if word.startswith(("--", "optimizer.")))]
    runs = dict.fromkeys(shipped_names(), "tiny")
    return [verb, *(runs.get(word, word) if verb != "recipes" else word for word in rest)]


def _run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["brimful", *words])
    monkeypatch.setattr("builtins.input", lambda *_: "")
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert exit_info.value.code in (0, None), words
