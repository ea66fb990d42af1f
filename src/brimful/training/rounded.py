"""AdamW for weights of 16 bits: updates are computed in fp32 and rounded at random, so that those
smaller than half the distance between two bf16 numbers are not lost but happen now and then
(Gupta et al. 2015, "Deep Learning with Limited Numerical Precision", section 3.2).

The random bits depend on a seed, the parameter and the number of its update alone. So a step that
is repeated, a run that goes on and every one of several ranks draw the same.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from brimful.base.types import JsonDict

DROPPED_BITS = 16
"""Bits of fp32's mantissa that bf16 does not have."""


def round_at_random_(target_bf16: Tensor, values_fp32: Tensor, generator: torch.Generator) -> None:
    """Copy fp32 values into a bf16 tensor, each to one of its two neighbours: the nearer the
    likelier, so that the mean over many draws is the value. `values_fp32` is overwritten.
    """
    bits = values_fp32.view(torch.int32)
    noise = torch.randint(
        1 << DROPPED_BITS, bits.shape, dtype=torch.int32, device=bits.device, generator=generator
    )
    bits.add_(noise).bitwise_and_(-(1 << DROPPED_BITS))
    target_bf16.copy_(values_fp32)


class RandomRounding:
    """Draws the bits of each parameter's update.

    Args:
        seed: Seed of the run.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __call__(self, parameter: Tensor, values_fp32: Tensor, number: int, step: int) -> None:
        """Round the new values of parameter `number` at its update `step` into it."""
        device = values_fp32.device
        generator = self._generators.setdefault(device, torch.Generator(device))
        seed = (self._seed * 1_000_003 + step) * 100_003 + number
        generator.manual_seed(seed % 2**63)
        round_at_random_(parameter, values_fp32, generator)


class RoundedAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019) over bf16 parameters, with states in fp32 and updates that
    are rounded at random. One parameter after the other, so only one is held in fp32 at a time.

    Args:
        groups: Groups of parameters as torch's, with `weight_decay` each.
        seed: Seed of the random bits.

    Attributes:
        divisor: Common factor in all gradients, which are divided by it in fp32; 0-dim.
    """

    divisor: Tensor | None = None

    def __init__(
        self,
        groups: list[JsonDict],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        seed: int,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "fused": False})
        self._round = RandomRounding(seed)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient. All states are made before anything is
        written, so that an update that runs out of memory there can be repeated.
        """
        numbered = [
            (number, parameter, group)
            for number, (parameter, group) in enumerate(
                (parameter, group) for group in self.param_groups for parameter in group["params"]
            )
            if parameter.grad is not None
        ]
        for _, parameter, _ in numbered:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": 0,
                    "exp_avg": torch.zeros_like(parameter, dtype=torch.float32),
                    "exp_avg_sq": torch.zeros_like(parameter, dtype=torch.float32),
                }
        for number, parameter, group in numbered:
            self.update(parameter, number, group)

    def update(self, parameter: Tensor, number: int, group: JsonDict) -> None:
        """Update one parameter, the `number`-th of all groups, with its gradient."""
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        step = int(state["step"]) + 1
        state["step"] = step
        gradient = in_fp32(parameter, self.divisor)
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = torch.sqrt(state["exp_avg_sq"], out=gradient)
        denominator.div_((1 - beta2**step) ** 0.5).add_(group["eps"])
        values = parameter.float().mul_(1 - group["lr"] * group["weight_decay"])
        values.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / (1 - beta1**step))
        del gradient, denominator
        self._round(parameter, values, number, step)


def in_fp32(parameter: Tensor, divisor: Tensor | None) -> Tensor:
    """Return a parameter's gradient in fp32, without the common factor."""
    gradient = parameter.grad.float()  # type: ignore[union-attr]
    return gradient if divisor is None else gradient.div_(divisor)
