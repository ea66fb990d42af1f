"""The examples of docs/hf-trainer.md run, one after another."""

import re
from pathlib import Path

import pytest
from fixture_types import Captured

ROOT = Path(__file__).parents[3]


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    text = (ROOT / "docs" / "hf-trainer.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "hf-trainer.md", "exec"), names)  # noqa: S102 - our own examples

    assert len(blocks) == 4
    told = capsys.readouterr().out
    assert "16 1 fits" in told
    assert "effective batch 16" in told
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    assert written == {"out/brimful-report.html", "report.html", "loop.html"}
