"""What one optimizer step trains on, and the pieces of it that go through the model together.

Suffixes: B rows, T positions of a row, E examples packed into one row, N = B*T positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

IGNORED = -100
"""Target of a position that is not scored, as in torch and transformers."""


@dataclass(frozen=True)
class MicroBatch:
    """What goes through the model in one forward and backward pass.

    Attributes:
        inputs_BT: int64 token ids.
        targets_BT: int64; `targets_BT[b, t]` is the token after `inputs_BT[b, t]`, or `IGNORED`.
        scored_N: int64 places in the flattened targets that are not ignored, so that no logits are made for the others; None: all are computed.
        lengths_E: int64 on the CPU: lengths of the examples that lie end to end in the only row (B = 1), adding up to T; None: one per row.
    """

    inputs_BT: Tensor
    targets_BT: Tensor
    scored_N: Tensor | None = None
    lengths_E: Tensor | None = None

    def to(self, device: torch.device) -> Self:
        """On the device; pinned and asynchronous where that is CUDA. `lengths_E` stays on the CPU."""
        scored_N = None if self.scored_N is None else _moved(self.scored_N, device)
        return replace(self, inputs_BT=_moved(self.inputs_BT, device), targets_BT=_moved(self.targets_BT, device), scored_N=scored_N)

    def model_inputs(self) -> dict[str, Any]:
        """Keyword arguments for a transformers body: positions begin anew with every packed example."""
        if self.lengths_E is None:
            return {"input_ids": self.inputs_BT}
        positions_T = torch.cat([torch.arange(length) for length in self.lengths_E.tolist()])
        return {"input_ids": self.inputs_BT, "position_ids": positions_T[None].to(self.inputs_BT.device), "packed_lengths": self.lengths_E}


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class StepBatch(Protocol):
    """Everything one optimizer step sees."""

    @property
    def num_target_tokens(self) -> int:
        """Positions that count in the loss."""
        ...

    def micro_batches(self, sizes: tuple[int, ...]) -> Iterator[MicroBatch]:
        """The same targets in pieces that take no more memory than rows of the recipe's sequence length, as many as `sizes` says, do."""
        ...


@dataclass(frozen=True)
class Batch:
    """Sequences of one width and what follows each position.

    Attributes:
        inputs_BT: int64 on the CPU.
        targets_BT: int64 on the CPU; `targets_BT[b, t]` is the token after `inputs_BT[b, t]`, or `IGNORED`.
    """

    inputs_BT: Tensor
    targets_BT: Tensor

    @property
    def num_target_tokens(self) -> int:
        """Positions that count in the loss."""
        return int((self.targets_BT != IGNORED).sum())

    def micro_batches(self, sizes: tuple[int, ...]) -> Iterator[MicroBatch]:
        """Rows in order, `sizes` at a time."""
        pieces = zip(self.inputs_BT.split(sizes), self.targets_BT.split(sizes), strict=True)
        yield from (MicroBatch(inputs_BT, targets_BT) for inputs_BT, targets_BT in pieces)
