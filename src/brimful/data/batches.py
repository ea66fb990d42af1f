"""What one optimizer step trains on, and the pieces of it that go through the model together.

Suffixes: B rows, T positions of a row, E examples packed into one row, N = B*T positions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from brimful.base.types import JsonDict
from brimful.hardware.probe import moved

IGNORED = -100
"""Target of a position that is not scored, as in torch and transformers."""


@dataclass(frozen=True)
class MicroBatch:
    """What goes through the model in one forward and backward pass.

    Attributes:
        inputs_BT: int64 token ids.
        targets_BT: int64; what is to be predicted at `inputs_BT[b, t]`, which is the token after it
            or, where it is masked, the token itself; or `IGNORED`. Of labelled texts: (B,) numbers
            of labels, or float32 (B, C), 1 for each label that a text has.
        scored_N: int64 places in the flattened targets that are not ignored, so that no logits are
            made for the others; None: all are computed.
        lengths_E: int64 on the CPU: lengths of the examples that lie end to end in the only row (B
            = 1), adding up to T; None: one per row.
        after_E: int64 on the CPU, where a row is packed: the number of the example that each goes
            on from, so that tokens that several begin with are there once, or -1; None: all begin
            anew.
        mask_BT: int64, 1 where a position is text and 0 where it is padding, for models that look
            to the right; None: not needed.
        weights: float32, of the shape of the targets: how much each counts; None: all alike. Of
            labelled texts only.
        kept: Further tensors that the method's loss reads, by name; one value for each row, such as
            what another model said of it.
    """

    inputs_BT: Tensor
    targets_BT: Tensor
    scored_N: Tensor | None = None
    lengths_E: Tensor | None = None
    after_E: Tensor | None = None
    mask_BT: Tensor | None = None
    weights: Tensor | None = None
    kept: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Those that go to the device, by name, but for `kept`."""
        names = ("inputs_BT", "targets_BT", "scored_N", "mask_BT", "weights")
        return {name: tensor for name in names if (tensor := getattr(self, name)) is not None}

    def to(self, device: torch.device) -> Self:
        """On the device; pinned and asynchronous where that is CUDA. `lengths_E` stays on the
        CPU.
        """
        own, kept = (
            {name: moved(tensor, device) for name, tensor in tensors.items()}
            for tensors in (self.tensors, self.kept)
        )
        return replace(self, **own, kept=kept)

    def uncounted(self) -> Self:
        """Return the same without targets: its loss and its gradients are zero."""
        if self.weights is not None:
            return replace(self, weights=torch.zeros_like(self.weights))
        nothing = None if self.scored_N is None else self.scored_N[:0]
        kept = {name: torch.zeros_like(tensor) for name, tensor in self.kept.items()}
        ignored_BT = torch.full_like(self.targets_BT, IGNORED)
        return replace(self, targets_BT=ignored_BT, scored_N=nothing, kept=kept)

    def model_inputs(self) -> JsonDict:
        """Keyword arguments for a transformers body: positions begin anew with every packed
        example, or behind the one that it goes on from.
        """
        if self.lengths_E is None:
            return {"input_ids": self.inputs_BT} | (
                {} if self.mask_BT is None else {"attention_mask": self.mask_BT}
            )
        lengths = self.lengths_E.tolist()
        firsts = [0] * len(lengths)
        if self.after_E is not None:
            firsts = [lengths[each] if each >= 0 else 0 for each in self.after_E.tolist()]
        positions_T = torch.cat(
            [torch.arange(first, first + n) for first, n in zip(firsts, lengths, strict=True)]
        )
        return {
            "input_ids": self.inputs_BT,
            "position_ids": moved(positions_T[None], self.inputs_BT.device),
            "packed_lengths": self.lengths_E,
        } | ({} if self.after_E is None else {"packed_after": self.after_E})


class StepBatch(Protocol):
    """Everything one optimizer step sees."""

    @property
    def num_target_tokens(self) -> int:
        """Positions that count in the loss."""
        ...

    @property
    def loss_divisor(self) -> float:
        """What the summed loss is divided by: the target tokens, or the sum of the weights of
        labelled texts.
        """
        ...

    def micro_batches(self, sizes: tuple[int, ...]) -> Iterator[MicroBatch]:
        """The same targets in pieces that take no more memory than rows of the recipe's sequence
        length, as many as `sizes` says, do.
        """
        ...


class MeasuredBatch(StepBatch, Protocol):
    """Of a method that measures something of a step before its gradients."""

    @property
    def measured(self) -> StepBatch:
        """What that is measured on."""
        ...


@dataclass(frozen=True)
class Batch:
    """Sequences of one width and what follows each position.

    Attributes:
        inputs_BT: int64 on the CPU.
        targets_BT: int64 on the CPU; `targets_BT[b, t]` is the token after `inputs_BT[b, t]`, or
            `IGNORED`.
    """

    inputs_BT: Tensor
    targets_BT: Tensor

    @property
    def num_target_tokens(self) -> int:
        """Positions that count in the loss."""
        return int((self.targets_BT != IGNORED).sum())

    @property
    def loss_divisor(self) -> float:
        """The target tokens."""
        return self.num_target_tokens

    def micro_batches(self, sizes: tuple[int, ...]) -> Iterator[MicroBatch]:
        """Rows in order, `sizes` at a time."""
        pieces = zip(self.inputs_BT.split(sizes), self.targets_BT.split(sizes), strict=True)
        yield from (MicroBatch(inputs_BT, targets_BT) for inputs_BT, targets_BT in pieces)
