"""How near a run came to a spike is computed from its journal as the watch judges it."""

import numpy as np
import pytest
import torch

from brimful.training.spikes import DEVIATIONS, WINDOW, SpikeWatch
from spikes import largest_deviation


@pytest.mark.parametrize("factor", [1.0, 1.9, 2.5, 4.0, 1e6])
def test_a_largest_deviation_beyond_the_limit_is_what_the_watch_counts(factor: float) -> None:
    values = np.exp(np.random.default_rng(0).normal(0.0, 0.1, 2 * WINDOW))
    values[-9] *= factor
    watch = SpikeWatch.fresh(torch.device("cpu"))
    for value in torch.tensor(values, dtype=torch.float32):
        watch.judge(value, torch.tensor(1.0), torch.tensor(False), "note")
        watch.accept()

    largest = largest_deviation(list(values))

    assert (largest > DEVIATIONS) == bool(watch.found)
    assert (factor > 3) == bool(watch.found)
