"""Rows that another method learns from are refused, and the advice of the error works."""

import re
from collections.abc import Callable

import pytest
import yaml
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.formats import examples_of
from brimful.data.preferences import judged_of, preferences_of
from brimful.data.rows import Row
from brimful.recipe import DataRecipe

Make = Callable[..., DataRecipe]
USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
WORSE = {"role": "assistant", "content": "b"}
JUDGED = {"prompt": "q", "completion": "a", "label": False}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [WORSE]},
        {"prompt": "q", "chosen": [USER, ANSWER], "rejected": [USER, WORSE]},
        {"chosen": "Human: q Assistant: a", "rejected": "Human: q Assistant: b"},
        {"question": "q", "chosen_answer": "a", "rejected_answer": "b"},
    ],
)
def test_preferences_are_refused_with_the_method_and_a_way_that_works(
    data_recipe: Make, row: JsonDict, refuses: Refuses
) -> None:
    """The settings that the error names read the row, for either method."""
    rows = [Row(row, "row 1")]
    with refuses(DataError, names=["row 1", "method=dpo"]) as caught:
        list(examples_of(rows, data_recipe("x")))
    found = re.search(r"data\.format=(\w+) data\.columns='(.*)'", str(caught.value))
    assert found is not None
    data = data_recipe("x", format=found[1], columns=yaml.safe_load(found[2]))
    (example,) = examples_of(rows, data)
    assert example.completion.endswith("a")
    renamed = re.search(r"method=dpo data\.columns='(.*?)'", str(caught.value))
    columns = yaml.safe_load(renamed[1]) if renamed else {}
    (pair,) = preferences_of(rows, data_recipe("x", columns=columns))
    assert pair.chosen.completion.strip() == "a"
    assert pair.rejected.completion.strip() == "b"


def test_judged_completions_are_refused(data_recipe: Make, refuses: Refuses) -> None:
    """Unless the recipe says that they are pairs; other labels do not matter."""
    rows = [Row(JUDGED, "row 1")]
    with refuses(DataError, names=["row 1", "method=kto", "data.format=prompt"]):
        list(examples_of(rows, data_recipe("x")))
    assert list(examples_of(rows, data_recipe("x", format="prompt")))
    assert [judged.desired for judged in judged_of(rows, data_recipe("x"))] == [False]
    assert list(examples_of([Row({**JUDGED, "label": "x"}, "row 1")], data_recipe("x")))


@pytest.mark.parametrize(
    "row",
    [{"prompt": "q", "completion": "a"}, JUDGED, {"messages": [USER, ANSWER]}, {"id": 1}],
)
def test_rows_without_pairs_are_refused(data_recipe: Make, row: JsonDict, refuses: Refuses) -> None:
    """With the method that learns from them, where there is one."""
    with refuses(DataError, names=["row 1"]):
        list(preferences_of([Row(row, "row 1")], data_recipe("x")))


def test_rows_without_verdicts_are_refused(data_recipe: Make, refuses: Refuses) -> None:
    """With the method that learns from them."""
    with refuses(DataError, names=["row 1", "method="]):
        list(judged_of([Row({"prompt": "q", "completion": "a"}, "row 1")], data_recipe("x")))


def test_a_pair_is_a_desired_answer_and_another(data_recipe: Make) -> None:
    row = {"prompt": "q", "chosen": "a", "rejected": "b"}
    answers = judged_of([Row(row, "row 1")], data_recipe("x"))
    assert [(each.completion, each.desired) for each in answers] == [("a", True), ("b", False)]
