"""What is wrong with data is found by their first rows."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MakeRecipe, Refuses
from json_lines import write_rows

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data import first_look as module
from brimful.data import hub
from brimful.data.first_look import first_look
from brimful.recipe import Recipe


@pytest.fixture
def made() -> MakeRecipe:
    """A recipe of a method with a data section."""

    def make(method: str, path: Path | str, **data: Any) -> Recipe:
        values: JsonDict = {
            "name": "a",
            "method": method,
            "sequence_length": 8,
            "batch": {"sequences": 1},
            "training": {"steps": 1},
            "model": "owner/model",
            "data": {"path": str(path), **data},
            "optimizer": {"learning_rate": 1e-3},
        }
        if method == "pretrain":
            values |= {
                "model": {"layers": 1, "heads": 1, "width": 8},
                "tokenizer": {"kind": "character"},
            }
        return Recipe.model_validate(values)

    return make


def rows(path: Path, *values: Any) -> Path:
    return write_rows(path, values)


CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def test_good_data_pass(tmp_path: Path, made: MakeRecipe) -> None:
    """Of every kind of run; text, rows and a built-in corpus."""
    (tmp_path / "a.txt").write_text("text")
    first_look(made("pretrain", tmp_path / "a.txt"))
    first_look(made("mlm", "builtin:python-docs"))
    first_look(made("sft", rows(tmp_path / "a.jsonl", {"messages": CHAT})))
    first_look(made("classify", rows(tmp_path / "b.jsonl", {"text": "a", "label": "b"})))


@pytest.mark.parametrize(
    ("method", "row", "said"),
    [
        ("pretrain", {"body": "x"}, "no column 'text'"),
        ("pretrain", {"messages": CHAT}, "method=sft"),
        ("pretrain", {"text": 5}, "expected text"),
        ("sft", {"messages": [{"role": "usr", "content": "q"}]}, "unknown role 'usr'"),
        ("sft", {"prompt": "q", "chosen": "a", "rejected": "b"}, "method=dpo"),
        ("sft", {"a": "b"}, "do not make examples"),
        ("classify", {"text": "a", "lable": "b"}, "no column 'label' - did you mean 'lable'?"),
        ("classify", {"text": "a", "label": 1.5}, "lies between classes"),
        ("classify", {"text": ["a"], "label": "b"}, "expected text"),
    ],
)
def test_what_the_first_rows_show_is_found(
    tmp_path: Path, made: MakeRecipe, method: str, row: JsonDict, said: str
) -> None:
    """Columns, types, roles, labels."""
    with pytest.raises(DataError) as caught:
        first_look(made(method, rows(tmp_path / "a.jsonl", row)))
    assert said in str(caught.value)


def test_every_split_is_looked_at_and_only_its_beginning(tmp_path: Path, made: MakeRecipe) -> None:
    """An empty answer is counted when all rows are read, not before."""
    good = {"prompt": "q", "completion": "a"}
    rows(tmp_path / "train.jsonl", *[good] * module._ITEMS, {"prompt": "q", "completion": ""})
    rows(tmp_path / "valid.jsonl", good)
    first_look(made("sft", tmp_path))
    rows(tmp_path / "valid.jsonl", {"question": "q"})
    with pytest.raises(DataError, match=r"valid\.jsonl"):
        first_look(made("sft", tmp_path))


def test_a_long_text_is_not_read(
    tmp_path: Path, made: MakeRecipe, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    """It would take longer than all the rest; rows are read however long their file is."""
    monkeypatch.setattr(module, "_WHOLE_BYTES", 10)
    (tmp_path / "a.txt").write_bytes(b"not UTF-8: \xe9")
    first_look(made("pretrain", tmp_path / "a.txt"))
    with refuses(DataError):
        first_look(made("pretrain", rows(tmp_path / "a.jsonl", {"body": "x" * 20})))


def test_hub_data_sets_are_asked_for_and_not_loaded(
    tmp_path: Path, made: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their revision, beside local files."""
    asked = []
    monkeypatch.setattr(hub, "check_there", lambda *names: asked.append(names))
    first_look(made("pretrain", "owner/name", revision="abc"))
    assert asked == [("owner/name", "abc")]


def test_it_brings_neither_torch_nor_the_libraries_of_models() -> None:
    """These take seconds to import."""
    code = (
        "import sys, brimful.data.first_look as _;"
        "print([name for name in ('torch', 'transformers', 'datasets', 'pyarrow')"
        " if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert found.stdout.strip() == "[]"
