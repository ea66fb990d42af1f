"""A comparison as people read it."""

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.comparison.compare import RunComparison, compare
from brimful.report.comparison.text import (
    comparison_markdown,
    comparison_text,
    sentences,
)


@pytest.fixture
def comparison(scored_run: MakeRun) -> RunComparison:
    base, one = (
        scored_run("base", rank=1, share=0.1, loss=3.0),
        scored_run("lora-8", rank=8, seed=2, share=0.6, loss=2.0),
    )
    return compare([base, one, scored_run("lora-16", seed=5, share=0.6, loss=2.0)])


def test_a_sentence_says_which_differences_are_real_and_which_are_not(
    comparison: RunComparison,
    snapshot: SnapshotAssertion,
) -> None:
    loss, syntax = sentences(comparison)

    assert loss == snapshot
    assert syntax == snapshot


def test_the_terminals_table_is_cut_into_blocks_of_columns_that_fit(
    comparison: RunComparison,
) -> None:
    narrow, wide = (
        comparison_text(comparison, 60).splitlines(),
        comparison_text(comparison, 400).splitlines(),
    )

    assert max(map(len, narrow)) <= 60
    assert [line.split()[0] for line in wide[1:4]] == ["base", "lora-8", "lora-16"]
    assert sum(line.startswith("lora-8 ") for line in narrow) > 1
    assert any(
        "differences are called real after correction for all 6 of them" in line for line in wide
    )
    assert any("another seed can change a score" in line for line in wide)


def test_markdown_has_the_same_rows(comparison: RunComparison) -> None:
    lines = comparison_markdown(comparison).splitlines()

    assert lines[1] == "| --- |" + " ---: |" * 6
    assert [line.split("|")[1].strip() for line in lines[2:5]] == ["base", "lora-8", "lora-16"]
    assert any(line.startswith("- Validation loss: lora-8 is better") for line in lines)


def test_several_pairs_that_cannot_be_distinct_names_stand_in_one_list(
    scored_run: MakeRun,
) -> None:
    runs = [scored_run(f"rank-{rank}", rank=rank, seed=1) for rank in (8, 16, 32)]

    loss, _ = sentences(compare(runs))

    zero = "(+0.000 [+0.000, +0.000] nats/token)"
    assert (
        loss
        == f"Validation loss: these cannot be told apart: rank-8 and rank-16 {zero}, rank-8 and"
        f" rank-32 {zero}, rank-16 and rank-32 {zero}. n = 100."
    )


def test_of_many_pairs_that_cannot_be_distinct_names_the_names_are_enough(
    scored_run: MakeRun,
    snapshot: SnapshotAssertion,
) -> None:
    runs = [scored_run(f"rank-{rank}", rank=rank, seed=1) for rank in (4, 8, 16, 32)]

    loss, _ = sentences(compare(runs))

    assert loss == snapshot
