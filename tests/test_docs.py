"""What the documents say is what the program does."""

import re
import runpy
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from brimful import cli
from brimful.recipe import load

ROOT = Path(__file__).parents[1]


def _commands(path: Path) -> Iterator[str]:
    """Every `brimful ...` line of the document's shell blocks, comments cut off."""
    for block in re.findall(
        r"```(?:sh|bash|console)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL
    ):
        for line in block.splitlines():
            command = line.removeprefix("$ ").partition("  #")[0].strip()
            if command.startswith("brimful "):
                yield command


def test_docs_recipes_md_lists_every_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["brimful", "recipes", "keys"])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert exit_info.value.code in (0, None)
    table = capsys.readouterr().out.strip()
    assert table in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8"), (
        "update the table in docs/recipes.md: brimful recipes keys"
    )


def test_readme_commands_run(
    recipe_file: Path,
    labels_recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each command runs as written, with shipped recipes and their runs replaced by tiny ones; once
    where only the name of its run differs.
    """
    commands = [
        shlex.split(command.partition(" > ")[0])[1:]
        for command in dict.fromkeys(_commands(ROOT / "README.md"))
    ]
    assert len(commands) >= 8
    used = {
        word for verb, *words in commands if verb not in ("run", "train", "plan") for word in words
    }
    done: set[tuple[str, ...]] = set()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mails.csv").write_text("text\nfree prize call now\nthe cat sees a tree\n")
    for words in commands:
        tiny = _made_tiny(words, recipe_file, labels_recipe_file)
        nameless = tuple(word for word in tiny if not word.startswith("run.name="))
        if nameless not in done or words[1] in used:
            _run(tiny, monkeypatch)
            told = capsys.readouterr()
            assert told.out or told.err
        done.add(nameless)


def _made_tiny(words: list[str], recipe_file: Path, labels_recipe_file: Path) -> list[str]:
    """The same command for a tiny recipe, its run under the shipped recipe's name; other verbs as
    they are.
    """
    verb, *rest = words
    if verb not in ("run", "train", "plan"):
        return words
    name, *options = rest
    if load(name, [word for word in options if "=" in word]).method == "classify":
        return [verb, str(labels_recipe_file), f"run.name={name}"]
    kept = [
        word
        for before, word in pairwise([name, *options])
        if word.startswith(("--", "optimizer."))
        or before in ("--timeline", "--sort", "--budget", "--session", "--save")
        or (before == "--on" and word != "all")
    ]
    kept = (
        [*kept[: kept.index("--on")], *kept[kept.index("--on") + 1 :]]
        if kept and kept[-1] == "--on"
        else kept
    )  # one device is enough here
    return [
        verb,
        str(recipe_file),
        f"run.name={name}",
        "sequence_length=64",
        "training.steps=80",
        "evaluation.every=40",
        *kept,
    ]


def _run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["brimful", *words])
    monkeypatch.setattr("builtins.input", lambda *_: "")
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert exit_info.value.code in (0, None), words


def test_the_measured_figures_are_those_of_the_records() -> None:
    table = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))["table"]()
    assert table in (ROOT / "docs" / "measured.md").read_text(encoding="utf-8"), (
        "update the table in docs/measured.md: python benchmarks/tables.py"
    )


def test_the_ablations_figures_are_those_of_its_record() -> None:
    table = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))["ablation"]()
    assert table in (ROOT / "docs" / "okadfa.md").read_text(encoding="utf-8"), (
        "update the table in docs/okadfa.md: python benchmarks/tables.py"
    )
