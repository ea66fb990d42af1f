"""The vocabulary in which a measured software stack is declared. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from brimful.integrations.other_tools.stand_ins import LossChain


@dataclass(frozen=True)
class Adapter:
    """Trained weights beside a frozen base.

    Attributes:
        peft_type: peft's name of the method, "LORA" or another.
        settings: The fields of its peft configuration that decide memory:
            `peft.get_peft_config({"peft_type": peft_type, "task_type": "CAUSAL_LM", **settings})`.
        rank: r; 0 where the method has none.
        targets: Names of the layers it sits on; empty for virtual tokens.
        dropout: Before a LoRA adapter.
        dtype: Of the adapter's weights. peft's autocast_adapter_dtype keeps them in fp32 on a bf16
            or fp16 base.
    """

    peft_type: str
    settings: Mapping[str, Any]
    rank: int = 0
    targets: tuple[str, ...] = ()
    dropout: float = 0.0
    dtype: Literal["fp32", "weights"] = "fp32"


@dataclass(frozen=True)
class Stack:
    """A measured training run in declared options, and what was measured.

    Attributes:
        configuration: The source's own name of the setting, to group by.
        model: Hub id of the model, or of the unquantised model where the row names a GPTQ
            checkpoint.
        model_overrides: Changes of its config.
        task: Head of the model.
        micro_batch: Sequences per micro-batch.
        sequence_length: Positions per sequence, padding included. For `lengths="padding_free"` all
            tokens of the micro-batch, one row.
        lengths: "fixed": every micro-batch has this shape (packed or synthetic data). "longest":
            the longest batch of the run, which decides its peak. "padding_free": as longest, with
            the sequences joined.
        mean_sequence_length: Positions of the mean micro-batch, where `others_gib` holds means over
            steps.
        length_inferred: The length was not published; it was worked out once per data set from
            other published figures.
        device: Exact name in brimful's hardware catalog.
        kind: What `measured_gib` is. "allocated" and "reserved" as torch counts; "driver" as
            nvidia-smi shows, see `driver_baseline`.
        measured_gib: Peak in GiB. With status "oom" the level reached before the failure, None
            where none is printed.
        others_gib: Further measurements of the same run, GiB by name: "allocated_after_train"
            (weights, optimizer states, last batch), "driver", "reserved_99th", "reserved_mean",
            "allocated_mean_after_step".
        driver_baseline: "idle": what nvidia-smi showed before the start is subtracted (the
            process's own context is inside); "none": everything nvidia-smi shows.
        status: "oom": the run failed for want of memory; the prediction must be that it does not
            fit.
        weights: dtype of the weights as loaded.
        autocast: dtype of matrix products, "none" for no autocast. Under it fp32 trainable weights
            are cached in that dtype.
        adapter: None trains every weight.
        quantize: "nf4_double": bitsandbytes 4-bit with double quantisation, every linear layer but
            the head; "gptq4": the same layers as 4-bit words in int32, fp16 scales and packed zeros
            per group, an int32 group index per input feature.
        gptq_group: Input features per scale of GPTQ; 0 for one scale per output.
        fp32_norms: Norm weights are fp32 on a bf16 base, so that their outputs are fp32;
            bitsandbytes' Linear4bit answers in its input's dtype, hence hidden states are fp32 from
            the first layer on.
        loss: The chain from hidden states to loss.
        recompute: "reentrant" or "non_reentrant" activation checkpointing per decoder layer;
            "none".
        attention: "flash2" (the flash-attn package), "sdpa" or "eager".
        repeats_keys: Keys and values are repeated for every query head before flash-attention 2
            (Mistral's class, transformers before 4.48).
        padded: The batch carries an attention mask with zeros.
        optimizer: AdamW variant; "for_loop" has temporaries of the largest tensor only.
        accumulation: Micro-batches per optimizer step.
        clip: The gradient norm is clipped.
        compile: torch.compile.
        fused_rms_norm: Triton RMSNorm, keeps its bf16 input and one scale per row instead of an
            fp32 copy.
        fused_rope: Triton rotary embedding in place, without rotated copies.
        fused_lora: Unsloth-style autograd functions for the adapters of q, k, v together and of o.
            They keep their input, with dropout one more dropped copy of it per adapter, reuse the
            input for its gradient, and leave no autocast cache of the adapters.
        keeps_outputs: The loop holds the model's outputs (logits and, with `use_cache`, keys and
            values) until the next step's forward returns, so they stand beside the next step's
            forward.
        use_cache: The model builds a key-value cache while training (transformers' default outside
            activation checkpointing).
        keeps_fused_qkv: The cache is built although layers are recomputed, and its keys and values
            are views of the layers' fused q, k, v outputs, so those stay whole until the loss is
            known (GPT-BigCode in transformers 4.x).
        fp32_outputs: The model's outputs are converted to fp32 after an autocast forward pass
            (accelerate).
        empties_cache_every: Steps between calls of torch.cuda.empty_cache; 0 for never.
        ranks: GPUs among which the model is divided; 1 where each holds all of it.
        sharding: By what; see ForeignStep.
        replicates_adapters: Adapters lie whole on every rank.
        gpus: GPUs of the job.
        mixture: The model has routed experts.
        torch_version: None where unknown.
        library_version: transformers.
        doubt: What is not understood about this stack; empty where everything is.
        notes: What else is known.
    """

    configuration: str
    model: str
    micro_batch: int
    sequence_length: int
    device: str
    kind: Literal["allocated", "reserved", "driver"]
    measured_gib: float | None
    loss: LossChain
    weights: Literal["fp32", "bf16", "fp16"]
    optimizer: Literal["foreach", "fused", "for_loop", "8bit", "paged_8bit"]
    attention: Literal["flash2", "sdpa", "eager"]
    model_overrides: Mapping[str, Any] = field(default_factory=dict)
    task: Literal["causal_lm", "sequence_classification"] = "causal_lm"
    lengths: Literal["fixed", "longest", "padding_free"] = "fixed"
    mean_sequence_length: int | None = None
    length_inferred: bool = False
    others_gib: Mapping[str, float] = field(default_factory=dict)
    driver_baseline: Literal["idle", "none"] = "none"
    status: Literal["ok", "oom"] = "ok"
    autocast: Literal["none", "bf16", "fp16"] = "none"
    adapter: Adapter | None = None
    quantize: Literal["none", "nf4_double", "gptq4"] = "none"
    gptq_group: int = 128
    fp32_norms: bool = False
    recompute: Literal["none", "reentrant", "non_reentrant"] = "none"
    repeats_keys: bool = False
    padded: bool = False
    accumulation: int = 1
    clip: bool = True
    compile: bool = False
    fused_rms_norm: bool = False
    fused_rope: bool = False
    fused_lora: bool = False
    keeps_outputs: bool = False
    use_cache: bool = False
    keeps_fused_qkv: bool = False
    fp32_outputs: bool = False
    empties_cache_every: int = 0
    ranks: int = 1
    sharding: Literal["fsdp2", "fsdp1"] = "fsdp1"
    replicates_adapters: bool = False
    gpus: int = 1
    mixture: bool = False
    torch_version: str | None = None
    library_version: str | None = None
    doubt: str = ""
    notes: str = ""


def loss_of_transformers(version: tuple[int, ...]) -> LossChain:
    """The loss of Llama-like models inside transformers, by version.

    Before 4.46 the model upcasts its logits in place of the bf16 ones; from 4.46 on a shared loss
    function upcasts them beside. From 4.49 on the labels are padded instead of the logits copied
    (huggingface/transformers#35646 of January 2025; whether 4.49 or 4.50 was the first matters to
    no row). The first two are confirmed by fms-acceleration's slopes: 12 bytes per logit with 4.45,
    14 with 4.48, and 8 and 10 with the kernel in place.
    """
    if version < (4, 46):
        return LossChain(upcast="instead", shifted_copy=True)
    return LossChain(upcast="beside", shifted_copy=version < (4, 49))


def version_of(words: str) -> tuple[int, ...]:
    """Leading numbers of a version such as 2.9.0+cu128.

    Raises:
        ValueError: it does not begin with numbers.
    """
    return tuple(int(part) for part in words.split("+", maxsplit=1)[0].split(".")[:2])
