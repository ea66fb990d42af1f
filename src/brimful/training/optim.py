"""The optimizer update: AdamW or Muon, the schedule, clipping, and the guard that skips bad steps
without waiting for the device.

Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") is for the
matrices inside a model's blocks, AdamW for everything else. The update of a matrix is its momentum
made orthogonal by five Newton-Schulz iterations, scaled to the root mean square of AdamW's updates
(Liu et al. 2025, "Muon is scalable for LLM training", section 2.2), so AdamW's learning rate and
weight decay serve both. Both parts are torch's own.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from brimful.base.errors import CheckpointError
from brimful.base.types import JsonDict
from brimful.model.blocks import depth_of_parameters, hidden_matrices
from brimful.planning.choices import MUON, ROUNDED
from brimful.recipe import OptimizerRecipe
from brimful.training import eight_bit
from brimful.training.precision import FP16_GROWTH_INTERVAL, Precision
from brimful.training.rounded import RoundedAdamW
from brimful.training.tensorfile import Tensors

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


def learning_rate_at(step: int, total_steps: int, optimizer: OptimizerRecipe) -> float:
    """Return the learning rate of update `step` (0-based): linear warm-up over W updates from
    peak / W, so never 0, then the recipe's schedule to its minimum.
    """
    peak, low = optimizer.learning_rate, optimizer.resolved_min_learning_rate
    warmup_steps = int(optimizer.warmup)
    if optimizer.warmup < 1:
        warmup_steps = round(optimizer.warmup * total_steps)
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if optimizer.schedule == "constant":
        return peak
    falls_from = warmup_steps
    if optimizer.schedule == "wsd":
        falls_from = max(warmup_steps, round((1 - optimizer.decay) * total_steps))
    progress = min(max(step - falls_from, 0) / max(total_steps - 1 - falls_from, 1), 1.0)
    if optimizer.schedule in {"linear", "wsd"}:
        return low + (peak - low) * (1 - progress)
    return low + (peak - low) * ((1 + math.cos(math.pi * progress)) / 2)


def build_optimizer(
    model: nn.Module, settings: OptimizerRecipe, *, variant: str, seed: int = 0
) -> torch.optim.Optimizer:
    """Return the optimizer of the trainable parameters, with weight decay only on those of two or
    more dimensions: AdamW, or Muon with it.

    Args:
        variant: The plan's optimizer. muon is `MuonAndAdamW`. Of AdamW fused, foreach and for_loop
            are torch's, with states in fp32; 8bit and paged_8bit are bitsandbytes'. For parameters
            in bf16: rounded, with states in fp32, rounded_8bit and rounded_paged_8bit.
        seed: Seed of random rounding.

    Raises:
        DeviceError: the device has no kernels for this variant.
        RequestError: the variant needs bitsandbytes, which is not installed.
    """
    own_factor = _factor_of_hidden(model, settings)
    hidden = hidden_matrices(model) if variant == MUON or own_factor != 1 else set()
    groups = [
        {**group, "lr_factor": factor * (own_factor if group.get("is_hidden") else 1.0)}
        for factor, parameters in _by_learning_rate(model, settings.layer_decay)
        for group in parameter_groups(parameters, settings.weight_decay, hidden)
    ]
    betas = (settings.beta1, settings.beta2)
    if variant == MUON:
        return MuonAndAdamW(groups, lr=settings.learning_rate, betas=betas, eps=settings.eps)
    if "8bit" in variant:
        return eight_bit.build(groups, settings, variant=variant, seed=seed)
    if variant == ROUNDED:
        return RoundedAdamW(
            groups, lr=settings.learning_rate, betas=betas, eps=settings.eps, seed=seed
        )
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=betas,
        eps=settings.eps,
        fused=variant == "fused",
        foreach=variant == "foreach",
    )


def parameter_groups(
    parameters: Iterable[nn.Parameter], weight_decay: float, hidden: Collection[nn.Parameter] = ()
) -> list[JsonDict]:
    """Return the groups of an optimizer: matrices, and vectors without weight decay.

    Args:
        hidden: matrices that get a group of their own, marked `is_hidden`.
    """
    chosen, matrices, vectors = list[nn.Parameter](), list[nn.Parameter](), list[nn.Parameter]()
    for parameter in parameters:
        if parameter in hidden:
            chosen.append(parameter)
        else:
            (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    groups: list[JsonDict] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if chosen:
        groups.insert(0, {"params": chosen, "weight_decay": weight_decay, "is_hidden": True})
    return groups


def _factor_of_hidden(model: nn.Module, settings: OptimizerRecipe) -> float:
    """Return the factor on the learning rate of matrices inside blocks: the width at which it was
    chosen over the model's own (Yang et al. 2022, "Tensor Programs V", table 8, Adam; deviation:
    initial values and the output's factor stay as they are).
    """
    if settings.tuned_at_width is None:
        return 1.0
    config: Any = model.config
    return settings.tuned_at_width / int(config.get_text_config().hidden_size)


def _by_learning_rate(
    model: nn.Module, layer_decay: float
) -> list[tuple[float, list[nn.Parameter]]]:
    """Return the trainable parameters by the factor on their learning rate.

    The factor is `layer_decay` to the power of the number of blocks between a parameter and the
    output; embeddings are one further than the first block (Howard and Ruder 2018, section 3.2,
    with a decay of 1 / 2.6).
    """
    trainable = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    if layer_decay == 1:
        return [(1.0, [parameter for _, parameter in trainable])]
    depths = depth_of_parameters(model)
    deepest = max(depths.values())
    by_depth: dict[int, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in trainable:
        by_depth[depths[name]].append(parameter)
    return [
        (layer_decay ** (deepest - depth), by_depth[depth])
        for depth in sorted(by_depth, reverse=True)
    ]


@dataclass
class StepGuard:
    """Counters of bad steps, kept on the device so that updating them never waits for it.

    Attributes:
        loss_scale: Factor on the loss before the backward pass; 1 except for fp16.
        good_steps: Steps since the scale last moved.
        skipped: Steps skipped so far.
        bad_in_a_row: Skipped steps since the last good one, without fp16 overflows that a lower
            loss scale may avoid.
        norm_average: Running average of the gradient norm over good steps; 0 before the first.
    """

    loss_scale: Tensor
    good_steps: Tensor
    skipped: Tensor
    bad_in_a_row: Tensor
    norm_average: Tensor

    @classmethod
    def fresh(cls, precision: Precision, device: torch.device) -> "StepGuard":
        return cls.from_list([precision.initial_loss_scale, 0.0, 0.0, 0.0, 0.0], device)

    @classmethod
    def from_list(cls, values: list[float], device: torch.device) -> "StepGuard":
        return cls(*(torch.tensor(value, dtype=torch.float32, device=device) for value in values))

    def to_list(self) -> list[float]:
        """Return the values for a checkpoint; waits for the device."""
        return torch.stack(
            [self.loss_scale, self.good_steps, self.skipped, self.bad_in_a_row, self.norm_average]
        ).tolist()

    def update(
        self, bad: Tensor, norm: Tensor, precision: Precision, left_out: Tensor | None = None
    ) -> None:
        """Count a step. For fp16 a bad step halves the loss scale, and a number of good ones
        (FP16_GROWTH_INTERVAL) doubles it.

        Args:
            bad: Whether loss or gradients of this step are not finite, 0-dim bool.
            norm: Unscaled gradient norm, 0-dim.
            left_out: Whether this step was skipped, 0-dim bool; None: if it is bad.
        """
        self.skipped += bad if left_out is None else left_out
        can_lower_scale = self.loss_scale > 1
        self.bad_in_a_row = torch.where(bad, self.bad_in_a_row + (~can_lower_scale).float(), 0.0)
        average = torch.where(self.norm_average == 0, norm, 0.95 * self.norm_average + 0.05 * norm)
        self.norm_average = torch.where(bad, self.norm_average, average)
        if precision.scales_loss:
            self.good_steps = torch.where(bad, 0.0, self.good_steps + 1)
            grows = self.good_steps >= FP16_GROWTH_INTERVAL
            grown = torch.where(grows, self.loss_scale * 2, self.loss_scale)
            self.good_steps = torch.where(grows, 0.0, self.good_steps)
            self.loss_scale = torch.where(bad, (self.loss_scale / 2).clamp(min=1.0), grown)


def loss_factor(loss_scale: Tensor, divisor: float) -> Tensor:
    """Return the factor on a summed loss before its backward pass: loss scale / divisor, rounded
    to a power of two.

    A power of two scales 16-bit gradients without rounding; 1 / divisor itself would scale every
    gradient of the step by up to 0.4 % too much or too little in bf16. `guarded_update` does the
    rest of the division in fp32.
    """
    return loss_scale * 2.0 ** -math.ceil(math.log2(divisor))


def guarded_update(
    optimizer: torch.optim.Optimizer,
    guard: StepGuard,
    precision: Precision,
    *,
    loss: Tensor,
    clip_norm: float | None,
    carried: Tensor | None = None,
    judge: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Clip the gradients, and update unless loss or gradients are not finite; the decision stays on
    the device.

    Fused AdamW takes the decision (`found_inf`) and the common divisor of all gradients
    (`grad_scale`: loss scale times clipping) as tensors, as torch.amp.GradScaler passes them, so
    clipping costs no pass of its own. Unfused variants wait once for the device.

    Args:
        carried: Factor in the gradients, loss scale included (0-dim); None: the loss scale alone.
        judge: Called with the norm and whether the step is bad; returns whether its update is left
            out (0-dim bool). None: if it is bad.

    Returns:
        The unscaled gradient norm before clipping, 0-dim fp32.
    """
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    scaled_norm = _total_norm(gradients)
    if carried is None:
        carried = guard.loss_scale
    norm = scaled_norm / carried
    spike = (guard.norm_average > 0) & (norm > precision.norm_spike * guard.norm_average)
    bad = ~(torch.isfinite(norm) & torch.isfinite(loss)) | spike
    left_out = bad if judge is None else judge(norm, bad)
    divisor = carried
    if clip_norm is not None:
        divisor = carried * (norm / clip_norm).clamp(min=1.0)
    if optimizer.defaults.get("fused"):
        optimizer.grad_scale, optimizer.found_inf = divisor, left_out.float()  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
    elif not bool(left_out):
        if hasattr(optimizer, "divisor"):
            optimizer.divisor = divisor  # of gradients in bf16, which it divides in fp32
        else:
            torch._foreach_div_(gradients, divisor)
        optimizer.step()
    guard.update(bad, norm, precision, left_out)
    return norm


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together, 0-dim fp32."""
    if gradients and gradients[0].dtype != torch.float32:
        # torch's own would round the norm of each tensor to 16 bits.
        norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm
    total_norm: Tensor = torch.nn.utils.get_total_norm(gradients)
    if hasattr(total_norm, "full_tensor"):  # of weights that lie in parts on several ranks
        total_norm = total_norm.full_tensor()
    return total_norm.float()


def named_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Return the optimizer states by `parameter name:state name`: the tensors themselves, not
    copies. Counts that are Python integers become int64 tensors.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}:{key}": torch.as_tensor(value)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def load_named_states(model: nn.Module, optimizer: torch.optim.Optimizer, states: Tensors) -> None:
    """Put `named_states` back, on the parameters' devices; existing states are replaced.

    Raises:
        CheckpointError: the states are of another `optimizer.kind`.
    """
    parameters = dict(model.named_parameters())
    by_parameter: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)
    for full_name, value in states.items():
        name, _, key = full_name.rpartition(":")
        by_parameter[parameters[name]][key] = value
    in_eight_bits = eight_bit.is_eight_bit(optimizer)
    kept, wanted = {_kind_of(state) for state in by_parameter.values()}, {"adamw"}
    if in_eight_bits:
        wanted = {"adamw_8bit"}
    elif isinstance(optimizer, MuonAndAdamW):
        wanted = {MUON, "adamw"}
    if not kept <= wanted or (MUON in wanted and kept == {"adamw"}):
        raise CheckpointError(
            "the checkpoint holds the states of another optimizer than optimizer.kind asks for now"
            f" ({min(wanted - {'adamw'}, default='adamw')}). Put the old kind back, start over"
            " with --fresh, or start a new run with run.name=NAME."
        )
    if in_eight_bits:
        eight_bit.load_states(optimizer, by_parameter)
        return
    optimizer.state.clear()
    for parameter, state in by_parameter.items():
        for key, value in state.items():
            keeps_on_host = key == "step" and not optimizer.defaults["fused"]
            optimizer.state[parameter][key] = (
                value.clone() if keeps_on_host else _like(parameter, value)
            )


def _kind_of(state: Tensors) -> str:
    """Return the `optimizer.kind` that a parameter's states belong to."""
    if "state1" in state:
        return "adamw_8bit"
    return MUON if "momentum_buffer" in state else "adamw"


def _like(parameter: Tensor, whole: Tensor) -> Tensor:
    """Return a copy of a state where its parameter is: of one in parts this rank's part."""
    if not hasattr(parameter, "to_local"):
        return whole.to(parameter.device, copy=True)
    from brimful.training.sharding import like  # noqa: PLC0415 - of several ranks only

    return like(parameter, whole)
