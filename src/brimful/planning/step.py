"""Everything about a training step that decides its memory, except the micro-batch. Plain values;
no torch.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

from brimful.base.types import Json, JsonDict
from brimful.recipe.kinds import Kind, ModelTask, kind_of_method

Dtype = Literal["fp32", "bf16", "fp16"]
Compiled = Literal["none", "blocks", "open_blocks", "model"]
Recompute = bool | Literal["selective"]

EVALUATION_FACTOR = 2
"""Sequences of an evaluation batch for each of a micro-batch: without gradients more fit."""


ANY_NUMBER = 0
"""`StepSpec.ranks` of a recording that serves every number of devices."""


_NAMED_BY_TASK = frozenset({"pretrain", "feedback", "mlm", "classify"})
_UNSAID = {"feedback": "", "labels": 2, "masked_share": 0.15}
"""Values that keys hold for steps without such an option, as shipped recordings are named."""


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al. 2021), as peft makes them.

    Attributes:
        rank: r.
        targets: "all-linear" (every linear layer but the head), or names of linear layers,
            separated by commas.
        dropout: Dropout before the adapter; above 0 it keeps a mask and a copy of the input.
        dtype: The dtype of the adapter's weights; peft keeps them in fp32 whatever the base has.
        dora: Weight-decomposed (Liu et al. 2024).
        quick: Computed by brimful's own function instead of peft's (model/quick_layers.py).
        tokens: Rows of embedding and head that are trained beside the adapters.
        saved: Modules of which a copy is trained whole beside the adapters, separated by commas.
    """

    rank: int
    targets: str = "all-linear"
    dropout: float = 0.0
    dtype: Dtype = "fp32"
    dora: bool = False
    quick: bool = False
    tokens: int = 0
    saved: str = ""


@dataclass(frozen=True)
class StepSpec:
    """A training step as declared; a trace of it is a pure function of this and of the installed
    libraries.

    Attributes:
        config_json: transformers config of the model, canonical JSON.
        sequence_length: Positions of a sequence.
        method: Training method, which says the head of the model, the tensors of a micro-batch and
            the loss. Of methods with the same steps one stands for all (`Kind.steps_like`).
        weights: dtype of the weights as loaded.
        autocast: dtype of matrix products, "none" for no autocast.
        adapter: Adapters on a frozen base; None trains every parameter.
        quantize: How the base's linear layers are stored. nf4 is bitsandbytes' 4-bit with double
            quantisation (Dettmers et al. 2023).
        upcast: Non-quantised weights in fp32, as peft's prepare_model_for_kbit_training leaves
            them.
        loss: chunked: the method's own; model: the loss inside the transformers model, as in other
            trainers.
        loss_chunk: Tokens per chunk of the chunked loss.
        recompute: Activations of every block are recomputed in the backward pass; selective: but
            for the outputs of matrix products and attention kernels, which are kept.
        cuda: Memory as on CUDA; False for this CPU's own kernels.
        flash: Whether the CUDA device has a flash-attention kernel.
        attention: transformers' attention implementation.
        optimizer: AdamW variant. fused has no temporaries, foreach one state-sized, for_loop one of
            the largest tensor; 8bit keeps states in bytes, paged_8bit in memory that the driver
            moves. muon: Muon for matrices inside blocks, AdamW for the rest.
        accumulates: More than one micro-batch per optimizer step.
        clips: The gradient norm is clipped.
        padded: Batches carry an attention mask.
        options_json: What decides the method's loss (`Kind.step_options`), canonical JSON.
        compiled: What torch.compile compiles. blocks: every transformer block, for one shape;
            open_blocks: the same for every length, as brimful's packed rows are; model: the forward
            pass with its loss as one graph.
        offload: What checkpointed blocks keep lies in the host's memory; only with `recompute`.
        packs_experts: With `quantize`, experts are stored like linear layers.
        kernels: Linear attention and state-space blocks run in kernels of their own packages
            (`rehearsal/sequence_kernels.py`); False for transformers' own code in torch.
        ranks: Devices among which weights, gradients and optimizer states are divided (torch's
            FSDP2, blocks gathered while they compute), of which this is the first; 1: it holds all.
    """

    config_json: str
    sequence_length: int
    method: str = "pretrain"
    weights: Dtype = "fp32"
    autocast: Literal["none", "bf16", "fp16"] = "none"
    adapter: Lora | None = None
    quantize: Literal["none", "nf4"] = "none"
    upcast: bool = False
    loss: Literal["chunked", "model"] = "chunked"
    loss_chunk: int = 16_384
    recompute: Recompute = False
    cuda: bool = True
    flash: bool = True
    attention: str = "sdpa"
    optimizer: Literal[
        "fused",
        "foreach",
        "for_loop",
        "8bit",
        "paged_8bit",
        "rounded",
        "rounded_8bit",
        "rounded_paged_8bit",
        "muon",
    ] = "fused"
    accumulates: bool = True
    clips: bool = True
    padded: bool = False
    options_json: str = "{}"
    compiled: Compiled = "none"
    offload: bool = False
    ranks: int = 1
    kernels: bool = False
    packs_experts: bool = False

    @cached_property
    def config(self) -> JsonDict:
        values: JsonDict = json.loads(self.config_json)
        return values

    @cached_property
    def options(self) -> JsonDict:
        """What decides the method's loss, by name."""
        values: JsonDict = json.loads(self.options_json)
        return values

    @property
    def kind(self) -> Kind:
        """The kind of run that has the method."""
        return kind_of_method(self.method)

    @property
    def task(self) -> ModelTask:
        """What the model's head predicts."""
        return self.kind.task

    @property
    def cuts_gradients(self) -> bool:
        """Whether no gradient passes from one block to another."""
        return "feedback" in self.options

    @property
    def products(self) -> Dtype:
        """dtype of the matrix products."""
        return self.weights if self.autocast == "none" else self.autocast

    @property
    def scored_tokens(self) -> int:
        """Tokens of a sample that the pieces of the loss are made of."""
        if self.loss == "model":
            return self.sequence_length
        return self.kind.scored_tokens(self.options, self.sequence_length)

    def key(self) -> str:
        """Canonical text: equal specs, equal keys."""
        values = {"task": self.task, **_UNSAID, **asdict(self)} | self.options
        del values["options_json"]
        # Traces that come with brimful were named before there were these.
        if self.method in _NAMED_BY_TASK:
            del values["method"]
        for name in ("compiled", "offload", "ranks", "kernels", "packs_experts"):
            if values[name] == getattr(StepSpec, name):
                del values[name]
        # Adapters of other kinds than LoRA have no such form.
        for name in ("quick", "tokens", "saved"):
            if values["adapter"] is not None and not values["adapter"].get(name, True):
                del values["adapter"][name]
        return json.dumps(values, sort_keys=True)


def canonical(config: Json) -> str:
    """The JSON of a transformers config without what says nothing about the network."""
    silent = {
        "transformers_version",
        "_name_or_path",
        "architectures",
        "dtype",
        "torch_dtype",
        "use_cache",
    }
    return json.dumps(
        {key: value for key, value in config.items() if key not in silent}, sort_keys=True
    )
