"""What part of a real pass the element-wise operators of its blocks take: compiling blocks makes a
few kernels of them, and leaves products and everything outside of blocks as it is.
"""

from collections.abc import Callable
from typing import Any, Literal

from torch.utils._python_dispatch import TorchDispatchMode

from brimful.hardware.contention import own_clock
from brimful.rehearsal.working import is_fusible

Part = Literal["", "outside", "blocks"]
"""Part of a forward and backward pass: inside the blocks, without the first one, or outside of
them; empty while no pass runs.
"""

_CLOCK = own_clock()


class ElementWiseWatch(TorchDispatchMode):
    """Times every operator by itself while passes run.

    Args:
        part: Returns the part of a pass that is running.
        clock: Returns seconds; those that other programs take do not count.

    Attributes:
        seconds: The seconds of all operators, by part.
        element_wise_s: Time of the element-wise operators, in blocks after the first, that a
            compiler joins with others.
    """

    def __init__(self, part: Callable[[], Part], clock: Callable[[], float] = _CLOCK) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._part, self._clock = part, clock
        self.seconds: dict[Part, float] = {"": 0.0, "outside": 0.0, "blocks": 0.0}
        self.element_wise_s = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        part, began_s = self._part(), self._clock()
        result = func(*args, **(kwargs or {}))
        took_s = self._clock() - began_s
        self.seconds[part] += took_s
        if part == "blocks" and is_fusible(func):
            self.element_wise_s += took_s
        return result

    def share(self, run: int, whole: int) -> float | None:
        """Return the share of a pass through the whole model that element-wise operators of its
        blocks take; None where no blocks were seen.

        Args:
            run: Blocks that ran, the first one included, which counts as outside of them.
            whole: Blocks of the whole model.
        """
        if not self.seconds["blocks"]:
            return None
        whole_s = sum(self.seconds[part] for part in ("outside", "blocks"))
        whole_s += self.seconds["blocks"] * (whole - run) / (run - 1)
        return min(1.0, self.element_wise_s * whole / (run - 1) / whole_s)
