"""Muon for the matrices inside a model's blocks, AdamW for everything else (Jordan et al. 2024,
"Muon: An optimizer for hidden layers in neural networks").

The update of a matrix is its momentum made orthogonal by five Newton-Schulz iterations, scaled to
the root mean square of AdamW's updates (Liu et al. 2025, "Muon is scalable for LLM training",
section 2.2), so AdamW's learning rate and weight decay serve both. Both parts are torch's own.
"""

from collections.abc import Callable

import torch

from brimful.base.types import JsonDict

MOMENTUM = 0.95
"""Jordan et al. 2024."""


class MuonAndAdamW(torch.optim.Optimizer):
    """One optimizer of two: parameter groups and states are shared with both.

    Args:
        groups: Parameter groups of AdamW; groups with a true `is_hidden` hold matrices for Muon.
        lr: learning rate of both.
        betas, eps: as of AdamW.
    """

    def __init__(
        self,
        groups: list[JsonDict],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(groups, {"lr": lr, "fused": False})
        hidden = [group for group in self.param_groups if group.get("is_hidden")]
        others = [group for group in self.param_groups if not group.get("is_hidden")]
        # AdamW first: its counted steps tell whether a broken-off update wrote anything.
        self._parts: list[torch.optim.Optimizer] = []
        if others:
            self._parts.append(torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, foreach=True))
        if hidden:
            self._parts.append(
                torch.optim.Muon(hidden, lr=lr, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw")
            )
        for part in self._parts:
            part.state = self.state
        self.param_groups = [group for part in self._parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for part in self._parts:
            part.step()
