"""Linear layers that multiply with copies of their weights while many texts are written on a CPU:
adapters are merged into the copies, and where products in bf16 are faster they are in bf16, laid
out once for all products.

The model keeps its weights, so nothing has to be taken back. Blocks of Llama's kind are exchanged
whole (`quick_blocks`). In others everything between the products (norms, attention) stays in fp32.

Shapes: N rows of a product, I inputs, O outputs.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from brimful.generation.quick_blocks import Product, Weight, quick_blocks, replaced_layers
from brimful.hardware import host
from brimful.hardware.matrix_rates import bf16_pays_here
from brimful.model.published import has_adapters
from brimful.planning.kv_cache import BF16_LEAST_WIDTH

Products = Literal["own", "fp32", "bf16"]
"""What the layers multiply with: the model's own weights and adapters, or copies of this type."""
MEMORY_SHARE = 0.2
"""Copies are made where they take at most this share of the machine's memory. Of the whole memory,
not of the free one, so that an interrupted drawing of samples goes on with the same products.
"""


def products_for(model: PreTrainedModel, precision: str = "auto") -> Products:
    """Return what a model should multiply with to write many texts.

    Args:
        model: The model, on its device.
        precision: The recipe's `plan.precision`; fp32 is kept to.
    """
    if model.device.type != "cpu":
        return "own"
    num_weights = sum(weight.numel() for weight in model.parameters())
    room_bytes = MEMORY_SHARE * host.memory_total_bytes(host.control_group_limits())
    width = int(getattr(model.config.get_text_config(decoder=True), "hidden_size", 0))
    is_wide = width >= BF16_LEAST_WIDTH and 2 * num_weights <= room_bytes
    if precision != "fp32" and is_wide and has_quick_bf16():
        return "bf16"
    return "fp32" if has_adapters(model) and 4 * num_weights <= room_bytes else "own"


def has_quick_bf16() -> bool:
    """Return whether products in bf16 were measured to be faster on this processor, and torch has a
    layout of weights for them. Only x86 was tried.
    """
    is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    return is_x86 and torch.ops.mkldnn._is_mkldnn_bf16_supported() and bf16_pays_here()


@contextmanager
def copied_weights(
    model: PreTrainedModel, products: Products, *, with_blocks: bool = False
) -> Iterator[bool]:
    """While entered, linear layers multiply with copies of their weights. Layers in 4 bits, and
    adapters of other kinds than plain LoRA, compute as before. Yields whether the model's blocks
    are `quick_blocks`.

    Args:
        model: The model, on a CPU unless `products` is "own"; in eval mode.
        products: Type of the copies. "fp32" exchanges layers with adapters only: the others would
            compute the same.
        with_blocks: Whether bf16 exchanges whole blocks where they are of Llama's kind. They read
            prompts that start from nothing, and continue texts kept in `Slots`, nothing else.
    """
    exchanged: list[nn.Module] = []
    try:
        weights = dict(_layers(model, products))
        blocks = quick_blocks(model, weights) if with_blocks and products == "bf16" else {}
        for block, quick in blocks.items():
            block.forward = quick
            exchanged.append(block)
            for layer in replaced_layers(block):
                weights.pop(layer)
        head = model.get_output_embeddings()
        for layer, merged in weights.items():
            if products == "bf16":
                layer.forward = _bf16_product(merged(), keeps_bf16=layer is head)
            else:
                layer.forward = _fp32_product(merged())
            exchanged.append(layer)
        yield bool(blocks)
    finally:
        for layer in exchanged:
            del layer.forward


def _layers(
    model: PreTrainedModel, products: Products
) -> Iterator[tuple[nn.Module, Callable[[], Weight]]]:
    """Yield each layer to exchange, and what gives its weight with adapters merged into it in fp32:
    one after another, since all of them take twice the memory of the copies.
    """
    if products == "own":
        return
    inside: set[nn.Module] = set()
    if has_adapters(model):
        # Importing peft takes half a second that models without adapters do not need.
        from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415

        for layer in [each for each in model.modules() if isinstance(each, BaseTunerLayer)]:
            inside.update(layer.modules())
            if _is_plain_lora(layer):
                yield layer, partial(_merged, layer)
    if products == "bf16":
        for layer in list(model.modules()):
            if type(layer) is nn.Linear and layer not in inside:
                yield layer, partial(Weight, layer.weight, layer.bias)


def _is_plain_lora(layer: Any) -> bool:
    """Return whether a layer of peft adds products of two matrices to a linear layer's weight, and
    nothing else.
    """
    return (
        type(layer.get_base_layer()) is nn.Linear
        and bool(getattr(layer, "lora_A", None))
        and not layer.lora_variant
        and not any(layer.lora_bias.values())
    )


def _merged(layer: Any) -> Weight:
    """A LoRA layer's weight with its active adapters, in fp32."""
    base = layer.get_base_layer()
    weight_OI: Tensor = base.weight.detach().float()
    if not (layer.disable_adapters or layer.merged):
        for name in layer.active_adapters:
            if name in layer.lora_A:
                weight_OI = weight_OI + layer.get_delta_weight(name).detach().float()
    return Weight(weight_OI, base.bias)


def _fp32_product(weight: Weight) -> Callable[[Tensor], Tensor]:
    bias = None if weight.bias_O is None else weight.bias_O.float()

    def product(x: Tensor) -> Tensor:
        return nn.functional.linear(x.float(), weight.weight_OI, bias).to(x.dtype)

    return product


def _bf16_product(weight: Weight, *, keeps_bf16: bool) -> Callable[[Tensor], Tensor]:
    """Products in bf16. Logits stay in it: in fp32 they would be the same numbers."""
    multiply = Product(weight)

    def product(x: Tensor) -> Tensor:
        output_NO = multiply(x.flatten(0, -2).to(torch.bfloat16))
        output = output_NO.view(*x.shape[:-1], -1)
        return output if keeps_bf16 else output.to(x.dtype)

    return product
