"""A classifier's scores in a terminal."""

import copy
from collections.abc import Callable

from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.text import evaluation_lines

LabelScore = Callable[..., JsonDict]


def test_splits_are_told_whole_where_they_count(
    label_score: LabelScore, snapshot: SnapshotAssertion
) -> None:
    scores = {
        "test": label_score("ham", "spam", positive="spam"),
        "validation": label_score("ham", "spam", positive="spam", seed=1),
    }
    assert evaluation_lines(scores) == snapshot
    many = tuple(f"intent {number}" for number in range(24))
    bare = {"floor": False, "repeated": 0}
    assert evaluation_lines({"test": label_score(*many, sharpness=4.0, **bare)}) == snapshot
    several = label_score("sport", "tax", "war", multiple=True)
    assert evaluation_lines({"test": several}) == snapshot
    assert evaluation_lines({"test": {"kind": "labels", "labels": ["a", "b"]}}) == snapshot


def test_what_does_not_fit_a_terminal_stands_in_a_table_below(label_score: LabelScore) -> None:
    lines = evaluation_lines({"test": label_score("ham", "spam", positive="spam")}, 80)
    tables = lines[1 : next(n for n, line in enumerate(lines) if "A text is given" in line)]
    assert max(map(len, tables)) <= 80
    assert sum(line.startswith("  Metric ") for line in tables) > 1
    assert any("Difference" in line for line in tables)


def test_a_text_cannot_speak_to_the_terminal_and_is_cut(label_score: LabelScore) -> None:
    score = copy.deepcopy(label_score("ham", "spam", positive="spam"))
    score["mistakes"] = [
        {
            "text": "\x1b[2Jtwo\nlines " + "x" * 200,
            "label": "ham",
            "predicted": "spam",
            "probability": 0.99,
            "where": "f:1",
        }
    ]
    line = evaluation_lines({"test": score})[-1]
    text = "\\x1b[2Jtwo lines " + "x" * 86
    assert line == f"    spam with 0.990, but ham: {text}... (f:1)"
