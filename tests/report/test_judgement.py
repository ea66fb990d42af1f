"""A prediction is judged by the size of its error, and apart from that by its interval."""

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.report.judgement import BANDS, guesses_in_words, judge, judgements_in_words


def test_a_large_error_inside_a_wide_interval_is_far_off_and_counts_for_nothing(
    snapshot: SnapshotAssertion,
) -> None:
    judgement = judge(2.31, (0.9, 5.4), 1.0)
    assert judgement.error == pytest.approx(1.31)
    assert judgement.word == "far off"
    assert (judgement.inside, judgement.is_guess, judgement.counts) == ("inside", True, False)
    assert judgements_in_words([judgement]) == ""
    assert guesses_in_words([judgement]) == snapshot


@pytest.mark.parametrize(
    ("predicted", "word"),
    [
        (1.0, "close"),
        (1.104, "close"),
        (0.9, "close"),
        (1.12, "off"),
        (0.75, "off"),
        (1.26, "far off"),
        (0.5, "far off"),
        (9.0, "far off"),
    ],
)
def test_the_word_follows_the_error_as_it_is_printed(predicted: float, word: str) -> None:
    assert judge(predicted, None, 1.0).word == word


def test_every_band_has_a_word_of_its_own() -> None:
    assert len({band.word for band in BANDS}) == len(BANDS)
    assert [band.limit for band in BANDS] == sorted(band.limit for band in BANDS)


@pytest.mark.parametrize(
    ("interval", "is_guess"),
    [((1.0, 1.99), False), ((1.0, 2.0), True), ((0.0, 1.0), True), ((3.0, 3.0), False)],
)
def test_an_interval_of_twice_its_low_end_is_that_of_a_guess(
    interval: tuple[float, float], is_guess: bool
) -> None:
    assert judge(1.0, interval, 1.0).is_guess is is_guess


def test_what_was_not_measured_or_has_no_interval_is_not_judged_by_it() -> None:
    unmeasured, unbounded = judge(1.0, (0.9, 1.1), None), judge(1.0, None, 1.0)
    assert (unmeasured.error, unmeasured.word, unmeasured.inside) == (None, "", "")
    assert (unbounded.inside, unbounded.is_guess) == ("", False)
    assert not unmeasured.counts
    assert not unbounded.counts


def test_predictions_are_counted_by_error_and_by_interval(snapshot: SnapshotAssertion) -> None:
    judged = [
        judge(1.05, (1.02, 1.2), 1.0),
        judge(1.2, (0.9, 1.4), 1.0),
        judge(2.0, (0.5, 3.0), 1.0),
        judge(0.5, (0.45, 0.6), 1.0),
    ]
    assert judgements_in_words(judged) == snapshot
