"""The answer as a view: every number in the table, what goes beyond a device in words, terms as bars
on one scale.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from small_plans import SMALL
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.base.units import GIB
from brimful.chains.plans import survey
from brimful.hardware import catalog
from brimful.planning.plan import Choice, Prediction, Predictions, Verdict
from brimful.planning.remedies import Remedy
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe
from brimful.report.bars import Bars
from brimful.report.page.html import render_view
from brimful.report.plan.fit_view import fit_view, remedy_line
from brimful.report.plan.table import Entries
from brimful.report.table import Cell, Gauge, Table
from brimful.report.terminal import told
from brimful.report.views import Paragraph, View

TERMS = {"weights": 30 * GIB, "activations": 10 * GIB}
PEAK = Prediction(40 * GIB, 38 * GIB, 42 * GIB, "traced")
TIMES = {
    "step_time_s": Prediction(1.5, 1.2, 2.0, "rates"),
    "total_time_s": Prediction(7200, 7000, 9000, "rates"),
    "cost_usd": Prediction(3.2, 3.0, 4.0, "$1.60 an hour"),
    "energy_wh": Prediction(800, 700, 900, ""),
}
NOTE = Paragraph("A note.", "note")
Make = Callable[..., Surveyed]


@pytest.fixture(scope="module")
def make(new_cache: Callable[[], str]) -> Make:
    """`make(verdict, largest, times, **footprint)`: a small recipe on a device where it takes
    that.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRIMFUL_CACHE", new_cache())
        (entry,) = survey(Recipe.model_validate(SMALL), "Tesla T4")
    assert isinstance(entry, Surveyed)

    def made(
        verdict: Verdict = "fits",
        largest: int = 0,
        times: Predictions = TIMES,
        **changes: Any,
    ) -> Surveyed:
        derived = entry.derived
        plan = replace(
            derived.plan,
            predicted=times,
            micro_batches=(1,) * 8,
            choices=(Choice("compile", False, "too short", True),),
        )
        footprint = replace(
            derived.footprint,
            verdict=verdict,
            **{"usable_bytes": 80 * GIB, "driver": PEAK, "terms": TERMS, "micro_batch": 2}
            | {"parameters": 1000, "trainable": 10}
            | changes,
        )
        derived = replace(derived, plan=plan, footprint=footprint, largest=largest)
        return Surveyed(derived)

    return made


@pytest.fixture
def entries(make: Make) -> Entries:
    """A device that is too small, one that is large, and one of which nothing is known."""
    small = make("does not fit", usable_bytes=16 * GIB, micro_batch=1)
    remedy = Remedy("qlora", "less exact", "quantize=nf4", small.derived.footprint, 4)
    return (
        replace(small, remedies=(remedy,)),
        make(largest=4, terms=TERMS | {"dust": 1}),
        Unplanned(catalog.get("Apple M1"), "no rates are known"),
    )


def rows(view: View) -> list[JsonDict]:
    """The cells of the devices by their columns."""
    table = view.sections[0].blocks[0]
    assert isinstance(table, Table)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def alone(entry: Surveyed) -> JsonDict:
    """The cells of one device that is asked about alone."""
    return rows(fit_view("", [entry]))[0]


def memory(view: View) -> Bars:
    """The bars of a view."""
    (bars,) = (each for part in view.sections for each in part.blocks if isinstance(each, Bars))
    return bars


def test_terms_are_bars_on_one_scale_that_look_alike_on_every_device(entries: Entries) -> None:
    small, large = memory(fit_view("", entries)).bars

    assert (small.size, small.text, large.size) == (40 * GIB, "40.0 GiB", 40 * GIB + 1)
    places = [{part.name: part.place for part in bar.parts} for bar in (small, large)]
    assert places[0].items() <= places[1].items()


def test_terms_that_are_small_everywhere_are_added_up(make: Make) -> None:
    many = {f"term {number}": (number + 1) * GIB for number in range(12)}
    (bar,) = memory(fit_view("", [make(terms=many)])).bars

    assert [part.name for part in bar.parts] == [
        *(f"term {number}" for number in range(5, 12)),
        "Everything else",
    ]
    assert bar.size == sum(many.values())


@pytest.mark.parametrize(
    ("verdict", "peak_gib", "interval", "beyond"),
    [
        ("fits", (60, 50, 120), "50.0 GiB to 80.0 GiB", ""),
        ("fits", (1, -1, 2), "0 B to 2.00 GiB", ""),
        ("uncertain", (70, 50, 79), "50.0 GiB to 79.0 GiB", ""),
        ("uncertain", (60, 50, 120), "50.0 GiB to 120.0 GiB", "may need more than it has"),
        ("uncertain", (81, 60, 90), "60.0 GiB to 90.0 GiB", "needs more than it has"),
        ("uncertain", (100, 60, 120), "60.0 GiB to 120.0 GiB", "needs 1.2 x what it has"),
    ],
)
def test_a_bar_ends_at_what_the_device_has_and_more_is_told_in_words(
    make: Make, verdict: Verdict, peak_gib: tuple[int, int, int], interval: str, beyond: str
) -> None:
    peak = Prediction(*(each * GIB for each in peak_gib), "traced")
    cells = alone(make(verdict, driver=peak))
    room = cells["Room"]

    assert isinstance(room, Gauge)
    assert room.place(peak.value) == min(100.0, 100 * peak_gib[0] / 80)
    assert room.text == "of 80.0 GiB"
    assert (cells["Peak memory"].interval_text, cells["Peak memory"].note) == (interval, beyond)


def test_a_cost_below_a_cent_has_no_interval_of_signs(make: Make) -> None:
    cheap, near = Prediction(0.002, 0.001, 0.004, ""), Prediction(0.01, 0.001, 0.02, "")

    assert alone(make(times=TIMES | {"cost_usd": cheap}))["Cost"].interval is None
    told = alone(make(times=TIMES | {"cost_usd": near}))["Cost"].interval_text
    assert told == "< $0.01 to $0.02"


def test_the_view_in_words(entries: Entries, snapshot: SnapshotAssertion) -> None:
    view = fit_view("LoRA", entries, [NOTE])
    closely = fit_view("LoRA", entries, looks_closely=True)

    assert (view.lead, view.headline) == ("1.00k parameters, of which 10 train.", (NOTE,))
    shown = {each.key: str(told(each.blocks)) for each in view.sections}
    assert shown == snapshot
    looks = {each.key: str(told(each.blocks)) for each in closely.sections}
    assert [key for key in shown if shown[key] != looks[key]] == ["fit-advice"]
    assert looks["fit-advice"] == snapshot
    assert rows(view)[0]["Room"].about == (
        "Tesla T4 does not fit: 40.0 GiB of 16.0 GiB. weights 30.0 GiB, activations 10.0 GiB"
    )
    assert [str(cell) for cell in rows(view)[2].values()][1:4] == ["unknown", "-", ""]
    whole = fit_view("LoRA", [entries[1]])
    assert [each.key for each in whole.sections] == ["fit-table", "fit-memory", "fit-reasons"]


@pytest.mark.parametrize(
    ("verdict", "micro_batch", "largest", "told"),
    [
        ("does not fit", 1, 0, "not even 1 fits"),
        ("does not fit", 4, 0, "not even 1 surely fits"),
        ("does not fit", 4, 2, "up to 2 fit"),
        ("uncertain", 1, 0, "1 may fit"),
        ("uncertain", 4, 0, "not even 1 surely fits"),
        ("uncertain", 4, 3, "up to 3 surely fit"),
        ("fits", 2, 4, "up to 4 fit"),
    ],
)
def test_how_many_fit_agrees_with_the_verdict(
    make: Make, verdict: Verdict, micro_batch: int, largest: int, told: str
) -> None:
    assert alone(make(verdict, largest, micro_batch=micro_batch))["Micro-batch"].note == told


def test_a_remedy_that_may_help_is_not_told_as_one_that_does_not(
    make: Make, snapshot: SnapshotAssertion
) -> None:
    no, perhaps = (make(verdict).derived.footprint for verdict in ("does not fit", "uncertain"))
    remedy = Remedy("fewer", "less", "a=b", no, 0)

    remedies = (remedy, replace(remedy, footprint=perhaps), replace(remedy, largest=1))
    assert [remedy_line(each) for each in remedies] == snapshot


def test_texts_are_escaped_and_verdicts_have_their_colours(entries: Entries) -> None:
    shown = render_view(fit_view("on a <model>", entries))

    assert "on a &lt;model&gt;" in shown
    assert '<span class="big good">fits</span>' in shown
    assert '<span class="big bad">does not fit</span>' in shown


def test_a_run_of_unknown_length_is_told_by_a_billion_tokens(make: Make) -> None:
    cells = alone(make(times={"billion_tokens_s": Prediction(3600, 3000, 4000, "")}))

    assert cells["1B tokens"].text == "1h 00m"
    assert isinstance(cells["Cost of 1B"], Cell)
    assert "In all" not in cells
