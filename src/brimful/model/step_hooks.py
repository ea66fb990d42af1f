"""What the architecture of a model adds to every optimizer step beside the method's loss."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class StepHooks:
    """Work before an optimizer step, and a penalty on the weights.

    Attributes:
        before_step: Called with the number of each update (0-based) before it is computed. It may
            be called twice for one step, so it is a pure function of that number.
        penalty: Added to the mean loss of the update of this number: a scalar with a gradient.
    """

    before_step: Callable[[int], None] = lambda step: None
    penalty: Callable[[int], Tensor] | None = None


NO_HOOKS = StepHooks()
"""Hooks of most architectures: nothing is added to a step."""
