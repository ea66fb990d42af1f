"""A question that was asked before is answered at once, and never with what no longer holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.base.env import cache_folder
from brimful.base.kept_values import read_whole
from brimful.cli import main
from brimful.cli.kept_answers import MOST_KEPT, PACKAGE, AskedCommand, Said

LORA = ("plan", "quickstart", "tokenizer=null", "adapter.rank=16", "sequence_length=2048")
ON_T4 = (*LORA, "model=meta-llama/Llama-3.1-8B", "batch.sequences=16", "--on", "T4")
PROGRAM = """
import sys
from brimful.cli import main
try:
    main()
finally:
    print(f"numpy: {'numpy' in sys.modules}", file=sys.stderr)
"""


def _ask(cache: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"BRIMFUL_CACHE": str(cache), "HF_HUB_OFFLINE": "1"} | environment,
    )


def _was_planned(ended: subprocess.CompletedProcess[str]) -> bool:
    return "numpy: True" in ended.stderr


def test_the_same_question_is_answered_from_what_was_kept(tmp_path: Path) -> None:
    first, again = _ask(tmp_path, *ON_T4), _ask(tmp_path, *ON_T4)

    assert (_was_planned(first), _was_planned(again)) == (True, False)
    assert first.stdout.startswith("Does not fit Tesla T4")
    assert (again.stdout, again.returncode) == (first.stdout, first.returncode) == (again.stdout, 1)


def test_a_changed_letter_in_every_file_of_the_cache_changes_no_answer(tmp_path: Path) -> None:
    words = ("plan", "quickstart", "--on", "T4")
    first = _ask(tmp_path, *words)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"answers", "values", "traces"} <= {
        path.relative_to(tmp_path).parts[0] for path in files
    }
    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    again = _ask(tmp_path, *words)

    assert (again.stdout, again.returncode) == (first.stdout, 0)
    assert again.stderr == first.stderr
    assert all(read_whole(path) is not None for path in files)


def test_notes_on_standard_error_are_said_again(tmp_path: Path) -> None:
    words = ("plan", "quickstart", "batch.sequences=128", "--on", "T4,L4", "--json")

    first, again = _ask(tmp_path, *words), _ask(tmp_path, *words)

    assert "batch" in first.stderr
    assert not _was_planned(again)
    assert again.stderr == first.stderr.replace("numpy: True", "numpy: False")
    assert json.loads(again.stdout) == json.loads(first.stdout)


def test_another_width_a_new_trace_and_a_damaged_answer_are_planned_anew(tmp_path: Path) -> None:
    first = _ask(tmp_path, *ON_T4)
    assert _was_planned(_ask(tmp_path, *ON_T4, COLUMNS="90"))
    (tmp_path / "traces" / "compiled.safetensors").touch()
    assert _was_planned(_ask(tmp_path, *ON_T4))
    (tmp_path / "traces" / "compiled.safetensors").unlink()
    assert not _was_planned(_ask(tmp_path, *ON_T4))
    for path in (tmp_path / "answers").iterdir():
        path.write_bytes(path.read_bytes()[:-20])

    damaged = _ask(tmp_path, *ON_T4)

    assert _was_planned(damaged)
    assert damaged.stdout == first.stdout


SMALL = (
    *("sequence_length=32", "batch.sequences=8", "tokenizer.vocabulary=300"),
    *("model={architecture: llama, layers: 2, heads: 2, width: 32}", "plan.precision=fp32"),
    "plan.compile=false",
)
"""Steps on this machine do not come with brimful: the one that other tests trace, too."""


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "quickstart", *SMALL, "--on", "here"),
        ("plan", "quickstart", *SMALL, "--on", "here,T4"),
        ("plan", "quickstart", "--on", "T4", "--save", "{folder}/plan.json"),
        ("plan", "{folder}/own.yaml", "--on", "T4"),
    ],
)
def test_nothing_is_kept_of_this_machine_of_own_files_and_with_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    given = [word.replace("{folder}", str(tmp_path)) for word in words]
    monkeypatch.setattr("sys.argv", ["brimful", *given])
    (tmp_path / "own.yaml").write_text((PACKAGE / "recipes" / "quickstart.yaml").read_text())

    with pytest.raises(SystemExit) as ended:
        main()

    assert not ended.value.code
    assert (cache_folder() / "traces").exists()
    assert not (cache_folder() / "answers").exists()


def test_a_folder_with_the_name_of_a_word_is_another_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["plan", "quickstart", "model=gpt2"]
    assert AskedCommand.asked(words) is not None

    (tmp_path / "gpt2").mkdir()

    assert AskedCommand.asked(words) is None
    assert AskedCommand.asked(["train", "quickstart"]) is None


def test_the_newest_answers_are_kept(tmp_path: Path) -> None:
    for number in range(MOST_KEPT + 3):
        AskedCommand(tmp_path / "answers" / f"{number}.json").keep(Said(), 0)
        os.utime(tmp_path / "answers" / f"{number}.json", (number, number))

    kept = {int(path.stem) for path in (tmp_path / "answers").iterdir()}

    assert len(kept) <= MOST_KEPT
    assert kept >= set(range(5, MOST_KEPT + 3))
