"""What a training method is: a value the loop applies without knowing its name."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from brimful.base.discover import module_in

HiddenStates = Callable[[Tensor], Tensor]
"""input ids (B, T) -> hidden states after the final norm (B, T, D)."""


@dataclass(frozen=True)
class Network:
    """A model as methods see it.

    Attributes:
        model: The transformers module that owns the parameters.
        hidden_states: Its body, compiled or not.
        loss_chunk: Tokens per chunk of the linear cross-entropy.
    """

    model: PreTrainedModel
    hidden_states: HiddenStates
    loss_chunk: int

    @property
    def head_weight_VD(self) -> Tensor:  # noqa: N802 - shape suffix
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def logit_softcap(self) -> float | None:
        softcap: float | None = getattr(self.model.config, "final_logit_softcapping", None)
        return softcap


@dataclass(frozen=True)
class Method:
    """How a batch becomes a loss.

    Attributes:
        loss_sum: (network, inputs_BT, targets_BT) -> summed loss over target tokens in nats, fp32 scalar. The loop divides by
            the optimizer step's target tokens, so accumulation is exact whatever the micro-batch.
        trains: Which parameters, by name and value.
    """

    loss_sum: Callable[[Network, Tensor, Tensor], Tensor]
    trains: Callable[[str, nn.Parameter], bool]


def find_method(name: str) -> Method:
    """The `METHOD` of `brimful/training/methods/{name}.py`.

    Raises:
        BrimfulError: no such file.
    """
    method: Method = module_in("brimful.training.methods", name, "training method").METHOD
    return method


def hidden_states_of(model: PreTrainedModel) -> HiddenStates:
    """The body of a causal language model as a plain function, without KV cache."""
    body = model.base_model

    def hidden_states(input_ids_BT: Tensor) -> Tensor:
        states_BTD: Tensor = body(input_ids=input_ids_BT, use_cache=False).last_hidden_state
        return states_BTD

    return hidden_states


def compiled(hidden_states: HiddenStates) -> HiddenStates:
    """`torch.compile` for fixed shapes; another shape compiles once more."""
    return torch.compile(hidden_states, dynamic=False)
