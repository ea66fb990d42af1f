"""Pairs of right and wrong answers: which, how many, and what is told where there are none."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.preferences import preferences_of
from brimful.data.readers import read_rows
from brimful.recipe import DataRecipe
from brimful.selection.choose import SelectionRules, prefix
from brimful.selection.journal import PAIRS_FILE
from brimful.selection.pairs import PairCounts, write_pairs
from brimful.selection.sample import JudgedSample, SampledPrompt

RULES = SelectionRules(samples_per_prompt=12, keep_per_prompt=2)
WRONG: JsonDict = {"status": "wrong", "detail": "other number"}


def asked(*names: str) -> list[SampledPrompt]:
    return [SampledPrompt(name, f"What is {name}?", (1, 2)) for name in names]


def written(
    folder: Path, samples: list[JudgedSample], *names: str, most: int = 4, seed: int = 1
) -> tuple[PairCounts, list[tuple[str, str]]]:
    counted = [
        each
        for name in names
        for each in prefix([one for one in samples if one.question == name], RULES)
    ]
    counts = write_pairs(folder, asked(*names), counted, RULES, most, seed)
    path = folder / PAIRS_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return counts, [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows]


def test_answers_are_paired_evenly(tmp_path: Path, sample: Any) -> None:
    """Each answer as often as the others, no pair twice, and the same pairs for the same seed."""
    samples = [sample(number) for number in range(2)]
    samples += [sample(number, **WRONG) for number in range(2, 8)]
    counts, pairs = written(tmp_path, samples, "q")
    assert counts == PairCounts(4, 1, 0, 0)
    assert len(set(pairs)) == 4
    assert set(Counter(chosen for chosen, _ in pairs).values()) == {2}
    assert {chosen for chosen, _ in pairs} == {"text 0", "text 1"}
    assert len({rejected for _, rejected in pairs}) == 4
    assert written(tmp_path, samples, "q")[1] == pairs
    assert any(written(tmp_path, samples, "q", seed=seed)[1] != pairs for seed in range(2, 9))
    assert written(tmp_path, samples, "q", most=1)[0].pairs == 1
    assert written(tmp_path, samples, "q", most=99)[0].pairs == 6


def test_only_whole_distinct_answers_are_paired(tmp_path: Path, sample: Any) -> None:
    """Cut, contaminated, repeated and empty ones are not."""
    samples = [
        sample(0),
        sample(1, path="path 0"),
        sample(2, contaminated_by="test 3"),
        sample(3, finish="length", **WRONG),
        sample(4, completion=" ", **WRONG),
        sample(5, **WRONG),
        sample(6, status="unparsed"),
    ]
    _, pairs = written(tmp_path, samples, "q")
    assert sorted(pairs) == [("text 0", "text 5"), ("text 0", "text 6")]


def test_questions_without_both_are_told(
    tmp_path: Path, sample: Any, snapshot: SnapshotAssertion, refuses: Refuses
) -> None:
    """Their number is said; where no question has both there is no file, an older one is gone."""
    samples = [
        *(sample(number, question="easy") for number in range(2)),
        *(sample(number, question="hard", **WRONG) for number in range(2)),
        sample(0, question="both"),
        sample(1, question="both", **WRONG),
    ]
    counts, pairs = written(tmp_path, samples, "easy", "hard", "both")
    assert pairs == [("text 0", "text 1")]
    assert counts.line == snapshot
    counts.refuse_none()
    counts, pairs = written(tmp_path, samples, "easy", "hard")
    assert not pairs
    with refuses(DataError, names=["rft.samples_per_prompt"]):
        counts.refuse_none()


@pytest.mark.parametrize("prompt", [None, "What is 1? "])
def test_the_rows_are_read_as_pairs(tmp_path: Path, sample: Any, prompt: str | None) -> None:
    """Messages, or text where the question is asked as text."""
    question = SampledPrompt("q", "What is 1?", (1,), prompt=prompt)
    samples = prefix([sample(0), sample(1, **WRONG)], RULES)
    write_pairs(tmp_path, [question], samples, RULES, 4, 1)
    rows = read_rows(tmp_path / PAIRS_FILE)
    (pair,) = preferences_of(rows, DataRecipe(path="x", format="prompt"))
    assert (pair.chosen.completion, pair.rejected.completion) == ("text 0", "text 1")
    assert isinstance(pair.chosen.prompt, str) is (prompt is not None)
