"""The interval of a share."""

import numpy as np
import pytest

from brimful.base.intervals import wilson_interval


def test_wilson_gives_the_published_interval() -> None:
    """Newcombe 1998, table I: 81 of 263 and 0 of 20, without continuity correction."""
    for passed, count, low, high in [
        (81, 263, 0.2553, 0.3662),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        interval = wilson_interval(passed, count)
        assert [interval.low, interval.high] == pytest.approx([low, high], abs=5e-5)


def test_wilson_holds_the_true_share_near_one_where_a_bootstrap_shrinks_to_nothing() -> None:
    passed = np.random.default_rng(8).binomial(50, 0.98, 400)
    held = sum(
        (interval := wilson_interval(count, 50)).low <= 0.98 <= interval.high for count in passed
    )
    assert held / 400 > 0.9
    assert wilson_interval(50, 50).low < 0.95
    assert wilson_interval(50, 50).high == 1
