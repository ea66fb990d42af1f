"""Experts in 4 bits compute what transformers computes with their unpacked weights, and take as
much memory as linear layers.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    Mxfp4Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

from brimful.model import packed_experts
from brimful.model.packed_experts import expert_layers, grouped, pack, unpack
from brimful.model.published import Loading, attach_adapters, load_model
from brimful.recipe import AdapterRecipe

CPU = torch.device("cpu")
IDS_BT = torch.arange(1, 33).view(2, 16)
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
}
CONFIGS = {
    "gated by halves": Qwen3MoeConfig(num_experts=8, moe_intermediate_size=64, **SHAPE),
    "transposed, with biases": GptOssConfig(num_local_experts=8, intermediate_size=64, **SHAPE),
}


@pytest.fixture(params=list(CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A published model with experts."""
    _model(CONFIGS[request.param]).save_pretrained(tmp_path)
    return tmp_path


def _model(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    return model


def _packed(folder: Path, weights: str) -> PreTrainedModel:
    return load_model(folder, Loading(weights, "eager", CPU, "nf4", packs_experts=True))


def _loss_and_gradient(model: PreTrainedModel) -> tuple[float, Tensor]:
    embedded = model.get_input_embeddings()(IDS_BT).detach().requires_grad_()
    loss = model(inputs_embeds=embedded, labels=IDS_BT).loss
    loss.backward()
    assert embedded.grad is not None
    return loss.item(), embedded.grad


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_loss_and_gradient_are_those_of_the_unpacked_weights(folder: Path, weights: str) -> None:
    packed = _packed(folder, weights)
    plain = load_model(folder, Loading(weights, "eager", CPU, "nf4"))
    layers = list(zip(expert_layers(plain), expert_layers(packed), strict=True))
    for (layer, name), (packed_layer, _) in layers:
        getattr(layer, name).data.copy_(unpack(packed_layer, name))

    loss, gradient = _loss_and_gradient(plain)

    assert len(layers) == 4
    assert plain.config._experts_implementation == "grouped_mm"
    packed_loss, packed_gradient = _loss_and_gradient(packed)
    assert packed_loss == loss
    assert torch.equal(packed_gradient, gradient)


def test_each_expert_takes_half_a_byte_a_weight_and_stays_as_it_is(folder: Path) -> None:
    model = _packed(folder, "bf16")
    attach_adapters(model, AdapterRecipe(rank=4, targets="q_proj"), seed=1)
    before = [getattr(layer, name).data.clone() for layer, name in expert_layers(model)]

    model(input_ids=IDS_BT, labels=IDS_BT).loss.backward()

    for (layer, name), packed in zip(expert_layers(model), before, strict=True):
        weight = getattr(layer, name)
        assert torch.equal(weight.data, packed)
        assert weight.grad is None
        assert packed.numel() == unpack(layer, name).numel() // 2
    moved = [each for each in model.parameters() if each.grad is not None]
    assert moved
    assert all(each.requires_grad for each in moved)


@pytest.mark.parametrize("quantize", ["nf4", "none"])
def test_experts_published_in_mxfp4_are_unpacked_first(tmp_path: Path, quantize: str) -> None:
    config = CONFIGS["transposed, with biases"]
    _model(config).save_pretrained(tmp_path)
    _store_in_mxfp4(tmp_path)
    published = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)
    )

    how = Loading("bf16", "eager", CPU, quantize, packs_experts=quantize == "nf4")
    layers = zip(expert_layers(published), expert_layers(load_model(tmp_path, how)), strict=True)

    for (layer, name), (ours, _) in layers:
        weight = getattr(layer, name).data
        if quantize == "nf4":
            assert torch.equal(getattr(ours, name).data, pack(weight).data)
        else:
            assert torch.equal(getattr(ours, name).data, weight)


def _store_in_mxfp4(folder: Path) -> None:
    """Replace the experts in a folder by values in MXFP4: 32 of 4 bits have a scale."""
    tensors = load_file(folder / "model.safetensors")
    for name in [each for each in tensors if each.endswith(("gate_up_proj", "down_proj"))]:
        experts, rows, columns = tensors.pop(name).transpose(1, 2).shape
        generator = torch.Generator().manual_seed(len(name))
        shape = (experts, rows, columns // 32)
        for part, low, high, size in (
            ("blocks", 0, 256, (*shape, 16)),
            ("scales", 118, 124, shape),
        ):
            drawn = torch.randint(low, high, size, generator=generator, dtype=torch.uint8)
            tensors[f"{name}_{part}"] = drawn
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    values["quantization_config"] = {"quant_method": "mxfp4"}
    file.write_text(json.dumps(values), encoding="utf-8")


def test_nothing_unpacked_is_kept_for_the_backward_pass(folder: Path) -> None:
    model = _packed(folder, "fp32")
    unpacked = {unpack(layer, name).shape for layer, name in expert_layers(model)}
    unpacked |= {(*shape[:-2], shape[-1], shape[-2]) for shape in unpacked}
    kept: list[torch.Size] = []

    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.shape) or tensor, lambda tensor: tensor
    ):
        _loss_and_gradient(model)

    assert kept
    assert not unpacked & set(kept)


def test_where_torch_has_no_grouped_product_each_expert_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows_SD, weight_EDF = torch.randn(10, 16), torch.randn(4, 16, 8)
    ends_E = torch.tensor([3, 3, 8, 10], dtype=torch.int32)
    together = grouped(rows_SD, weight_EDF, ends_E)

    monkeypatch.setattr(packed_experts, "has_grouped_products", lambda *_: False)

    assert torch.allclose(grouped(rows_SD, weight_EDF, ends_E), together, atol=1e-6)
    assert torch.allclose(together[3:8], rows_SD[3:8] @ weight_EDF[2], atol=1e-6)
