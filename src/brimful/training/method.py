"""What a training method is: a value the loop applies without knowing its name."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from brimful.base.discover import module_in
from brimful.training.memory_errors import is_out_of_memory

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


def compiled(model: PreTrainedModel, *, shape: tuple[int, int], say: Callable[[str], None]) -> HiddenStates:
    """The body with every block compiled, for training batches of one shape (B, T).

    Blocks, not the whole body: they share one graph, so that compiling takes seconds instead of growing with the depth, at the
    same speed (docs/log.md). Evaluation and odd shapes run eagerly; when the compiler fails, `say` is told once and training
    goes on without it.
    """
    plain = hidden_states_of(model)
    for block in blocks_of(model):
        block.compile(dynamic=False)
    failed = False

    def hidden_states(input_ids_BT: Tensor) -> Tensor:
        nonlocal failed
        if not failed and torch.is_grad_enabled() and tuple(input_ids_BT.shape) == shape:
            try:
                return plain(input_ids_BT)
            except Exception as error:
                if is_out_of_memory(error) or not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                    raise
                failed = True
                reason = " ".join(str(error).split("\n")[:2])[:300]
                say(f"torch.compile failed, training goes on without it: {type(error).__name__}: {reason}")
        with torch.compiler.set_stance("force_eager"):
            return plain(input_ids_BT)

    return hidden_states


def blocks_of(model: PreTrainedModel) -> nn.ModuleList:
    """The transformer blocks: the longest list of modules directly in the body."""
    lists = [child for child in model.base_model.children() if isinstance(child, nn.ModuleList)]
    return max(lists, key=len)
