"""Series keep what matters of long and odd numbers."""

import numpy as np

from brimful.report.chart import MAX_POINTS, Matrix, mean_of, series_of, smooth, thin, usual_range


def test_a_long_series_is_thinned_with_its_spikes_and_ends_kept() -> None:
    values = np.zeros(100_000)
    values[[12_345, 77_777]] = (50.0, -50.0)
    at, kept = thin(np.arange(100_000.0), values)
    assert len(kept) <= MAX_POINTS + 2
    assert (kept.max(), kept.min(), at[0], at[-1]) == (50.0, -50.0, 0, 99_999)
    assert set(at) >= {12_345, 77_777}


def test_smoothing_keeps_the_length_the_mean_of_a_line_and_lowers_noise() -> None:
    line = np.linspace(5, 3, 401)
    assert np.allclose(smooth(line)[20:-20], line[20:-20])
    noise = np.random.default_rng(0).normal(size=1000)
    assert smooth(noise).std() < 0.5 * noise.std()
    assert len(smooth(noise)) == 1000
    assert smooth(np.array([1.0, 3.0])).tolist() == [2.0, 2.0]


def test_numbers_are_rounded_and_what_is_not_finite_breaks_the_line() -> None:
    series = series_of("a", [1, 2, 3], [1 / 3, np.nan, np.inf])
    assert (series.x, series.y) == ((1, 2, 3), (0.33333, None, None))
    assert mean_of("m", range(4), [1, 3, 1, 3]).name == "m"


def test_a_few_extremes_do_not_change_the_usual_range() -> None:
    assert usual_range([0.0, 0.0]) == (0.0, 1.0)
    assert usual_range([*[1.0] * 999, 1000.0])[1] < 2


def test_shares_of_a_matrix_are_those_of_its_rows() -> None:
    matrix = Matrix("m", "M", "", "true", "given", ("a", "b"), ((3, 1), (0, 0)))
    assert matrix.shares == [[0.75, 0.25], [0.0, 0.0]]
