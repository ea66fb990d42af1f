"""Transformers models without weights, on the meta device, with adapters and 4-bit linear
layers.
"""

import copy
import functools
import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.model import packed_texts
from brimful.model.adapters import out_of_reach, rows_to_train
from brimful.model.packed_experts import compute_packed, expert_layers
from brimful.model.published import import_adapters, refuse_unmatched
from brimful.model.quick_layers import adapt_quickly, drop_quickly
from brimful.model.registered import register
from brimful.planning.step import Lora, StepSpec
from brimful.rehearsal.recorder import note_kernel
from brimful.training.activations import as_one_operator

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_AUTO = {
    "causal_lm": AutoModelForCausalLM,
    "masked_lm": AutoModelForMaskedLM,
    "sequence_classification": AutoModelForSequenceClassification,
}
PEFT_TASKS = {"causal_lm": "CAUSAL_LM", "sequence_classification": "SEQ_CLS"}
NF4_BLOCK, NF4_OUTER_BLOCK = 64, 256


def config_of(spec: StepSpec) -> PretrainedConfig:
    """Return the transformers config of a step's model.

    Raises:
        PlanError: its model type is unknown to the installed transformers.
    """
    register()
    # No text is written, and the default tokens may lie outside a small vocabulary. Some classes
    # want a number.
    values = {**spec.config, "bos_token_id": 0, "eos_token_id": 0}
    try:
        config: PretrainedConfig = AutoConfig.for_model(values.pop("model_type"), **values)
    except (KeyError, ValueError) as error:
        raise PlanError(
            f"transformers knows no model type {spec.config.get('model_type')!r}: {error}"
        ) from error
    if "labels" in spec.options:
        config.num_labels = spec.options["labels"]
        config.pad_token_id = config.pad_token_id or 0
    return config


def num_blocks(config: PretrainedConfig) -> int:
    """Return the number of transformer blocks.

    Raises:
        PlanError: the config has no such number, as where several networks make one model.
    """
    count = getattr(config, "num_hidden_layers", None)
    if count is None:
        raise PlanError(
            f"the config of model type {config.model_type!r} has no num_hidden_layers, so it is no"
            " single row of blocks and cannot be planned; choose another model=NAME."
        )
    return int(count)


def kinds_of_blocks(config: PretrainedConfig) -> list[str]:
    """Return for each block what tells it from blocks of another kind: its entries in the lists
    that have one for each block, and the values of its own.
    """
    lists, own = _lists_of_blocks(config), _values_of_blocks(config)
    without_experts = max(_blocks_without_experts(config).values(), default=0)
    return [
        repr(
            ([values[block] for values in lists.values()], own.get(block), block < without_experts)
        )
        for block in range(num_blocks(config))
    ]


def with_layers(config: PretrainedConfig, chosen: Sequence[int]) -> PretrainedConfig:
    """Return the config of the same model with these of its blocks, in this order; their kinds
    repeat where a number is beyond them.
    """
    shorter, blocks = copy.deepcopy(config), num_blocks(config)
    own = _values_of_blocks(config)
    shorter.__dict__.pop(_OWN_VALUES, None)
    shorter.num_hidden_layers = len(chosen)
    for name, values in _lists_of_blocks(config).items():
        setattr(shorter, name, [values[block % blocks] for block in chosen])
    kept = {
        place: own[block % blocks] for place, block in enumerate(chosen) if block % blocks in own
    }
    if kept:
        shorter.per_layer_config = kept
    for name, first in _blocks_without_experts(config).items():
        setattr(shorter, name, sum(block % blocks < first for block in chosen))
    return shorter


_BEFORE_EXPERTS = ("first_k_dense_replace", "num_dense_layers")
"""Keys of DeepSeek and its kin, and of LFM2."""
_OWN_VALUES = "_heterogeneity_spec"


def _lists_of_blocks(config: PretrainedConfig) -> dict[str, list[Any]]:
    return {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, list) and len(value) == num_blocks(config) > 1
    }


def _blocks_without_experts(config: PretrainedConfig) -> dict[str, int]:
    """Return how many blocks come before those with experts, by the key that says it."""
    found = {name: getattr(config, name, None) for name in _BEFORE_EXPERTS}
    return {name: count for name, count in found.items() if count}


def _values_of_blocks(config: PretrainedConfig) -> dict[int, JsonDict]:
    """Return the values of its own that a block has (transformers' `per_layer_config`)."""
    own = vars(config).get(_OWN_VALUES)
    return {} if own is None else own.per_layer_overrides


@functools.singledispatch
def meta_model(spec: StepSpec, config: PretrainedConfig) -> nn.Module:
    """Return the model on the meta device: adapters attached, linear layers replaced, trainable
    parameters chosen. Subclasses of StepSpec may register their own.
    """
    model = plain_model(spec, config)
    if spec.quantize == "nf4":
        with_4bit_layers(model, spec)
    if spec.adapter is not None:
        with torch.device("meta"):
            model = with_adapters(model, spec.adapter, spec)
    if spec.upcast:
        upcast(model)
    return model


def plain_model(spec: StepSpec, config: PretrainedConfig) -> nn.Module:
    """Return the transformers model on the meta device.

    Raises:
        ValueError: transformers has no such class of the model type, or cannot build the model.
    """
    if type(config) not in _AUTO[spec.task]._model_mapping:
        raise ValueError(
            f"transformers has no class of this type for {spec.task.replace('_', ' ')}; choose"
            " another model=NAME"
        )
    try:
        with torch.device("meta"):
            model: nn.Module = _AUTO[spec.task].from_config(
                config, dtype=DTYPES[spec.weights], attn_implementation=spec.attention
            )
    except (LookupError, ArithmeticError, AssertionError) as error:
        raise ValueError(f"transformers cannot build what its config says: {error!r}") from error
    if spec.attention == packed_texts.NAME:
        drop_quickly(model)
    return model


def upcast(model: nn.Module, only: Callable[[str], bool] = lambda name: True) -> None:
    """Convert 16-bit parameters to fp32, as peft's prepare_model_for_kbit_training does.

    Args:
        only: Chooses parameters by name.
    """
    for name, parameter in model.named_parameters():
        if parameter.dtype in {torch.float16, torch.bfloat16} and only(name):
            parameter.data = parameter.data.float()


def with_4bit_layers(model: nn.Module, spec: StepSpec) -> None:
    """Replace linear layers by those of bitsandbytes, in place, and pack experts where the step
    does.
    """
    replace_linear_layers(model, lambda plain: Linear4bit(plain, DTYPES[spec.products]))
    if spec.packs_experts:
        for layer, name in expert_layers(model):
            plain = getattr(layer, name)
            layer.__dict__.setdefault("packed", {})[name] = plain.shape, plain.dtype
            delattr(layer, name)
            _pack(layer, name, plain.numel(), f"{name}_")
        compute_packed(cast(PreTrainedModel, model), _unpacked_expert)


def with_adapters(model: nn.Module, lora: Lora, spec: StepSpec) -> nn.Module:
    """Attach LoRA adapters to a model and freeze everything else.

    Raises:
        PlanError: no layer has one of the adapters' target names.
    """
    # On a CPU the compiler's memory counts where 4-bit layers will need it.
    import_adapters(quantized=spec.quantize == "nf4")
    # Half a second that full training does not need.
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415

    targets = lora.targets if lora.targets == "all-linear" else lora.targets.split(",")
    if isinstance(targets, list):
        refuse_unmatched(targets, model)
    task = PEFT_TASKS.get(spec.task)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=2 * lora.rank,
        lora_dropout=lora.dropout,
        target_modules=targets,
        use_dora=lora.dora,
        modules_to_save=lora.saved.split(",") if lora.saved else None,
        task_type=task,
        exclude_modules=out_of_reach(model) or None,
        trainable_token_indices=rows_to_train(model, range(lora.tokens)),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    config._register_custom_module({Linear4bit: _adapted_4bit(cuda=spec.cuda)})
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning
        )  # peft 0.21 asks transformers 5 for it
        # It looks for ranks of experts among layers before it finds them among parameters.
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys", RuntimeWarning)
        try:
            model = get_peft_model(
                model, config, low_cpu_mem_usage=next(model.parameters()).is_meta
            )
        except ValueError as error:
            raise PlanError(f"adapters cannot be attached: {error}") from error
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "modules_to_save" not in name:
            parameter.data = parameter.data.to(DTYPES[lora.dtype])
    if lora.quick:
        adapt_quickly(model)
    return model


def _adapted_4bit(*, cuda: bool) -> type:
    """Return LoRA over a 4-bit layer as peft 0.21 does it (tuners/lora/bnb.py): it copies the
    layer's output, and converts the input to the adapter's type except under autocast. It asks for
    CUDA's autocast, so on a CPU it always converts.
    """
    from peft.tuners.lora.layer import Linear  # noqa: PLC0415 - see with_adapters

    class Adapted4bit(Linear):  # type: ignore[misc] # peft has no types
        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if self.lora_variant:
                adapted: Tensor = super().forward(x, *args, **kwargs)
                return adapted
            result: Tensor = self.base_layer(x, *args, **kwargs)
            if self.disable_adapters:
                return result
            result = result.clone()
            dtype, converts = result.dtype, not (cuda and torch.is_autocast_enabled("cpu"))
            for name in self.active_adapters:
                down, up = self.lora_A[name], self.lora_B[name]
                if converts:
                    x = self._cast_input_dtype(x, down.weight.dtype)
                change = up(down(self.lora_dropout[name](x))) * self.scaling[name]
                if converts:
                    change = change.to(dtype)
                result = result + change
            return result

    return Adapted4bit


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model inside adapters; another module is returned as it is."""
    inner: Any = model
    if hasattr(model, "peft_config") and not isinstance(model, PreTrainedModel):
        inner = model.base_model
        if not isinstance(inner, PreTrainedModel):
            inner = inner.model
    return cast(PreTrainedModel, inner)


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Return the number of parameters and of trainable ones, adapters included; see
    `parameters_of`.
    """
    sizes = parameters_of(model)
    return sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains)


def parameters_of(model: nn.Module) -> list[tuple[int, bool]]:
    """Return the weights in each parameter and whether it is trained. Tied parameters are one,
    packed ones count as the weights that they hold.
    """
    packed = {
        id(module.weight): module.in_features * module.out_features
        for module in model.modules()
        if isinstance(module, PackedLinear)
    } | {
        id(getattr(layer, name)): layer.packed[name][0].numel()
        for layer, name in expert_layers(model)
        if hasattr(layer, "packed")
    }
    return [
        (packed.get(id(parameter), parameter.numel()), parameter.requires_grad)
        for parameter in model.parameters()
    ]


class PackedLinear(nn.Linear):
    """A linear layer that packs several weights into an element."""


class Linear4bit(PackedLinear):
    """A linear layer that allocates what bitsandbytes' NF4 layer with double quantisation does;
    values mean nothing. It is an nn.Linear, so that adapters attach to it.
    """

    def __init__(self, like: nn.Linear, compute_dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.compute_dtype = (
            like.in_features,
            like.out_features,
            compute_dtype,
        )
        self.loaded_dtype = like.weight.dtype
        _pack(self, "weight", like.in_features * like.out_features)
        self.register_parameter("bias", None)
        if like.bias is not None:
            bias = torch.empty(like.out_features, dtype=compute_dtype, device="meta")
            self.bias = nn.Parameter(bias, requires_grad=False)

    @property
    def W_q(self) -> Tensor:  # noqa: N802 - peft knows a layer that unpacks itself by this name
        """The packed weight."""
        return self.weight

    def dequantize(self) -> Tensor:
        """Return the weight as bitsandbytes unpacks it, in the type that it was loaded in."""
        shape = (self.out_features, self.in_features)
        scales = _dequantised_scales(shape) + 0.0
        dequantised = torch.empty(shape, dtype=self.loaded_dtype, device=self.weight.device)
        _note_dequantised(self.weight, dequantised, scales)
        return dequantised

    def forward(self, input: Tensor) -> Tensor:
        bias: Tensor | None = self.bias
        if bias is not None:
            bias = bias.to(self.compute_dtype)
        out: Tensor = _Matmul4bit.apply(
            input.to(self.compute_dtype), self.weight, bias, self.out_features, self.loaded_dtype
        )  # type: ignore[no-untyped-call]
        return out.to(input.dtype)


def _pack(module: nn.Module, name: str, count: int, prefix: str = "") -> None:
    """Register what so many weights take in 4 bits.

    Half a byte per weight, an 8-bit scale per 64 weights, an fp32 scale per 256 of those (Dettmers
    et al. 2023, section 3).
    """
    with torch.device("meta"):
        packed = torch.empty((-(-count // 2), 1), dtype=torch.uint8)
        scales = torch.empty(-(-count // NF4_BLOCK), dtype=torch.uint8)
        outer = torch.empty(-(-count // (NF4_BLOCK * NF4_OUTER_BLOCK)))
        codes = torch.empty(16 + 256 + 1)
    module.register_parameter(name, nn.Parameter(packed, requires_grad=False))
    module.register_buffer(f"{prefix}scales", scales)
    module.register_buffer(f"{prefix}outer_scales", outer)
    module.register_buffer(f"{prefix}codes", codes)


def _unpacked_expert(layer: Any, name: str) -> Tensor:
    return _dequantised(getattr(layer, name), *layer.packed[name])


class _Matmul4bit(torch.autograd.Function):
    """Dequantises scales and weight for the product and again for the gradient; keeps neither of
    them, nor the input.

    bitsandbytes 0.50, autograd/_functions.py (MatMul4Bit) and backends/default/ops.py (gemm_4bit);
    its fused kernel for few tokens is not modelled. The gradient's weight comes in the type that it
    was quantised from.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out_features: int,
        loaded_dtype: torch.dtype,
    ) -> Tensor:
        ctx.shape, ctx.loaded_dtype = (out_features, inputs.shape[-1]), loaded_dtype
        ctx.weight = weakref.ref(weight)

        def product() -> Tensor:
            scales = _dequantised_scales(ctx.shape) + 0.0
            dequantised = torch.empty(ctx.shape, dtype=inputs.dtype)
            _note_dequantised(weight, dequantised, scales)
            out = torch.nn.functional.linear(inputs, dequantised, bias)
            del scales  # alive during the product
            return out

        return as_one_operator(product, ctx.shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        dequantised = _dequantised(ctx.weight(), ctx.shape, ctx.loaded_dtype)
        return (
            torch.matmul(grad_outputs[0], dequantised.to(grad_outputs[0].dtype)),
            None,
            None,
            None,
            None,
        )


def _dequantised(weight: Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a weight as bitsandbytes' `dequantize_4bit` allocates it; its scales end here."""
    scales = _dequantised_scales(shape)
    dequantised = torch.empty(shape, dtype=dtype)
    _note_dequantised(weight, dequantised, scales)
    return dequantised


def _note_dequantised(weight: Tensor | None, dequantised: Tensor, scales: Tensor) -> None:
    reads = (scales,) if weight is None else (weight, scales)
    note_kernel("dequantise_nf4", "dequantise", reads, (dequantised, scales))


def _dequantised_scales(shape: Sequence[int]) -> Tensor:
    return torch.empty(-(-math.prod(shape) // NF4_BLOCK), dtype=torch.float32)


def replace_linear_layers(model: nn.Module, packed: Callable[[nn.Linear], nn.Module]) -> None:
    """Replace every linear layer but the output head in place, as bitsandbytes does."""
    for name in names_of_4bit_layers(model):
        parent, _, child = name.rpartition(".")
        plain = cast(nn.Linear, model.get_submodule(name))
        setattr(model.get_submodule(parent), child, packed(plain))


def names_of_4bit_layers(model: nn.Module) -> list[str]:
    """Return the names of the layers that are stored in 4 bit: linear ones of torch's own class, as
    transformers 5 chooses (integrations/bitsandbytes.py), but for the output head.
    """
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    return [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module is not head and not name.endswith("lm_head")
    ]
