"""Means per step of computing and of communication."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from brimful.training import rank_pace
from brimful.training.rank_pace import RankPace


def test_communication_is_taken_out_of_computing_and_both_are_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 1.0, 3.0, 10.0, 10.0, 11.0, 12.0, 16.0])
    monkeypatch.setattr(rank_pace.time, "perf_counter", lambda: next(clock))
    pace = RankPace(torch.device("cpu"))

    def together(gradients: Callable[[], Tensor]) -> Tensor:
        with pace.talking.span():
            return gradients()

    act = pace.timed(together)
    for _ in range(2):
        act(lambda: torch.zeros(()))
        with pace.talking.span():  # of an evaluation
            pass

    taken = pace.take()
    assert (taken["computing_s"], taken["communication_s"]) == (6.5, 1.5)
    assert pace.take()["computing_s"] == 0.0
