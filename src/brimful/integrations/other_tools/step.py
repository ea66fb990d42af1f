"""Training steps of other trainers, as plain values; no torch."""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from brimful.planning.step import Dtype, Lora, StepSpec


@dataclass(frozen=True)
class PeftAdapter:
    """Trained weights of any other method of peft on a frozen base.

    Attributes:
        peft_type: peft's name of the method, such as "IA3".
        settings_json: Fields of its peft configuration, canonical JSON.
        dtype: Dtype of its floating-point weights.
    """

    peft_type: str
    settings_json: str
    dtype: Dtype = "fp32"


@dataclass(frozen=True)
class LossChain:
    """How other trainers get from the last hidden states to the loss. V is the vocabulary, T the
    tokens of a micro-batch.

    Attributes:
        upcast: What becomes of 16-bit logits. "beside": an fp32 copy stands beside them
            (transformers from 4.46, whose loss function upcasts while the output holds the logits);
            "instead": the copy replaces them (before 4.46); "none": the loss sees them as they are.
        shifted_copy: The logits are shifted against the labels by a contiguous copy; from 4.49 on
            the labels are padded instead.
        cross_entropy: "torch" keeps the log-softmax (4 V T bytes in fp32); "in_place" overwrites
            its input with the gradient (Unsloth's kernel, as copied by fms-acceleration; Liger's);
            "fused_linear" never holds all logits (Liger); "cut" never holds any (Apple's cut
            cross-entropy); "chunked" makes them in eight pieces and keeps the log-softmax of each
            (torchtune's LinearCrossEntropyLoss), "chunked_outputs" all of them before
            (CEWithChunkedOutputLoss); "tiled" makes 4,096 rows and 32,768 words at a
            time, and again in the backward pass (TRL's fused head); "values": none, but a score per
            token beside logits that are not used (LLaMA-Factory's reward models).
        passes: Further passes of the same rows without gradients, while the outputs of the trained
            one are held: those of a reference.
        second_model: Whether a frozen copy of the model makes these passes.
        scored: Tokens at the end of a row whose logits are made; 0: of all of it.
    """

    upcast: Literal["beside", "instead", "none"] = "beside"
    shifted_copy: bool = False
    cross_entropy: Literal[
        "torch", "in_place", "fused_linear", "cut", "chunked", "chunked_outputs", "tiled", "values"
    ] = "torch"
    passes: int = 0
    second_model: bool = False
    scored: int = 0


@dataclass(frozen=True)
class TrainerQuirks:
    """What other trainers do that brimful's loop does not.

    Attributes:
        fused_rms_norm: Keeps its 16-bit input and a scale per row instead of fp32 copies (Unsloth,
            Liger).
        fused_rope: Rotary positions in place, without rotated copies (Unsloth, Liger).
        fused_lora: Adapters of q, k and v share one function and keep its input; o has one of its
            own (Unsloth).
        keeps_outputs: The loop holds the model's outputs until the next forward pass returns.
        use_cache: Keys and values are collected while training (transformers' default without
            recomputation).
        keeps_fused_qkv: They are views of fused q, k, v outputs, also under recomputation
            (GPT-BigCode in transformers 4).
        fp32_outputs: The model's outputs are converted to fp32 after an autocast forward pass
            (accelerate).
        reentrant: Recomputation runs a nested backward pass per block, beside which the block's
            output stands again (torch's older checkpoint, the default of transformers' Trainer up
            to version 4).
        fused_glu: A gated MLP keeps its two inputs, not their activation and product (Liger).
        fused_lora_mlp: Adapters of a gated MLP share one function that keeps its input and both
            products (Unsloth, Axolotl).
        fused_norms_train: The weights of fused norms get gradients (Liger; Unsloth's get none).
    """

    fused_rms_norm: bool = False
    fused_rope: bool = False
    fused_lora: bool = False
    keeps_outputs: bool = False
    use_cache: bool = False
    keeps_fused_qkv: bool = False
    fp32_outputs: bool = False
    reentrant: bool = False
    fused_glu: bool = False
    fused_lora_mlp: bool = False
    fused_norms_train: bool = False


LINEAR_LAYERS = "linear layers"
"""Targets of adapters: all layers that are linear by class, but for the head. For peft's own word
all-linear it takes the experts of some models, too, which are tensors.
"""


@dataclass(frozen=True)
class ForeignStep(StepSpec):
    """A training step of another trainer.

    Attributes:
        adapter: LoRA, or any other adapter of peft.
        quantize: How linear layers are stored, as in StepSpec; nf4_single: without double
            quantisation, an fp32 scale per 64 weights; int8: bitsandbytes' LLM.int8; gptq4: 4-bit
            words in int32, fp16 scales and packed zeros per group, an int32 group index per input
            feature (AutoGPTQ).
        optimizer: Variant of AdamW, as in StepSpec, or a name in
            integrations/other_tools/optimizers.py.
        gptq_group: Input features that share a scale; 0 for one group.
        fp32_norms: Only the weights of norms are fp32, on a 16-bit base.
        fp32_ends: Whether those of embeddings and head are in fp32, too.
        chain: How the logits become a loss; None for the loss inside the transformers model.
        quirks: What else the trainer does otherwise.
        sharding: How a model lies in parts on several ranks: by torch's fully_shard, or by its
            older FullyShardedDataParallel, as transformers' Trainer wraps it.
        replicates_adapters: Adapters lie whole on every rank (fsdp1 only).
    """

    adapter: Lora | PeftAdapter | None = None  # type: ignore[assignment]
    quantize: Literal["none", "nf4", "nf4_single", "int8", "gptq4"] = "none"  # type: ignore[assignment]
    optimizer: str = "fused"  # type: ignore[assignment]
    loss: Literal["model"] = "model"
    gptq_group: int = 128
    fp32_norms: bool = False
    fp32_ends: bool = False
    chain: LossChain | None = None
    quirks: TrainerQuirks = TrainerQuirks()
    sharding: Literal["fsdp2", "fsdp1"] = "fsdp2"
    replicates_adapters: bool = False

    @property
    def is_wrapped(self) -> bool:
        """Whether the older wrapper divides the model."""
        return self.ranks > 1 and self.sharding == "fsdp1"

    def key(self) -> str:
        """Canonical text; another one when the code of the stand-ins changes."""
        return super().key() + _digest_of_stand_ins()


@functools.cache
def _digest_of_stand_ins() -> str:
    folder, code = Path(__file__).parent, hashlib.sha256()
    stand_ins = sorted((folder / "stand_ins").glob("*.py"))
    for path in (Path(__file__), folder / "optimizers.py", *stand_ins):
        code.update(path.read_bytes())
    return code.hexdigest()
