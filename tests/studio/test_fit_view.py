"""The answer as HTML: bars stay within their device, their numbers stand in the table, nothing is
markup that came from outside.
"""

import re
from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.units import GIB
from brimful.planning.plan import Choice, Prediction
from brimful.studio.fit import DeviceFit, Fit, FitVerdict
from brimful.studio.fit_view import fit_view

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


def pieces(shown: str, device: str) -> list[tuple[float, float]]:
    """(left, width) of the bar of a device, in percent."""
    bar = re.search(rf'aria-label="{device} .*?</div>', shown, re.DOTALL)
    assert bar is not None
    return [
        (float(left), float(width))
        for left, width in re.findall(r"left: ([\d.]+)%; width: ([\d.]+)%\" title", bar[0])
    ]


def words(shown: str) -> list[str]:
    """The texts of a view, without its markup."""
    return [text for part in re.split(r"<[^>]*>", shown) if (text := " ".join(part.split()))]


def test_terms_are_stacked_and_end_where_the_peak_is_as_a_share_of_the_device() -> None:
    first, second = pieces(fit_view(FIT), "Large &lt;b&gt;")

    assert first[0] == 0
    assert second[0] == first[1]
    assert abs(sum(second) - 100 * (40 / 80)) < 0.01


def test_what_fits_never_holds_more_than_the_device_has() -> None:
    wide = replace(LARGE, peak_bytes=Prediction(60 * GIB, 50 * GIB, 120 * GIB, "traced"))
    tiny = replace(LARGE, peak_bytes=Prediction(1 * GIB, -1 * GIB, 2 * GIB, "traced"))

    assert "50.0 to 80.0 GiB" in fit_view(replace(FIT, devices=(wide,)))
    assert "0 B to 2.00 GiB" in fit_view(replace(FIT, devices=(tiny,)))
    assert "50.0 to 120.0 GiB" in fit_view(
        replace(FIT, devices=(replace(wide, verdict="uncertain"),))
    )


def test_a_bar_beyond_its_device_is_cut_and_says_by_how_much() -> None:
    shown = fit_view(FIT)

    assert sum(pieces(shown, "Small")[-1]) <= 100
    assert "needs 2.5 x what it has" in shown
    assert shown.count("<em>") == 1


@pytest.mark.parametrize(
    ("peak_gib", "high_gib", "told"),
    [
        (70, 79, ""),
        (70, 90, "may need more than it has"),
        (81, 90, "needs more than it has"),
        (100, 120, "needs 1.2 x what it has"),
    ],
)
def test_a_bar_ends_at_what_the_device_has(peak_gib: int, high_gib: int, told: str) -> None:
    peak = Prediction(peak_gib * GIB, 60 * GIB, high_gib * GIB, "traced")
    terms = (("weights", (peak_gib - 10) * GIB), ("activations", 10 * GIB))
    device = replace(LARGE, verdict="uncertain", peak_bytes=peak, terms=terms)
    shown = fit_view(replace(FIT, devices=(device,)))

    left, width = pieces(shown, "Large &lt;b&gt;")[-1]
    assert left + width == pytest.approx(min(100, 100 * peak_gib / 80), abs=0.01)
    assert re.findall("<em>(.*)</em>", shown) == [told] * bool(told)
    for start, spread in re.findall(r'<u style="left: ([\d.]+)%; width: ([\d.]+)%', shown):
        assert float(start) + float(spread) <= 100


def test_a_cost_below_a_cent_has_no_interval_of_signs() -> None:
    cheap = replace(LARGE, cost_usd=Prediction(0.002, 0.001, 0.004, ""))
    near = replace(LARGE, cost_usd=Prediction(0.01, 0.001, 0.02, ""))

    assert "to &lt; " not in fit_view(replace(FIT, devices=(cheap,)))
    assert "&lt; &#36;0.01 to &#36;0.02" in fit_view(replace(FIT, devices=(near,)))


def test_the_numbers_of_the_bars_stand_in_their_labels_and_in_the_table() -> None:
    shown = fit_view(FIT)

    assert (
        'aria-label="Small does not fit: 40.0 GiB of 16.0 GiB. weights 30.0 GiB, activations 10.0'
        ' GiB"' in shown
    )
    row = re.search(r'<th scope="row">Large &lt;b&gt;</th>.*?</tr>', shown, re.DOTALL)
    assert row is not None
    for told in (
        "fits",
        "40.0 GiB",
        "38.0 to 42.0 GiB",
        "2 x 8",
        "up to 4 fit",
        "1.5 s",
        "2h 00m",
        "&#36;3.20",
        "800 Wh",
    ):
        assert told in row[0], told


def test_what_does_not_fit_says_why_and_what_would_help(snapshot: SnapshotAssertion) -> None:
    shown = words(fit_view(FIT))
    silent = tuple(replace(device, reason="", remedies=()) for device in FIT.devices)
    without = words(fit_view(replace(FIT, devices=silent)))

    assert [text for text in shown if text not in without] == snapshot
    assert LARGE.reason not in shown, "what fits needs no reason"
    closely = words(fit_view(FIT, looks_closely=True))
    assert [text for text in closely if text not in shown] == snapshot


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

    assert re.findall(
        r">((?:up to|not even|1 may)[^<]*)<", fit_view(replace(FIT, devices=(device,)))
    ) == [told]


def test_texts_are_escaped_and_an_old_answer_is_marked(snapshot: SnapshotAssertion) -> None:
    shown = fit_view(FIT, stale=True)

    assert "on a &lt;model&gt;" in shown
    assert "<b>" not in shown.replace("<b>Small</b>", "").replace("<b>Large &lt;b&gt;</b>", "")
    current = words(fit_view(FIT))
    assert [text for text in words(shown) if text not in current] == snapshot


def test_a_run_of_unknown_length_is_told_by_a_billion_tokens() -> None:
    large = replace(
        LARGE,
        total_time_s=None,
        cost_usd=None,
        energy_wh=None,
        billion_tokens_s=Prediction(3600, 3000, 4000, ""),
    )
    shown = fit_view(replace(FIT, devices=(large,)))

    assert "1B tokens" in shown
    assert "1h 00m" in shown
    assert "In all" not in shown
