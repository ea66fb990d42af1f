"""Numbers read in the unit that ends their names."""

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.report.quantities import (
    format_error,
    format_micro_batches,
    format_quantity,
    format_score,
    format_value,
    label,
    listed,
    ranks_text,
    watched,
)
from brimful.runs.records import RanksRecord, read_record


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (0.0321, "+3.2 %"),
        (-0.412, "-41 %"),
        (0.0, "0 %"),
        (0.0002, "0 %"),
        (-0.0007, "-0.1 %"),
        (2.5, "+250 %"),
    ],
)
def test_errors_carry_their_sign_and_as_many_digits_as_matter(error: float, text: str) -> None:
    assert format_error(error) == text


@pytest.mark.parametrize(
    ("sizes", "text"), [([8, 8, 3], "2 x 8 + 3"), ([4], "4"), ([], ""), (None, "")]
)
def test_micro_batches_are_counted(sizes: list[int] | None, text: str) -> None:
    assert format_micro_batches(sizes) == text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("peak_memory_bytes", 1536, "1.50 KiB"),
        ("bandwidth_bytes_per_s", 2048, "2.00 KiB/s"),
        ("dense_flop_per_s", 9.9e14, "990 TFLOP/s"),
        ("step_time_s", 0.25, "250 ms"),
        ("step_time_s", 0.9996, "1.00 s"),
        ("step_time_s", 0.06, "60.0 ms"),
        ("step_time_s", 1.2345, "1.23 s"),
        ("step_time_s", 75.0, "1m 15s"),
        ("total_time_s", 1.2345, "1.2 s"),
        ("tokens_per_s", 12_345, "12.35k"),
        ("mfu", 0.4123, "41.2 %"),
        ("seconds", 90, "1m 30s"),
        ("parameters", 23_240_000, "23.24M"),
        ("vocabulary", 2048, "2,048"),
        ("unknown_share", 0.0025, "0.25 %"),
        ("characters_per_token", 3.08, "3.08"),
    ],
)
def test_a_quantity_prints_in_the_unit_its_name_ends_with(
    key: str, value: float, text: str
) -> None:
    assert format_quantity(key, value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.458, "share", "45.8%"),
        (12.34, "BLEU", "12.34 BLEU"),
        (7.0, "", "7"),
        (None, "", "not known"),
    ],
)
def test_a_score_prints_in_its_unit(value: float | None, unit: str, text: str) -> None:
    assert format_score(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (True, "yes"), ([1, "a"], "1, a"), ({"a": 1024}, "a: 1,024")]
)
def test_any_json_value_reads_as_text(value: object, text: str) -> None:
    assert format_value("anything", value) == text


def test_names_become_words_and_lists() -> None:
    assert label("peak_memory_bytes") == "Peak memory"
    assert [listed(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]


def test_the_slowest_rank_the_share_of_communication_and_the_fullest_rank_are_named(
    snapshot: SnapshotAssertion,
) -> None:
    record = read_record(
        {
            "kind": "ranks",
            "step": 9,
            "ranks": [
                {"rank": 0, "computing_s": 1.0, "communication_s": 1.0, "memory_bytes": 3 << 30},
                {"rank": 1, "computing_s": 2.0, "communication_s": 0.0, "memory_bytes": 2 << 30},
            ],
        }
    )

    assert isinstance(record, RanksRecord)
    assert ranks_text(record) == snapshot


def test_what_is_watched_while_training_has_one_f1_that_at_the_best_threshold_first() -> None:
    """At even odds a rare label has an F1 of 0 for long, and by this one the best model is kept."""
    assert watched({"f1": 0.0, "best_f1": 0.6, "macro_f1": 0.4}) == {"best_f1": 0.6}
    assert watched({"macro_f1": 0.4, "best_f1": 0.6}) == {"best_f1": 0.6}
    assert watched({"f1": 0.9, "macro_f1": 0.8, "accuracy": None, "pr_auc": 0.7, "loss": 1.0}) == {
        "f1": 0.9,
        "pr_auc": 0.7,
    }
    assert watched({"macro_f1": 0.8}) == {"macro_f1": 0.8}
