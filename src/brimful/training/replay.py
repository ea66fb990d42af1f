"""Steps that are computed twice, to find a machine that computes wrongly."""

from collections.abc import Callable

import torch
from torch import Tensor

from brimful.base.errors import TrainingStopped
from brimful.base.warning_codes import coded
from brimful.training.recovery import random_states, rewind
from brimful.training.tensorfile import Tensors

SHOWN = 3
"""Names of gradients in a message."""


class ReplayCheck:
    """Computes the gradients of every so many steps again, from the same numbers, and compares them
    bit for bit.

    Args:
        every: Steps between two checks; None: no step is checked.
        device: Its generators are set back before a repetition.
        say: Told once if the device's kernels give other bits each time, so that nothing can be
            found out.
    """

    def __init__(self, every: int | None, device: torch.device, say: Callable[[str], None]) -> None:
        self._every, self._device, self._say = every, device, say
        self._last_sound: int | None = None

    def compute(self, step: int, parameters: Tensors, gradients: Callable[[], Tensor]) -> Tensor:
        """Compute the gradients of a step, again if a check is due; return the loss.

        Args:
            step: Updates done.
            parameters: Parameters whose gradients are compared, by name.
            gradients: Computes them from nothing and returns the loss.

        Raises:
            TrainingStopped: two of three computations agree and one does not.
        """
        if self._every is None or step == 0 or step % self._every:
            return gradients()
        states, prints = random_states(self._device), []
        for _ in range(2):
            rewind(states, self._device)
            loss = gradients()
            prints.append(_fingerprint(loss, parameters))
        if torch.equal(*prints):
            self._last_sound = step + 1
            return loss
        differing = [
            name
            for name, same in zip(_names(parameters), prints[0] == prints[1], strict=True)
            if not same
        ]
        rewind(states, self._device)
        loss = gradients()
        third = _fingerprint(loss, parameters)
        if any(torch.equal(third, each) for each in prints):
            raise self._fault(step + 1, differing)
        self._every = None
        self._say(
            coded(
                "B306",
                f"step {step + 1}, computed three times, gave other bits each time: kernels of this"
                " device add in no fixed order, so run.replay_check finds nothing here and is off",
            )
        )
        return loss

    def _fault(self, step: int, differing: list[str]) -> TrainingStopped:
        named = ", ".join(differing[:SHOWN]) + " ..." * (len(differing) > SHOWN)
        sound = "no step of this session was checked before"
        if self._last_sound is not None:
            sound = f"the last step that was computed twice alike is {self._last_sound}"
        return TrainingStopped(
            f"step {step}, computed three times from the same numbers, once gave other bits"
            f" ({named}): this machine computes wrongly. The step was not taken;"
            f" {sound}, and checkpoints written since may hold wrong numbers: remove those that you"
            " do not trust from checkpoints/. Test processor and memory, and continue on another"
            " machine with the same command."
        )


def _names(parameters: Tensors) -> list[str]:
    with_gradient = [name for name, each in parameters.items() if each.grad is not None]
    return ["the loss", *with_gradient]


def _fingerprint(loss: Tensor, parameters: Tensors) -> Tensor:
    """Return a sum of the bits of the loss and of each gradient, as integers: any change of a
    single value changes it, and the order of summing does not.
    """
    tensors = [loss, *(each.grad for each in parameters.values() if each.grad is not None)]
    return torch.stack([_as_integers(each).sum(dtype=torch.int64) for each in tensors])


def _as_integers(tensor: Tensor) -> Tensor:
    return tensor.detach().view(torch.int32 if tensor.element_size() == 4 else torch.int16)
