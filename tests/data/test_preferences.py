"""Rows of preferences are told apart, and the way to learn their chosen answers works."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.data.formats import examples_of
from brimful.data.rows import Row
from brimful.recipe import DataRecipe

Make = Callable[..., DataRecipe]
USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [ANSWER]},
        {"prompt": "q", "chosen": [USER, ANSWER], "rejected": [USER, ANSWER]},
        {"chosen": "Human: q Assistant: a", "rejected": "Human: q Assistant: b"},
        {"question": "q", "chosen_answer": "a", "rejected_answer": "b"},
    ],
)
def test_preferences_are_refused_with_the_method_and_a_way_that_works(
    data_recipe: Make, row: dict[str, Any], refuses: Refuses
) -> None:
    """The settings that the error names read the row."""
    with refuses(DataError, names=["row 1", "DPO"]) as caught:
        list(examples_of([Row(row, "row 1")], data_recipe("x")))
    found = re.search(r"data\.format=(\w+) data\.columns='(.*)'", str(caught.value))
    assert found is not None
    data = data_recipe("x", format=found[1], columns=yaml.safe_load(found[2]))
    (example,) = examples_of([Row(row, "row 1")], data)
    assert example.completion.endswith("a")


def test_judged_completions_are_refused(data_recipe: Make, refuses: Refuses) -> None:
    """Unless the recipe says that they are pairs; other labels do not matter."""
    row = {"prompt": "q", "completion": "a", "label": False}
    with refuses(DataError, names=["row 1", "KTO", "data.format=prompt"]):
        list(examples_of([Row(row, "row 1")], data_recipe("x")))
    assert list(examples_of([Row(row, "row 1")], data_recipe("x", format="prompt")))
    assert list(examples_of([Row({**row, "label": "x"}, "row 1")], data_recipe("x")))
