"""Rehearsal of other trainers' steps: what brimful's own rehearsal calls for a ForeignStep."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from brimful.integrations.other_tools.optimizers import IN_TORCH, KEPT, OWN
from brimful.integrations.other_tools.stand_ins.fsdp1 import in_root, wrap
from brimful.integrations.other_tools.stand_ins.kernels import with_fused_kernels
from brimful.integrations.other_tools.stand_ins.layers import (
    Linear8bit,
    LinearGptq,
    SinglyQuantized,
    with_peft,
)
from brimful.integrations.other_tools.stand_ins.losses import (
    chained_loss,
    compiled_loss,
    plain_cross_entropy,
)
from brimful.integrations.other_tools.stand_ins.optimizers import KeptStates, optimizer_in_torch
from brimful.integrations.other_tools.step import LINEAR_LAYERS, ForeignStep, PeftAdapter
from brimful.planning.step import Lora, StepSpec
from brimful.rehearsal.models import (
    DTYPES,
    meta_model,
    names_of_4bit_layers,
    plain_model,
    replace_linear_layers,
    transformers_model,
    upcast,
    with_4bit_layers,
    with_adapters,
)
from brimful.rehearsal.optimizers import optimizer_for, optimizer_of, trainable_parameters
from brimful.rehearsal.ranks import fake_group
from brimful.rehearsal.training import divided, loss_of, loss_of_part, model_loss, prepare
from brimful.training.activations import recompute_activations
from brimful.training.method import LossSum

_ENDS = ("norm", "embed_tokens", "embed_in", "embed_out", "word_embeddings", "lm_head")
"""Parts of the names of weights that Axolotl keeps in fp32 where all train (loaders/utils.py and
model.py).
"""


@meta_model.register
def _foreign_model(spec: ForeignStep, config: PretrainedConfig) -> nn.Module:
    model = plain_model(spec, config)
    linear = names_of_4bit_layers(model)
    if spec.quantize == "gptq4":
        replace_linear_layers(model, lambda plain: LinearGptq(plain, spec.gptq_group))
    elif spec.quantize == "nf4":
        with_4bit_layers(model, spec)
    elif spec.quantize == "nf4_single":
        replace_linear_layers(model, lambda plain: SinglyQuantized(plain, DTYPES[spec.products]))
    elif spec.quantize == "int8":
        replace_linear_layers(model, lambda plain: Linear8bit(plain, DTYPES[spec.products]))
    with torch.device("meta"):
        if isinstance(spec.adapter, PeftAdapter):
            model = with_peft(model, spec.adapter, spec.task)
        elif spec.adapter is not None:
            model = with_adapters(model, _by_name(spec.adapter, linear), spec)
    with_fused_kernels(transformers_model(model), spec.quirks)
    if spec.compiled == "model" and spec.chain is not None and spec.chain.upcast == "none":
        transformers_model(model).loss_function = plain_cross_entropy
    if spec.upcast:
        upcast(model)
    elif spec.fp32_norms:
        upcast(model, lambda name: "norm" in name or ".ln_" in name)
    elif spec.fp32_ends:
        upcast(model, lambda name: any(part in name for part in _ENDS))
    return model


def _by_name(adapter: Lora, linear: list[str]) -> Lora:
    """Return an adapter with the names of the layers in place of LINEAR_LAYERS."""
    names = {name.rpartition(".")[2] for name in linear}
    all_of_them = adapter.targets == LINEAR_LAYERS
    return replace(adapter, targets=",".join(sorted(names))) if all_of_them else adapter


@loss_of.register
def _foreign_loss(spec: ForeignStep) -> LossSum:
    if spec.compiled == "model":
        return compiled_loss(spec)
    if spec.chain is None or not spec.kind.writes_text:
        return model_loss
    return chained_loss(spec, spec.chain)


@optimizer_for.register
def _foreign_optimizer(spec: ForeignStep, model: nn.Module) -> Any:
    parameters = trainable_parameters(model)
    if spec.optimizer in IN_TORCH:
        return optimizer_in_torch(spec.optimizer, parameters)
    if spec.optimizer not in KEPT:
        return optimizer_for.dispatch(StepSpec)(spec, model)
    embeddings = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    if not spec.cuda and spec.optimizer in OWN:
        own = replace(spec, optimizer=OWN[spec.optimizer])
        return optimizer_of(own, parameters, wide=embeddings)
    return KeptStates(parameters, KEPT[spec.optimizer], embeddings, cuda=spec.cuda)


@divided.register
def _divided_foreign(spec: ForeignStep, model: nn.Module) -> AbstractContextManager[None]:
    if spec.is_wrapped:
        return fake_group(spec.ranks)
    return divided.dispatch(StepSpec)(spec, model)


@loss_of_part.register
def _foreign_loss_of_part(spec: ForeignStep, loss_sum: LossSum) -> LossSum:
    return in_root(loss_sum) if spec.is_wrapped else loss_of_part.dispatch(StepSpec)(spec, loss_sum)


@prepare.register
def _prepare_foreign(spec: ForeignStep, model: nn.Module) -> None:
    if spec.is_wrapped:
        if spec.recompute and spec.adapter is not None:
            transformers_model(model).enable_input_require_grads()
        wrap(spec, model)
        model.train()
    elif spec.recompute and spec.quirks.reentrant:
        recompute_activations(transformers_model(model), reentrant=True)
        model.train()
    else:
        prepare.dispatch(StepSpec)(spec, model)
