"""How much data a recipe has, told before they are read."""

import gzip
import json
from pathlib import Path

import pytest

from brimful.data import counts
from brimful.data.counts import (
    OWN_BYTES_PER_TOKEN,
    bytes_per_token,
    count,
    not_here,
    published_rows,
)
from brimful.recipe import Recipe, load


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """100 pairs of 40 characters each."""
    path = tmp_path / "pairs.jsonl"
    row = {"prompt": "q" * 20, "completion": "a" * 20}
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(100)))
    return path


def _pairs(path: Path, *changes: str) -> Recipe:
    return load("lora", [f"data.path={path}", "data.long_documents=drop", *changes])


def test_validation_is_what_a_data_set_of_the_hub_holds() -> None:
    """WikiText-103's validation split is 1,230 sequences of 256 of a BPE of 4,096 entries."""
    counted = count(load("tiny-gpt"))
    assert counted is not None
    assert counted.validation == pytest.approx(1230, rel=0.05)
    assert counted.train * 256 == pytest.approx(151.7e6, rel=0.05)  # 50,000 updates are 10.8 passes
    assert "dataset card" in counted.about


def test_without_a_split_of_its_own_a_share_is_held_out() -> None:
    """The guide trains 3,141 steps of 16 on nine tenths of the examples, three times."""
    counted = count(load("code-lora"))
    assert counted is not None
    assert counted.train * 3 // 16 == pytest.approx(3141, abs=1)
    assert counted.validation == pytest.approx(18_612 - counted.train, abs=1)


def test_rows_of_a_file_are_counted(pairs: Path) -> None:
    counted = count(_pairs(pairs, "data.validation=0.1"))
    assert counted is not None
    assert (counted.train, counted.validation) == (90, 10)
    assert counted.mean_tokens == 40 / 4 + 10
    assert counted.about == "counted in 1 file"


def test_a_long_file_is_estimated_from_its_beginning(
    pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "LOOK_S", -1.0)  # one row
    counted = count(_pairs(pairs, "data.validation=0.1"))
    assert counted is not None
    assert counted.train == pytest.approx(90, abs=2)
    assert counted.about.startswith("estimated from 72 B of")
    packed = pairs.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(pairs.read_bytes()))
    assert count(_pairs(packed)) is None  # how much is packed is not known


def test_text_is_known_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.txt").write_text("a word " * 10_000)
    (tmp_path / "valid.txt").write_text("a word " * 1_000)
    recipe = load("wikitext2-small", [f"data.path={tmp_path}"])
    read = count(recipe)
    monkeypatch.setattr(counts, "_SIZED_BYTES", 100)
    sized = count(recipe)
    assert read is not None
    assert sized is not None
    assert (read.train, read.validation) == (sized.train, sized.validation)
    assert sized.train == round(70_000 / 3.53 / 256)


def test_documents_of_their_own_are_sequences_and_a_limit_counts(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": "word " * 20}) + "\n" for _ in range(50)))
    layout = ["data.document_start=null", "data.layout=document"]
    changes = [f"data.path={path}", *layout, "data.validation=0.2"]
    read = count(load("wikitext2-small", changes))
    assert read is not None
    assert (read.train, read.validation) == (40, 10)
    few = count(load("wikitext2-small", [*changes, "data.max_documents=20"]))
    assert few is not None
    assert (few.train, few.validation) == (16, 4)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("lora", "data.path=absent.jsonl"),
        ("lora", "data.path=some/unknown"),
        ("quickstart", "data.path=builtin:unit-conversion"),
    ],
)
def test_what_is_not_there_or_takes_long_is_not_known(name: str, change: str) -> None:
    assert count(load(name, [change])) is None


def test_files_that_are_not_there_are_named(pairs: Path) -> None:
    paths = [str(pairs), "absent.jsonl", "some/unknown", "a/folder/file", "builtin:python-docs"]
    data = load("lora", [f"data.path={json.dumps(paths)}"]).data

    assert not_here(data) == ["absent.jsonl", "a/folder/file"]


def test_what_is_made_of_pythons_own_library_is_known_before_it_is_made() -> None:
    """As rows 5,469 tasks, and as text 6.4 MB, of which a tokenizer of 4,096 makes 1.8M tokens."""
    tasks, text = count(load("code-offline")), count(load("code-offline-base"))
    assert tasks is not None
    assert text is not None
    assert (tasks.train, tasks.validation) == (5196, 273)
    assert text.train * 512 == pytest.approx(1.7e6, rel=0.05)
    assert "Python" in tasks.about


def test_bytes_of_a_token_follow_the_vocabulary() -> None:
    sizes = [
        bytes_per_token(load("quickstart", [f"tokenizer.vocabulary={each}"]))
        for each in (2048, 3000, 4096)
    ]
    assert sizes[0] == dict(OWN_BYTES_PER_TOKEN)[2048]
    assert sizes[0] < sizes[1] < sizes[2] == dict(OWN_BYTES_PER_TOKEN)[4096]
    largest = load("quickstart", ["tokenizer.vocabulary=100000"])
    assert bytes_per_token(largest) == dict(OWN_BYTES_PER_TOKEN)[50_257]
    assert bytes_per_token(load("shakespeare-char")) == 1.0


def test_questions_of_tasks_are_known_by_their_data_set() -> None:
    assert published_rows("openai/gsm8k", "main", ["test"]) == 1319
    assert published_rows("openai/openai_humaneval", None, ["test"]) == 164
    assert published_rows("some/unknown", None, ["test"]) is None
