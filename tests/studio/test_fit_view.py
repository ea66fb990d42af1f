"""The answer as a view: every number in the table, what goes beyond a device in words, terms as bars
on one scale.
"""

from dataclasses import replace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.units import GIB
from brimful.planning.plan import Choice, Prediction
from brimful.report.bars import Bars
from brimful.report.table import Cell, Gauge, Table
from brimful.report.terminal import told
from brimful.studio.fit import DeviceFit, Fit, FitVerdict
from brimful.studio.fit_view import fit_view
from brimful.studio.html import view_piece

SMALL = DeviceFit(
    "Small",
    16 * GIB,
    "does not fit",
    "even 1 sequence would take about 40 GiB of 16 GiB",
    (("weights", 30 * GIB), ("activations", 10 * GIB)),
    Prediction(40 * GIB, 38 * GIB, 42 * GIB, "traced"),
    1,
    16,
    remedies=("qlora (quantize=nf4): 12 GiB",),
    choices=(Choice("compile", False, "too short"),),
)
LARGE = DeviceFit(
    "Large <b>",
    80 * GIB,
    "fits",
    "1 sequence takes 40 GiB",
    (("weights", 30 * GIB), ("activations", 10 * GIB), ("dust", 1)),
    Prediction(40 * GIB + 1, 38 * GIB, 42 * GIB, "traced"),
    2,
    8,
    4,
    Prediction(1.5, 1.2, 2.0, ""),
    Prediction(7200, 7000, 9000, ""),
    Prediction(3.2, 3.0, 4.0, ""),
    Prediction(800, 700, 900, ""),
)
UNKNOWN = DeviceFit("Odd", 8 * GIB, "unknown", "no rates are known")
FIT = Fit(
    "name: a\n", "LoRA of rank 16 on a <model>", (SMALL, LARGE, UNKNOWN), ("A note.",), 1000, 10
)


def row(fit: Fit, device: str) -> dict[str, Any]:
    """The cells of a device by their columns."""
    (table,) = (
        block
        for section in fit_view(fit).sections
        if section.key == "fit-table"
        for block in section.blocks
        if isinstance(block, Table)
    )
    (found,) = (each for each in table.rows if each[0] == device)
    return dict(zip(table.columns, found, strict=True))


def alone(device: DeviceFit) -> dict[str, Any]:
    """The cells of one device that is asked about alone."""
    return row(replace(FIT, devices=(device,)), device.device)


def memory(fit: Fit) -> Bars:
    """The bars of a view."""
    (bars,) = (
        block
        for section in fit_view(fit).sections
        for block in section.blocks
        if isinstance(block, Bars)
    )
    return bars


def test_terms_are_bars_on_one_scale_that_look_alike_on_every_device() -> None:
    small, large = memory(FIT).bars

    assert (small.size, small.text, large.size) == (40 * GIB, "40.0 GiB", 40 * GIB + 1)
    places = [{part.name: part.place for part in bar.parts} for bar in (small, large)]
    assert places[0].items() <= places[1].items()


def test_terms_that_are_small_everywhere_are_added_up() -> None:
    many = tuple((f"term {number}", (number + 1) * GIB) for number in range(12))
    (bar,) = memory(replace(FIT, devices=(replace(LARGE, terms=many),))).bars

    assert [part.name for part in bar.parts] == [
        *(f"term {number}" for number in range(5, 12)),
        "Everything else",
    ]
    assert bar.size == sum(size for _, size in many)


@pytest.mark.parametrize(
    ("verdict", "value", "low", "high", "told"),
    [
        ("fits", 60, 50, 120, "50.0 GiB to 80.0 GiB"),
        ("fits", 1, -1, 2, "0 B to 2.00 GiB"),
        ("uncertain", 60, 50, 120, "50.0 GiB to 120.0 GiB"),
    ],
)
def test_what_fits_never_holds_more_than_the_device_has(
    verdict: FitVerdict, value: int, low: int, high: int, told: str
) -> None:
    peak = Prediction(value * GIB, low * GIB, high * GIB, "traced")
    cells = alone(replace(LARGE, verdict=verdict, peak_bytes=peak))

    assert cells["Peak memory"].interval_text == told


@pytest.mark.parametrize(
    ("peak_gib", "high_gib", "told"),
    [
        (70, 79, ""),
        (70, 90, "may need more than it has"),
        (81, 90, "needs more than it has"),
        (100, 120, "needs 1.2 x what it has"),
    ],
)
def test_a_bar_ends_at_what_the_device_has_and_more_is_told_in_words(
    peak_gib: int, high_gib: int, told: str
) -> None:
    peak = Prediction(peak_gib * GIB, 60 * GIB, high_gib * GIB, "traced")
    cells = alone(replace(LARGE, verdict="uncertain", peak_bytes=peak))
    room = cells["Room"]

    assert isinstance(room, Gauge)
    assert room.place(peak.value) == min(100.0, 100 * peak_gib / 80)
    assert (room.text, cells["Peak memory"].note) == ("of 80.0 GiB", told)


def test_a_cost_below_a_cent_has_no_interval_of_signs() -> None:
    cheap, near = Prediction(0.002, 0.001, 0.004, ""), Prediction(0.01, 0.001, 0.02, "")

    assert alone(replace(LARGE, cost_usd=cheap))["Cost"].interval is None
    assert alone(replace(LARGE, cost_usd=near))["Cost"].interval_text == "< $0.01 to $0.02"


def test_every_number_stands_in_the_table_and_the_bar_has_words() -> None:
    cells = row(FIT, "Large <b>")

    assert {name: str(cell) for name, cell in cells.items() if isinstance(cell, Cell)} == {
        "Fits?": "fits",
        "Peak memory": "40.0 GiB [38.0 GiB, 42.0 GiB]",
        "Micro-batch": "2 x 8",
        "Step": "1.5 s [1.2 s, 2.0 s]",
        "In all": "2h 00m [1h 56m, 2h 30m]",
        "Cost": "$3.20 [$3.00, $4.00]",
        "Energy": "800 Wh [700 Wh, 900 Wh]",
    }
    assert row(FIT, "Small")["Room"].about == (
        "Small does not fit: 40.0 GiB of 16.0 GiB. weights 30.0 GiB, activations 10.0 GiB"
    )
    assert [str(cell) for cell in row(FIT, "Odd").values()][1:4] == ["unknown", "", "-"]


def test_the_view_in_words(snapshot: SnapshotAssertion) -> None:
    view, closely = fit_view(FIT), fit_view(FIT, looks_closely=True)

    assert view.lead == "1.00k parameters, of which 10 train."
    shown = {each.key: str(told(each.blocks)) for each in view.sections}
    assert shown == snapshot
    looks = {each.key: str(told(each.blocks)) for each in closely.sections}
    assert [key for key in shown if shown[key] != looks[key]] == ["fit-advice"]
    assert looks["fit-advice"] == snapshot
    assert LARGE.reason not in "".join(shown.values()), "what fits needs no reason"
    whole = fit_view(replace(FIT, devices=(LARGE,)))
    assert "fit-advice" not in [each.key for each in whole.sections]


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
    verdict: FitVerdict, micro_batch: int, largest: int, told: str
) -> None:
    device = replace(SMALL, verdict=verdict, micro_batch=micro_batch, largest_micro_batch=largest)

    assert alone(device)["Micro-batch"].note == told


def test_texts_are_escaped_and_verdicts_have_their_colours() -> None:
    shown = view_piece(fit_view(FIT))

    assert "on a &lt;model&gt;" in shown
    assert "<b>" not in shown
    assert '<span class="big good">fits</span>' in shown
    assert '<span class="big bad">does not fit</span>' in shown


def test_a_run_of_unknown_length_is_told_by_a_billion_tokens() -> None:
    an_hour = Prediction(3600, 3000, 4000, "")
    cells = alone(
        replace(LARGE, total_time_s=None, cost_usd=None, energy_wh=None, billion_tokens_s=an_hour)
    )

    assert cells["1B tokens"].text == "1h 00m"
    assert "In all" not in cells
