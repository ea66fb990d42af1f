"""Data whose training tokens do not fit the disk: the same documents and splits as in one piece."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from fixture_types import MakeRecipe, Refuses
from pydantic import ValidationError

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.prepare import PreparedData, prepare

LITTLE = {"cache_gib": 20_000 / 2**30, "shuffled_files": 2, "validation": 0.2}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Six files of thirty documents each, two of them compressed."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(6):
        texts = [
            f"Story {number} {row}.\n" + "the cat sat on the mat, the dog sat on the log\n" * 3
            for row in range(30)
        ]
        raw = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        path = folder / f"part-{number}.jsonl"
        path.write_bytes(raw)
        if number > 3:
            path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(raw))
            path.unlink()
    return folder


def documents(tokens_N: Any, prepared: PreparedData) -> list[str]:
    ends = np.flatnonzero(tokens_N == prepared.tokenizer.eos_token_id)
    pieces = np.split(np.asarray(tokens_N), ends + 1)[:-1]
    return [prepared.tokenizer.decode(piece[:-1].tolist()) for piece in pieces]


def test_shards_hold_the_documents_of_the_training_split(
    files: Path, tmp_path: Path, recipe: MakeRecipe
) -> None:
    whole = prepare(recipe({"path": files, "validation": 0.2}), tmp_path / "cache")
    parts = prepare(recipe({"path": files, **LITTLE}), tmp_path / "cache")
    assert parts.shards is not None
    found = [text for number in range(6) for text in documents(parts.shards.tokens(number), parts)]
    assert found == documents(whole.splits["train"].tokens_N, whole)
    np.testing.assert_array_equal(
        parts.splits["validation"].tokens_N, whole.splits["validation"].tokens_N
    )
    assert parts.report["splits"] == whole.report["splits"]
    assert any(
        note.startswith("B214: training tokens of 6 files") for note in parts.report["notes"]
    )


def test_a_saved_data_set_is_read_file_by_file(
    tmp_path: Path, files: Path, recipe: MakeRecipe
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [
        json.loads(line)
        for path in sorted(files.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved", num_shards=4)
    parts = prepare(recipe({"path": tmp_path / "saved", **LITTLE}), tmp_path / "cache")
    assert parts.shards is not None
    assert len(parts.shards.lengths()) == 4


@pytest.fixture
def on_hub(files: Path, monkeypatch: pytest.MonkeyPatch) -> JsonDict:
    """The files as a data set of the hub: streamed by the real library, which reads them here. Gives
    the data set's commit, and what the library was asked for.
    """
    datasets = pytest.importorskip("datasets")
    state: JsonDict = {"commit": "c0ffee", "asked": []}
    load = datasets.load_dataset

    def load_dataset(path: str, name: str | None, **options: Any) -> Any:
        state["asked"].append((path, name, options))
        listed = sorted(map(str, files.iterdir()))
        return load("json", data_files={"train": listed}, streaming=options["streaming"])

    def dataset_info(_: Any, path: str, **options: Any) -> SimpleNamespace:
        if state["commit"] is None:
            raise OSError("the network is unreachable")
        return SimpleNamespace(sha=state["commit"])

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    return state


def test_a_data_set_of_the_hub_is_streamed_file_by_file(
    files: Path, tmp_path: Path, recipe: MakeRecipe, on_hub: JsonDict
) -> None:
    here = prepare(recipe({"path": files, **LITTLE}), tmp_path / "cache")
    streamed = prepare(recipe({"path": "owner/name", **LITTLE}), tmp_path / "cache")
    assert here.shards is not None
    assert streamed.shards is not None
    # The library reads the compressed files in the same order.
    for number in range(6):
        np.testing.assert_array_equal(streamed.shards.tokens(number), here.shards.tokens(number))
    assert on_hub["asked"][-1] == (
        "owner/name",
        None,
        {"revision": "c0ffee", "streaming": True},
    )
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    on_hub["commit"] = "decaf"
    later = prepare(recipe({"path": "owner/name", **LITTLE}), tmp_path / "cache")
    assert later.data_fingerprint != streamed.data_fingerprint


def test_without_the_hub_nothing_can_be_streamed(
    tmp_path: Path, recipe: MakeRecipe, on_hub: JsonDict, refuses: Refuses
) -> None:
    on_hub["commit"] = None
    with refuses(DataError, names=["owner/name", "the network is unreachable"]):
        prepare(recipe({"path": "owner/name", **LITTLE}), tmp_path / "cache")


def test_a_larger_file_gives_another_fingerprint_and_a_larger_limit_does_not(
    files: Path, tmp_path: Path, recipe: MakeRecipe
) -> None:
    def fingerprint(**data: Any) -> str:
        made = prepare(recipe({"path": files, **LITTLE, **data}), tmp_path / "cache")
        return made.data_fingerprint

    before = fingerprint()
    assert fingerprint(cache_gib=1) == before
    assert fingerprint(shuffled_files=1) != before
    with (files / "part-0.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    assert fingerprint() != before


def test_a_limit_that_is_too_small_is_refused_and_its_advice_works(
    files: Path, tmp_path: Path, recipe: MakeRecipe
) -> None:
    data = {"path": files, **LITTLE, "cache_gib": 3000 / 2**30}
    with pytest.raises(DataError, match=r"Set data\.cache_gib=") as refused:
        prepare(recipe(data), tmp_path / "cache")
    advised = float(str(refused.value).partition("Set data.cache_gib=")[2].split()[0])
    assert prepare(recipe({**data, "cache_gib": advised}), tmp_path / "cache").shards is not None


def test_what_is_not_in_files_is_refused(refuses, tmp_path: Path, recipe: MakeRecipe) -> None:
    with refuses(DataError, names=["builtin:python-docs", "leave data.cache_gib out"]):
        prepare(recipe({"path": "builtin:python-docs", **LITTLE}), tmp_path / "cache")


def test_too_few_documents_are_refused(refuses, tmp_path: Path, recipe: MakeRecipe) -> None:
    path = tmp_path / "one.txt"
    path.write_text("the cat sat on the mat\n" * 400)
    with refuses(DataError, names=["data.document_start"]):
        prepare(recipe({"path": path, **LITTLE}), tmp_path / "cache")


@pytest.mark.parametrize(
    "other", [{"layout": "document"}, {"split_by": "position"}, {"max_documents": 10}]
)
def test_settings_that_need_all_documents_at_once_are_refused(
    files: Path, recipe: MakeRecipe, other: JsonDict
) -> None:
    with pytest.raises(ValidationError, match=r"with data\.cache_gib"):
        recipe({"path": files, **LITTLE, **other})


def test_other_methods_do_without(tiny: MakeRecipe, refuses: Refuses) -> None:
    with refuses(Exception, names=["data.cache_gib"]):
        tiny("data.cache_gib=1", "method=mlm", "model.architecture=modernbert")
