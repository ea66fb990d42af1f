"""Cells become labels, and what is no label is named with its place and a way out."""

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DataError
from brimful.data.labels import (
    LabelCell,
    Labels,
    are_lists,
    check_known,
    choose_names,
    label_counts,
    names_in_cell,
    naming_notes,
    positive_of,
    targets_of,
)
from brimful.recipe import LabelsRecipe

COLUMNS = ("text", "label")


def rules(**fields: Any) -> LabelsRecipe:
    return LabelsRecipe(**fields)


def names(value: Any, *, multiple: bool = False, **fields: Any) -> tuple[str, ...]:
    return names_in_cell(LabelCell(value, "a.csv:7"), rules(**fields), multiple=multiple)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (" spam ", "spam"),
        (1, "1"),
        (1.0, "1"),
        (-2, "-2"),
        (True, "true"),
        ("1.0", "1.0"),
        ("Spam", "Spam"),
    ],
)
def test_whole_numbers_truth_values_and_trimmed_texts_are_labels(value: Any, name: str) -> None:
    """Case is kept."""
    assert names(value) == (name,)


@pytest.mark.parametrize("value", [None, "", "  ", float("nan")])
def test_a_missing_label_is_an_error_with_its_place(value: Any, refuses: Refuses) -> None:
    """Empty, null or not a number."""
    with refuses(DataError, names=["a.csv:7"]):
        names(value)


@pytest.mark.parametrize(
    "value",
    [0.5, {"a": 1}, ["a"]],
)
def test_what_names_no_class_is_an_error(value: Any, refuses: Refuses) -> None:
    """With the value."""
    with refuses(DataError):
        names(value)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a, b,,a", ("a", "b")),
        ("", ()),
        ([], ()),
        (["b", "a", "b"], ("b", "a")),
        ([1, 2.0, True], ("1", "2", "true")),
        (3, ("3",)),
    ],
)
def test_a_cell_of_several_labels_is_a_list_or_a_text_cut_at_the_separator(
    value: Any, found: tuple[str, ...]
) -> None:
    """Each once; an empty cell says that there is none."""
    assert names(value, multiple=True) == found


def test_another_separator_and_a_missing_cell_of_several_labels(
    refuses: Refuses,
) -> None:
    """Null is not an empty list."""
    assert names("a,b|c", multiple=True, separator="|") == ("a,b", "c")
    with refuses(DataError):
        names(None, multiple=True)


def test_mapping_merges_classes() -> None:
    """Also within a list."""
    assert names("2", mapping={"2": "1"}) == ("1",)
    assert names("2,1,0", multiple=True, mapping={"2": "1"}) == ("1", "0")


def test_cells_that_are_lists_mean_several_labels_unless_the_recipe_says() -> None:
    """Either way."""
    lists, plain = [LabelCell("a", "x"), LabelCell(["a"], "x")], [LabelCell("a,b", "x")]
    assert [are_lists(lists, rules()), are_lists(plain, rules())] == [True, False]
    assert [are_lists(lists, rules(kind="single")), are_lists(plain, rules(kind="multiple"))] == [
        False,
        True,
    ]


def test_labels_are_those_of_training_in_order() -> None:
    """Numbers by size; the recipe's as it has them."""
    assert choose_names([("10",), ("9",), ("-1",)], rules(), COLUMNS, multiple=False) == (
        "-1",
        "9",
        "10",
    )
    assert choose_names([("b",), ("a",), ("10",)], rules(), COLUMNS, multiple=False) == (
        "10",
        "a",
        "b",
    )
    assert choose_names(
        [("b",), ("a",)], rules(names=["b", "a", "c"]), COLUMNS, multiple=False
    ) == ("b", "a", "c")


def test_one_class_only_is_an_error(refuses: Refuses) -> None:
    """With its name and number of texts; one label that some texts have is two classes."""
    with refuses(DataError, names=["5 training", "'ham'"]):
        choose_names([("ham",)] * 5, rules(), COLUMNS, multiple=False)
    assert choose_names([("toxic",), ()], rules(), COLUMNS, multiple=True) == ("toxic",)
    with refuses(DataError, names=["2 training"]):
        choose_names([(), ()], rules(), COLUMNS, multiple=True)


def test_a_label_column_that_holds_texts_is_an_error_that_suggests_the_other_way_round(
    refuses: Refuses,
) -> None:
    """Many labels are fine where they come back."""
    texts = [(f"some text {number}",) for number in range(150)]
    with refuses(
        DataError, names=["'label'", "150 different", "150 rows", "data.text_column=text"]
    ):
        choose_names(texts, rules(), COLUMNS, multiple=False)
    assert len(choose_names(texts * 2, rules(), COLUMNS, multiple=False)) == 150


def test_an_unknown_label_is_named_with_place_number_and_remedy(
    snapshot: SnapshotAssertion,
) -> None:
    """The nearest known one, too."""
    with pytest.raises(DataError) as caught:
        check_known(
            [("ham",), ("spamm",), ("x",)], ["t:1", "t:2", "t:3"], ("ham", "spam"), "test", rules()
        )
    said = str(caught.value)
    assert said == snapshot
    check_known([("ham",)], ["t:1"], ("ham", "spam"), "test", rules())


def test_an_unknown_label_of_ten_megabytes_gives_a_short_error_at_once() -> None:
    """Texts may stand where labels should."""
    started = time.process_time()
    with pytest.raises(DataError) as caught:
        check_known([("word " * 2_000_000,)], ["t:1"], ("ham", "spam" * 1_000_000), "test", rules())
    assert len(str(caught.value)) < 600
    assert time.process_time() - started < 1


def test_a_label_that_the_recipe_does_not_list_is_unknown_in_training_too(
    refuses: Refuses,
) -> None:
    """The list is the recipe's."""
    with refuses(DataError, names=["labels.names"]):
        check_known([("zzz",)], ["t:1"], ("a", "b"), "train", rules(names=["a", "b"]))


def test_the_positive_label_is_the_recipes_else_the_rarer() -> None:
    """The second of two equally frequent ones; none with three, or with several per text."""
    counts = {"a": 3, "b": 7}
    assert positive_of(("a", "b"), counts, rules(), multiple=False) == 0
    assert positive_of(("a", "b"), counts, rules(positive="b"), multiple=False) == 1
    assert positive_of(("a", "b"), {"a": 5, "b": 5}, rules(), multiple=False) == 1
    assert positive_of(("a", "b", "c"), counts, rules(), multiple=False) is None
    assert positive_of(("a", "b"), counts, rules(), multiple=True) is None


def test_a_positive_label_that_makes_no_sense_is_an_error(refuses: Refuses) -> None:
    """Not there, or one of three."""
    with refuses(DataError, names=["'spma'", "'spam'"]):
        positive_of(("ham", "spam"), {}, rules(positive="spma"), multiple=False)
    with refuses(DataError):
        positive_of(("a", "b", "c"), {}, rules(positive="a"), multiple=False)


def test_targets_are_numbers_or_rows_of_ones() -> None:
    """In the order of the names."""
    single = targets_of([("b",), ("a",)], Labels(("a", "b")))
    assert (single.dtype, single.tolist()) == (np.int64, [1, 0])
    several = targets_of([("b", "a"), (), ("c",)], Labels(("a", "b", "c"), multiple=True))
    assert (several.dtype, several.tolist()) == (np.float32, [[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    assert targets_of([], Labels(("a", "b"), multiple=True)).shape == (0, 2)


def test_texts_are_counted_by_label() -> None:
    """Labels without texts count 0."""
    single, several = Labels(("a", "b", "c")), Labels(("a", "b", "c"), multiple=True)
    assert label_counts(targets_of([("b",), ("a",), ("b",)], single), single) == [1, 2, 0]
    assert label_counts(targets_of([("b", "a"), (), ("b",)], several), several) == [1, 2, 0]


def test_notes_say_which_number_is_which_label_and_what_had_no_effect(
    snapshot: SnapshotAssertion,
) -> None:
    """Mapping, the positive label, what training lacks."""
    cells = [LabelCell("0", "x"), LabelCell("2", "x")]
    chosen = rules(mapping={"2": "1", "3": "1"}, names=["0", "1", "9"])
    assert (
        naming_notes(cells, Labels(("0", "1", "9")), chosen, Counter({"0": 3, "1": 1})) == snapshot
    )
    assert (
        naming_notes(
            cells, Labels(("ham", "spam"), positive=1), rules(), Counter({"ham": 3, "spam": 1})
        )[1]
        == snapshot
    )
