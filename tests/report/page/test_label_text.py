"""A classifier's scores in a terminal."""

import copy
from collections.abc import Callable

from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.text import evaluation_lines

LabelScore = Callable[..., JsonDict]


def test_two_splits_are_told_with_floor_labels_confusions_and_mistakes_of_test_alone(
    label_score: LabelScore, snapshot: SnapshotAssertion
) -> None:
    scores = {
        "test": label_score("ham", "spam", positive="spam"),
        "validation": label_score("ham", "spam", positive="spam", seed=1),
    }

    lines = evaluation_lines(scores)

    starts = [line.partition(":")[0] for line in lines if not line.startswith(" ")]
    assert starts == ["validation", "test"]
    border = lines.index(
        "test: ham and spam; 220 texts; 20 more repeat training texts and do not count; 1.2 s"
        " (intervals are 95 %)"
    )
    validation, test = lines[:border], lines[border:]
    assert validation == snapshot
    assert not any("floor" in line.lower() for line in validation)
    for told in (
        "The floor is a bag of words",
        "True label  given ham  given spam",
        "most confident mistakes:",
        "Label  Precision",
    ):
        assert any(told in line for line in test), told
    assert len([line for line in lines if "(messages.tsv:" in line]) == 3


def test_metrics_stand_in_columns_and_columns_without_anything_are_left_out(
    label_score: LabelScore,
    snapshot: SnapshotAssertion,
) -> None:
    bare = evaluation_lines({"test": label_score("a", "b", "c", floor=False, repeated=0)})
    whole = evaluation_lines({"test": label_score("a", "b", "c")})
    assert bare[1].split() == ["Metric", "This", "model"]
    assert whole[1] == snapshot


def test_what_does_not_fit_a_terminal_stands_in_a_table_below(label_score: LabelScore) -> None:
    lines = evaluation_lines({"test": label_score("ham", "spam", positive="spam")}, 80)
    tables = lines[1 : next(n for n, line in enumerate(lines) if "A text is given" in line)]
    assert max(map(len, tables)) <= 80
    assert sum(line.startswith("  Metric ") for line in tables) > 1
    assert any("Difference" in line for line in tables)


def test_many_labels_are_cut_to_the_worst_and_to_confused_pairs(
    label_score: LabelScore, snapshot: SnapshotAssertion
) -> None:
    names = tuple(f"intent {number}" for number in range(24))
    lines = evaluation_lines({"test": label_score(*names, floor=False, sharpness=4.0)})
    assert [line for line in lines if line.endswith(":")] == snapshot
    assert not any("given intent" in line for line in lines)
    assert lines[0] == snapshot


def test_several_labels_per_text_have_counts_in_place_of_a_matrix(label_score: LabelScore) -> None:
    lines = evaluation_lines({"test": label_score("sport", "tax", "war", multiple=True)})
    assert any(
        line.split() == ["Label", "Found", "Missed", "Given", "wrongly", "Rightly", "not", "given"]
        for line in lines
    )
    assert any("Thresholds (policy best_f1" in line for line in lines)


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


def test_a_split_of_which_nothing_is_known_still_has_its_line(snapshot: SnapshotAssertion) -> None:
    assert evaluation_lines({"test": {"kind": "labels", "labels": ["a", "b"]}}) == snapshot
