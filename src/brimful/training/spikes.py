"""Steps whose loss or gradient norm is finite and far above those before them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from brimful.base.warning_codes import coded

WINDOW = 64
"""Good steps that a step is compared with; none is judged before there are so many."""
DEVIATIONS = 10.0
"""Robust standard deviations of the logarithm above its median that make a spike (assumption: of a
normal distribution 6 would be one in a thousand million, but norms have longer tails).
"""
LEAST_DEVIATION = 0.05
"""Least deviation of a logarithm: a loss that hardly moves has to rise by half to be a spike."""
MAD_TO_DEVIATION = 1.4826
"""Factor from the median absolute deviation to the standard deviation of a normal distribution."""
_LEAST_VALUE = 1e-8


@dataclass
class SpikeWatch:
    """The losses and norms of the last steps, kept on the device, so that a step is judged without
    waiting for it, and in checkpoints, so that a run that goes on judges alike.

    Attributes:
        recent_2W: Logarithms of loss and gradient norm, oldest first.
        taken: Values among them, at most all.
        found: Spikes so far.
        undo: 1 from a spike on whose policy is to roll back, until that is done.
    """

    recent_2W: Tensor
    taken: Tensor
    found: Tensor
    undo: Tensor
    _after: tuple[Tensor, ...] = field(default=(), init=False, repr=False)

    @classmethod
    def fresh(cls, device: torch.device) -> "SpikeWatch":
        return cls.from_list([0.0] * (2 * WINDOW + 3), device)

    @classmethod
    def from_list(cls, values: list[float], device: torch.device) -> "SpikeWatch":
        """Return what `to_list` stored."""
        numbers = torch.tensor(values, dtype=torch.float32, device=device)
        return cls(numbers[3:].view(2, -1), *numbers[:3].clone())

    def to_list(self) -> list[float]:
        """Return the values for a checkpoint; waits for the device."""
        counts = torch.stack([self.taken, self.found, self.undo])
        values: list[float] = torch.cat([counts, self.recent_2W.flatten()]).tolist()
        return values

    def judge(self, loss: Tensor, norm: Tensor, bad: Tensor, policy: str) -> Tensor:
        """Return whether the update of a step is left out, because it is bad or a spike (0-dim
        bool). It counts once `accept` is called; until then it may be computed again.

        A spike's values count among the recent ones, so that a loss which stays high becomes usual
        after half a window.

        Args:
            loss, norm: Loss and gradient norm of the step, 0-dim.
            bad: Whether they are not finite, 0-dim bool.
            policy: `optimizer.spikes` of the recipe.
        """
        if policy == "ignore":
            return bad
        now_2 = torch.stack([loss, norm]).clamp(min=_LEAST_VALUE).log()
        median_2 = self.recent_2W.median(dim=1).values
        spread_2 = (self.recent_2W - median_2[:, None]).abs().median(dim=1).values
        limit_2 = median_2 + (DEVIATIONS * MAD_TO_DEVIATION * spread_2).clamp(
            min=DEVIATIONS * LEAST_DEVIATION
        )
        is_spike = (now_2 > limit_2).any() & (self.taken >= WINDOW) & ~bad
        moved_2W = torch.cat([self.recent_2W[:, 1:], now_2[:, None]], dim=1)
        is_undone = is_spike.float() if policy == "rollback" else self.undo
        self._after = (
            torch.where(bad, self.recent_2W, moved_2W),
            (self.taken + (~bad).float()).clamp(max=WINDOW),
            self.found + is_spike.float(),
            self.undo.maximum(is_undone),
        )
        return bad if policy == "note" else bad | is_spike

    def accept(self) -> None:
        """Count the step that was judged last, now that its update is made."""
        if self._after:
            self.recent_2W, self.taken, self.found, self.undo = self._after
            self._after = ()


def describe(step: int, loss: float, norm: float, count: int, policy: str) -> str:
    """Return what is told of a spike.

    Args:
        step: Where the first one was.
        loss, norm: Loss and gradient norm of that step.
        count: Number of spikes that are told together.
        policy: `optimizer.spikes`.
    """
    others = f" (and {count - 1} more since)" if count > 1 else ""
    told = (
        f"a spike at step {step}{others}: loss {loss:.3g}, gradient norm {norm:.3g}, far above the"
        f" {WINDOW} steps before"
    )
    if policy == "note":
        told += "; to leave such steps out: optimizer.spikes=skip --accept-change optimizer.spikes"
    else:
        told += "; left out"
    return coded("B304", told)
