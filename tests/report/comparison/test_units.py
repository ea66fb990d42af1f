"""The table of a comparison: values in their units, with intervals."""

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.report.comparison.compare import RunComparison, compare
from brimful.report.comparison.text import comparison_text
from brimful.report.comparison.units import comparison_table


@pytest.fixture
def comparison(scored_run: MakeRun) -> RunComparison:
    base, one = (
        scored_run("base", rank=1, share=0.1, loss=3.0),
        scored_run("lora-8", rank=8, seed=2, share=0.6, loss=2.0),
    )
    return compare([base, one, scored_run("lora-16", seed=5, share=0.6, loss=2.0)])


def test_each_variant_has_a_row_with_intervals_where_they_exist(
    comparison: RunComparison, snapshot: SnapshotAssertion
) -> None:
    table = comparison_table(comparison)

    assert table.columns == snapshot
    assert [row[0] for row in table.rows] == ["base", "lora-8", "lora-16"]
    assert table.text_rows[0][1].startswith("2.9")
    assert table.text_rows[0][1].endswith(" [2.920, 3.080]")
    assert table.text_rows[1][3:] == ("612", "12.07k", "1.18 GiB", "2m 58s")


def test_seeds_have_a_column_where_there_are_several(
    scored_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    runs = [scored_run(f"lora-16-seed{seed}", seed=seed) for seed in (1, 2, 3)]
    comparison = compare([*runs, scored_run("lora-8", rank=8, seed=9)])

    table = comparison_table(comparison)

    assert table.columns[1] == "Seeds"
    assert [row[:2] for row in table.rows] == [("lora-16", 3), ("lora-8", 1)]
    assert comparison_text(comparison, 400) == snapshot


def test_a_figure_that_does_not_depend_on_the_seed_has_no_interval(
    scored_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    runs = [scored_run(f"a-seed{seed}", seed=seed) for seed in (1, 2)]

    table = comparison_table(compare([*runs, scored_run("b", rank=8)]))

    cells = dict(zip(table.columns, table.text_rows[0], strict=True))
    assert cells["Trainable parameters"] == "612"
    assert cells["Code-syntax syntax (%)"] == snapshot
