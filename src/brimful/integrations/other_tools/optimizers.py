"""Optimizers of other trainers beside torch's AdamW: what each keeps of a parameter from its first
update on.

Read in bitsandbytes 0.50.2 (optim/{optimizer,lion,ademamix,rmsprop}.py), torchao's main branch
(optim/README.md: sizes of blocks) and transformers 5.23.0 (trainer_optimizer.py; trainer.py:
embeddings), 2026-11-28.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SMALLEST = 4096
"""Elements of the smallest tensor whose states have few bits."""


@dataclass(frozen=True)
class OptimizerStates:
    """What an optimizer keeps of each parameter between updates. Its kernel updates parameters in
    place and allocates nothing meanwhile.

    Attributes:
        states: Number of state tensors, each of as many elements as the parameter.
        bits: Bits of an element of a state; 32 in tensors of fewer than SMALLEST elements.
        block: Number of elements that share an fp32 scale; 0: there are no scales.
        paged: Large states live in memory that the driver moves.
        wide_embeddings: States of embeddings have 32 bits: transformers' Trainer registers them so
            for bitsandbytes' 8-bit optimizers.
    """

    states: int
    bits: int = 32
    block: int = 0
    paged: bool = False
    wide_embeddings: bool = False


def _of_8_bits(states: int, *, paged: bool = False) -> OptimizerStates:
    return OptimizerStates(states, 8, 256, paged, wide_embeddings=True)


_ADAMW: Mapping[str, OptimizerStates] = {
    "bnb_8bit": _of_8_bits(2),
    "bnb_paged_8bit": _of_8_bits(2, paged=True),
    "paged_32bit": OptimizerStates(2, paged=True),
}
OTHERS: Mapping[str, OptimizerStates] = {
    "adamw_torch_8bit": OptimizerStates(2, 8, 256),
    "adamw_torch_4bit": OptimizerStates(2, 4, 128),
    "lion_32bit": OptimizerStates(1),
    "lion_8bit": _of_8_bits(1),
    "paged_lion_32bit": OptimizerStates(1, paged=True),
    "paged_lion_8bit": _of_8_bits(1, paged=True),
    "ademamix": OptimizerStates(3),
    "ademamix_8bit": _of_8_bits(3),
    "paged_ademamix_32bit": OptimizerStates(3, paged=True),
    "paged_ademamix_8bit": _of_8_bits(3, paged=True),
    "rmsprop_bnb": OptimizerStates(1),
    "rmsprop_bnb_32bit": OptimizerStates(1),
    "rmsprop_bnb_8bit": _of_8_bits(1),
}
KEPT: Mapping[str, OptimizerStates] = {**_ADAMW, **OTHERS}
"""By the variant of a ForeignStep, which is transformers' name but for bitsandbytes' AdamW."""
OWN: Mapping[str, str] = {"bnb_8bit": "8bit", "bnb_paged_8bit": "paged_8bit"}
"""brimful's own variants that are the same but for embeddings, with what a CPU makes meanwhile."""
IN_TORCH = ("sgd", "adagrad", "rmsprop", "adafactor")
"""By transformers' name: those whose own code, in torch and transformers, is traced."""
BY_NAME: Mapping[str, str] = {
    "adamw_torch_fused": "fused",
    "adamw_torch": "foreach",
    "adamw_8bit": "bnb_8bit",
    "adamw_bnb_8bit": "bnb_8bit",
    "paged_adamw_8bit": "bnb_paged_8bit",
    "paged_adamw": "paged_32bit",
    "paged_adamw_32bit": "paged_32bit",
    **{name: name for name in (*OTHERS, *IN_TORCH)},
}
"""Variants by transformers' name. AdamW of torch is foreach on CUDA unless it is fused."""
