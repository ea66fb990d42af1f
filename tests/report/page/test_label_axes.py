"""Points and names of a classifier's figures."""

import numpy as np

from brimful.report.page.label_axes import NAME_CHARACTERS, points_of, short


def test_a_long_name_is_cut() -> None:
    assert short("ham") == "ham"
    assert len(short("a label with a long name")) == NAME_CHARACTERS


def test_points_need_two_rows_of_the_same_length_and_keep_what_is_not_known_as_nan() -> None:
    assert points_of([(0.0, 1.0)], 2) is points_of([(0.0,), (1.0,)], 2) is None
    points = points_of([(0.0, None), (1.0, 2.0)], 2)
    assert points is not None
    assert np.isnan(points[0, 1])
