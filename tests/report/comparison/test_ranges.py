"""Values of one metric share a scale, with their intervals."""

from fixture_types import MakeRun

from brimful.report.comparison.compare import compare
from brimful.report.comparison.ranges import all_ranges, has_ranges, range_table
from brimful.report.table import Gauge
from brimful.report.views import Heading


def test_every_variant_lies_on_one_scale_with_its_interval(
    scored_run: MakeRun,
) -> None:
    comparison = compare(
        [scored_run("a", rank=8, loss=2.0), scored_run("b", rank=16, seed=2, loss=2.5)]
    )
    places = []
    for _, gauge in range_table(comparison, "validation loss").rows:
        assert isinstance(gauge, Gauge)
        assert gauge.interval is not None
        assert gauge.at is not None
        places += [gauge.place(each) for each in (gauge.interval[0], gauge.at, gauge.interval[1])]
    assert places == sorted(places), "the second is above the first"
    assert 0 < places[0] < places[-1] < 100


def test_what_repeats_the_loss_or_has_a_chart_is_not_drawn(scored_run: MakeRun) -> None:
    comparison = compare([scored_run("a")])
    loss = "Validation loss (nats/token)"
    assert Heading(f"{loss}: lower is better") in all_ranges(comparison)
    assert not [
        each
        for each in all_ranges(comparison, frozenset({loss}))
        if isinstance(each, Heading) and loss in each.text
    ]
    assert not has_ranges("perplexity per token")
