"""Values of one metric share a scale, with their intervals."""

from collections.abc import Callable
from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from brimful.report.comparison.compare import compare
from brimful.report.comparison.ranges import all_ranges, has_ranges, ranges_of


def test_every_variant_lies_on_one_scale_with_its_interval(
    scored_run: Callable[..., Path], snapshot: SnapshotAssertion
) -> None:
    comparison = compare(
        [scored_run("a", rank=8, loss=2.0), scored_run("b", rank=16, seed=2, loss=2.5)]
    )
    drawn = ranges_of(comparison, "validation loss")
    assert drawn.title == "Validation loss (nats/token)"
    assert drawn.direction == snapshot
    low, high = drawn.rows
    assert 0 <= low.low <= low.at <= low.low + low.width < high.low <= high.at <= 100


def test_what_repeats_the_loss_or_has_a_chart_is_not_drawn(scored_run: Callable[..., Path]) -> None:
    comparison = compare([scored_run("a")])
    loss = "Validation loss (nats/token)"
    assert loss in [each.title for each in all_ranges(comparison)]
    assert loss not in [each.title for each in all_ranges(comparison, frozenset({loss}))]
    assert not has_ranges("perplexity per token")
