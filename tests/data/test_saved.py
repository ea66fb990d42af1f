"""Folders that the library datasets saved."""

import json
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.saved import is_saved
from brimful.data.sources import open_rows, open_source
from brimful.recipe import DataRecipe

Make = Callable[..., DataRecipe]


def save(folder: Path, **splits: list[JsonDict]) -> Path:
    """A Dataset for one split named `only`, else a DatasetDict."""
    made = {name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}
    if "only" in made:
        made["only"].save_to_disk(folder)
    else:
        datasets.DatasetDict(made).save_to_disk(folder)
    return folder


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


def test_a_data_set_is_read_as_documents_and_as_rows(tmp_path: Path, data_recipe: Make) -> None:
    """Messages come out as lists of objects."""
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    folder = save(tmp_path / "saved", only=[{"text": "x", "messages": messages}] * 3)
    assert is_saved(folder)
    assert not is_saved(tmp_path)
    assert list(open_source(data_recipe(folder)).parts[0].splits["train"]) == ["x"] * 3
    rows = list(open_rows(data_recipe(folder)).parts[0].splits["train"])
    assert rows[2].columns == {"text": "x", "messages": messages}
    assert rows[2].where == f"{folder}, split train, row 3"


def test_the_column_of_text_may_be_told_by_its_number(tmp_path: Path, data_recipe: Make) -> None:
    """Which counts all columns, not only the one that is read."""
    folder = save(tmp_path / "saved", only=[{"id": "1", "text": "x"}])
    source = open_source(data_recipe(folder, text_column=1))
    assert list(source.parts[0].splits["train"]) == ["x"]


def test_the_splits_of_a_dictionary_are_mapped_and_the_rest_is_noted(
    tmp_path: Path, data_recipe: Make, snapshot: SnapshotAssertion
) -> None:
    """As those of a hub data set."""
    rows = {name: [{"text": name}] for name in ("train", "dev", "extra")}
    source = open_source(data_recipe(save(tmp_path / "saved", **rows)))
    splits = source.parts[0].splits
    assert {name: list(texts) for name, texts in splits.items()} == {
        "train": ["train"],
        "validation": ["dev"],
    }
    assert [source.description, *source.notes] == snapshot


def test_the_fingerprint_follows_the_content(tmp_path: Path, data_recipe: Make) -> None:
    """Not the folder."""
    folders = [
        save(tmp_path / name, only=[{"text": text}])
        for name, text in [("one", "a"), ("two", "a"), ("three", "b")]
    ]
    found = [open_source(data_recipe(folder)).fingerprint for folder in folders]
    assert found[0] == found[1] != found[2]


def test_what_is_wrong_with_it_is_named(
    tmp_path: Path, data_recipe: Make, refuses: Refuses
) -> None:
    """A column, a file, no training split, an old layout."""
    folder = save(tmp_path / "saved", only=[{"body": "x"}])
    with refuses(DataError, names=["'text'", "body"]):
        list(open_source(data_recipe(folder)).parts[0].splits["train"])
    (arrow,) = folder.glob("*.arrow")
    arrow.write_bytes(b"damaged")
    with refuses(DataError, names=[arrow.name]):
        list(open_rows(data_recipe(folder)).parts[0].splits["train"])
    arrow.rename(folder / "other.arrow")
    with refuses(DataError, names=[arrow.name]):
        open_rows(data_recipe(folder))
    (folder / "state.json").write_text(json.dumps({"_indices_data_files": [{"filename": "x"}]}))
    with refuses(DataError, names=["state.json"]):
        open_rows(data_recipe(folder))
    with refuses(DataError, names=["one, two"]):
        open_rows(data_recipe(save(tmp_path / "two", one=[{"a": "x"}], two=[{"a": "x"}])))
