"""A step far above those before it is a spike; usual noise, a falling loss and a new level are not."""

from collections.abc import Iterable

import pytest
import torch

from brimful.training.spikes import WINDOW, SpikeWatch, describe

CPU = torch.device("cpu")


def _watched(losses: Iterable[float], norms: Iterable[float], policy: str = "skip") -> list[int]:
    """Return the numbers of the steps that were spikes."""
    watch, found = SpikeWatch.fresh(CPU), []
    for number, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
        before = float(watch.found)
        values = torch.tensor(loss), torch.tensor(norm)
        bad = ~(values[0].isfinite() & values[1].isfinite())
        left_out = watch.judge(*values, bad, policy)
        watch.accept()
        if float(watch.found) > before:
            found.append(number)
        assert bool(left_out) == (bool(bad) or (float(watch.found) > before and policy != "note"))
    return found


def _usual(count: int) -> tuple[list[float], list[float]]:
    """A falling loss and norms with a long tail."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, count, generator=generator)
    losses = (4.0 * torch.arange(1, count + 1) ** -0.1 + 0.05 * noise[0]).tolist()
    return losses, (0.5 * noise[1]).exp().tolist()


def test_usual_noise_and_a_falling_loss_are_no_spikes() -> None:
    assert _watched(*_usual(3000)) == []


@pytest.mark.parametrize("policy", ["note", "skip", "rollback"])
def test_a_loss_or_a_norm_far_above_the_others_is_one(policy: str) -> None:
    losses, norms = _usual(300)
    losses[100], norms[200] = 2 * losses[100], 1000 * norms[200]
    losses[250] = float("nan")
    assert _watched(losses, norms, policy) == [100, 200]


def test_nothing_is_judged_before_a_window_is_full_or_where_nobody_looks() -> None:
    losses, norms = _usual(WINDOW + 1)
    losses[WINDOW - 1] = 1000.0
    assert _watched(losses, norms) == []
    losses[WINDOW - 1], losses[WINDOW] = 3.0, 1000.0
    assert _watched(losses, norms) == [WINDOW]
    assert _watched(losses, norms, "ignore") == []


def test_a_loss_that_stays_high_becomes_usual_after_half_a_window() -> None:
    losses, norms = _usual(400)
    risen = [loss + 10 * (number >= 200) for number, loss in enumerate(losses)]
    found = _watched(risen, norms)
    assert found == list(range(200, 200 + len(found)))
    assert 1 <= len(found) <= WINDOW // 2 + 1


def test_a_step_that_is_judged_twice_counts_once() -> None:
    watch = SpikeWatch.fresh(CPU)
    for _ in range(3):
        watch.judge(torch.tensor(1.0), torch.tensor(1.0), torch.tensor(False), "note")
    watch.accept()
    watch.accept()
    assert float(watch.taken) == 1


def test_what_is_stored_is_what_is_read() -> None:
    losses, norms = _usual(100)
    watch = SpikeWatch.fresh(CPU)
    for loss, norm in zip(losses, norms, strict=True):
        watch.judge(torch.tensor(loss), torch.tensor(norm), torch.tensor(False), "rollback")
        watch.accept()
    again = SpikeWatch.from_list(watch.to_list(), CPU)
    assert torch.equal(again.recent_2W, watch.recent_2W)
    assert (again.taken, again.found, again.undo) == (watch.taken, watch.found, watch.undo)


def test_a_spike_is_told_with_its_numbers_and_what_was_done(snapshot: object) -> None:
    told = [
        describe(812, 9.1, 44.0, count, policy)
        for count, policy in ((1, "note"), (3, "skip"), (1, "rollback"))
    ]
    assert told == snapshot
