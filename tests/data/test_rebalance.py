"""Training texts of the frequent label are left out, the least sure first; what is held out stays,
and the probabilities lose what that did to them.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from fixture_types import Refuses
from json_lines import write_rows
from tests.data.test_labelled import read

from brimful.base.errors import DataError
from brimful.base.types import JsonDict


def rows(*, sure: bool = True) -> list[JsonDict]:
    """300 texts that are nothing alike, every tenth of them bad, the later the surer."""
    return [
        {"text": f"{number:03d} " * 4, "label": "bad" if number % 10 == 0 else "good"}
        | ({"sure": number / 300} if sure else {})
        for number in range(300)
    ]


def texts_at(path: Path, rows: list[JsonDict]) -> Path:
    return write_rows(path, rows)


def test_the_least_sure_texts_of_the_frequent_label_are_left_out_of_training_alone(
    tmp_path: Path,
) -> None:
    path = texts_at(tmp_path / "rows.jsonl", rows())
    whole = read(path)
    kept = read(path, {"rebalance": {"share": 0.25, "confidence": "sure"}})

    assert kept.splits["validation"].texts == whole.splits["validation"].texts
    bad = int((whole.splits["train"].targets == whole.labels.positive).sum())
    targets = kept.splits["train"].targets
    assert (int((targets == kept.labels.positive).sum()), len(targets)) == (bad, 4 * bad)
    good = whole.labels.names.index("good")
    train = whole.splits["train"]
    surest = [
        text for text, label in zip(train.texts, train.targets, strict=True) if label == good
    ][-3 * bad :]
    assert set(surest) <= set(kept.splits["train"].texts)
    assert any(
        "training texts without the label 'bad' are left out" in each
        for each in kept.report["notes"]
    )
    assert kept.fingerprint != whole.fingerprint

    assert kept.log_kept_C is not None
    assert kept.log_kept_C[good] == pytest.approx(math.log(3 * bad / (len(train.texts) - bad)))
    assert kept.log_kept_C[1 - good] == 0


def test_without_a_column_chance_decides_and_always_alike(tmp_path: Path) -> None:
    changes: JsonDict = {"rebalance": {"share": 0.5}}
    first = read(texts_at(tmp_path / "a.jsonl", rows(sure=False)), changes)
    second = read(texts_at(tmp_path / "b.jsonl", rows(sure=False)), changes)
    assert first.splits["train"].texts == second.splits["train"].texts
    assert (
        np.bincount(first.splits["train"].targets).tolist()
        == [len(first.splits["train"].texts) // 2] * 2
    )


def test_a_share_that_is_there_already_leaves_all_texts(tmp_path: Path) -> None:
    path = texts_at(tmp_path / "rows.jsonl", rows())
    found = read(path, {"rebalance": {"share": 0.05}})
    assert found.log_kept_C is None
    assert found.splits["train"].texts == read(path).splits["train"].texts
    assert any("of the training texts already" in each for each in found.report["notes"])


@pytest.mark.parametrize(
    ("changed", "column"),
    [
        ({"sure": "very"}, "sure"),
        ({"sure": None}, "sure"),
        ({}, "certain"),
    ],
)
def test_a_column_that_holds_no_numbers_is_named(
    tmp_path: Path, changed: JsonDict, column: str, refuses: Refuses
) -> None:
    made = rows()
    made[7] |= changed
    with refuses(DataError):
        read(
            texts_at(tmp_path / "rows.jsonl", made),
            {"rebalance": {"share": 0.3, "confidence": column}},
        )


def test_three_labels_have_no_share_and_are_told_what_helps(
    tmp_path: Path, refuses: Refuses
) -> None:
    made = [{**row, "label": str(number % 3)} for number, row in enumerate(rows())]
    path = texts_at(tmp_path / "rows.jsonl", made)
    with refuses(DataError, names=["class_weights=balanced"]):
        read(path, {"rebalance": {"share": 0.3}})
    read(path, {"class_weights": "balanced"})
