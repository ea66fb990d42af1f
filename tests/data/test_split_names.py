"""Splits by name: of files, folders and lists."""

import json
from collections.abc import Callable
from pathlib import Path

from fixture_types import Refuses
from learned_rows import LINES, PAIRS, learned

from brimful.base.errors import DataError
from brimful.data.sources import open_rows
from brimful.recipe import DataRecipe


def test_splits_of_any_name(
    tmp_path: Path, data_recipe: Callable[..., DataRecipe], refuses: Refuses
) -> None:
    """Of files in a folder, of lists in one json, of a saved data set; each name is looked up."""
    for name in ("train_sft-00000-of-00002", "train_sft-00001-of-00002", "train_gen", "test_sft"):
        (tmp_path / f"{name}.jsonl").write_bytes(LINES)
    data = data_recipe(tmp_path, splits={"train": "train_sft", "validation": "test_sft"})
    assert {split: len(rows) for split, rows in learned(data).items()} == {
        "train": 8,
        "validation": 4,
    }
    assert "1 not used" in open_rows(data).notes[0]
    with refuses(DataError, names=["train_stf", "train_sft"]):
        open_rows(data_recipe(tmp_path, splits={"train": "train_stf"}))
    with refuses(DataError, names=["data.splits"]):
        open_rows(data_recipe(tmp_path / "test_sft.jsonl", splits={"train": "train"}))


def test_a_json_with_a_list_for_each_split(
    tmp_path: Path, data_recipe: Callable[..., DataRecipe]
) -> None:
    """Which list is which split is part of what identifies the data."""
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"train": PAIRS, "test": PAIRS[:1], "about": "pairs"}))
    assert {split: len(rows) for split, rows in learned(data_recipe(path)).items()} == {
        "train": 4,
        "test": 1,
    }
    turned = data_recipe(path, splits={"train": "test", "test": "train"})
    assert {split: len(rows) for split, rows in learned(turned).items()} == {"train": 1, "test": 4}
    assert open_rows(turned).fingerprint != open_rows(data_recipe(path)).fingerprint


def test_splits_that_are_mixed_by_their_beginnings_are_said(
    tmp_path: Path, data_recipe: Callable[..., DataRecipe]
) -> None:
    """Files of one name and several numbers are one split; of several names they may not be."""
    for name in ("train-1", "train-2", "test"):
        (tmp_path / f"{name}.jsonl").write_bytes(LINES)
    assert not open_rows(data_recipe(tmp_path)).notes
    (tmp_path / "train_gen.jsonl").write_bytes(LINES)
    assert "data.splits" in open_rows(data_recipe(tmp_path)).notes[0]
