"""Published models come whole or not at all; adapters are counted, attached, loaded and merged as
asked.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fixture_types import Refuses
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from trained_tokenizers import train_tokenizer
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from brimful.base.errors import DeviceError, PlanError, RecipeError
from brimful.model import published
from brimful.model.catalog import config_of_model
from brimful.model.published import (
    Loading,
    attach_adapters,
    copy_mapped_weights,
    fingerprint_of,
    has_adapters,
    inference_attention,
    is_adapter_folder,
    load_adapters,
    load_model,
    merge_adapters,
    without_adapters,
)
from brimful.recipe import AdapterRecipe

CPU = torch.device("cpu")
PLAIN = Loading("fp32", "sdpa", CPU)
RANK_4 = AdapterRecipe(rank=4)
IDS_BT = torch.arange(1, 20)[None]


def llama(width: int = 64) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=300, max_position_embeddings=64, tie_word_embeddings=True, **shape)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A published model with its tokenizer."""
    llama().save_pretrained(tmp_path / "base")
    train_tokenizer(
        "bpe", 270, 1, ["the cat sat on the mat and the rat ran to the other cat"]
    ).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapters(folder: Path, tmp_path: Path) -> Path:
    """Adapters for it that do something, in a folder."""
    model = load_model(folder, PLAIN)
    attach_adapters(model, RANK_4, seed=1)
    randomise(model)
    model.save_pretrained(tmp_path / "adapters")
    return tmp_path / "adapters"


def randomise(model: PreTrainedModel) -> None:
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)


def trainable(model: PreTrainedModel) -> dict[str, Tensor]:
    return {
        name: parameter.data
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def logits_of(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=IDS_BT).logits
    return logits


def edit_json(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


# --- the base


def test_a_published_model_comes_with_its_weights_in_the_type_asked_for(folder: Path) -> None:
    model = load_model(folder, PLAIN)
    assert torch.equal(logits_of(model), logits_of(llama().eval()))
    assert not model.training
    assert not has_adapters(model)
    assert {
        parameter.dtype
        for parameter in load_model(folder, Loading("bf16", "sdpa", CPU)).parameters()
    } == {torch.bfloat16}


def test_a_model_that_is_not_there_or_damaged_is_told(
    folder: Path, tmp_path: Path, refuses: Refuses
) -> None:
    with refuses(PlanError):
        load_model(tmp_path / "gone", PLAIN)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with refuses(PlanError):
        load_model(folder, PLAIN)


@pytest.mark.parametrize("named", ["weights.bin", "../model.safetensors", "/model.safetensors", 3])
def test_a_list_of_weight_files_that_names_anything_but_safetensors_beside_it_is_refused(
    folder: Path, refuses: Refuses, named: object
) -> None:
    """Nothing of what it names is opened: none of these files exists."""
    shutil.move(folder / "model.safetensors", folder / "model-1.safetensors")
    index = folder / "model.safetensors.index.json"
    names = load_file(folder / "model-1.safetensors")
    whole: dict[str, object] = dict.fromkeys(names, "model-1.safetensors")
    index.write_text(json.dumps({"metadata": {}, "weight_map": whole}))
    assert torch.equal(logits_of(load_model(folder, PLAIN)), logits_of(llama().eval()))

    index.write_text(json.dumps({"weight_map": whole | {"model.norm.weight": named}}))
    with refuses(PlanError, names=[index.name, repr(str(named))]):
        load_model(folder, PLAIN)


def test_weights_of_another_model_are_never_filled_up_with_random_ones(
    folder: Path, refuses: Refuses
) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with refuses(PlanError):
        load_model(folder, PLAIN)


def test_the_fingerprint_of_a_model_of_the_hub_is_its_commit() -> None:
    model = llama()
    model.config._commit_hash = "c0ffee"
    assert fingerprint_of("owner/name", model) == "c0ffee"


def test_capped_scores_are_left_to_the_eager_attention() -> None:
    assert inference_attention("google/gemma-2-2b") == "eager"
    assert inference_attention("HuggingFaceTB/SmolLM2-360M") == "sdpa"


# --- 4 bits


def test_a_base_in_4_bits_trains_adapters_on_the_cpu_and_stays_as_it_is(folder: Path) -> None:
    model = load_model(folder, Loading("fp32", "sdpa", CPU, quantize="nf4"))
    attach_adapters(model, RANK_4, seed=1)
    packed = model.model.layers[0].mlp.up_proj.base_layer.weight
    before = packed.data.clone()
    assert packed.dtype == torch.uint8
    assert {tensor.dtype for tensor in trainable(model).values()} == {torch.float32}

    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.5
    )
    losses = []
    for _ in range(8):
        loss = model(input_ids=IDS_BT, labels=IDS_BT).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]
    assert torch.equal(packed.data, before)


def test_4_bits_without_bitsandbytes_say_how_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(published, "find_spec", lambda _name: None)
    with refuses(DeviceError):
        load_model(folder, Loading("fp32", "sdpa", CPU, quantize="nf4"))


# --- adapters


@pytest.mark.parametrize(
    ("name", "adapter", "expected"),
    [
        (
            "google/gemma-2-2b",
            AdapterRecipe(rank=8, targets=["q_proj", "k_proj", "v_proj", "o_proj"]),
            3_194_880,
        ),
        (
            "google/gemma-2-2b",
            AdapterRecipe(rank=16, targets="q_proj, k_proj, v_proj, o_proj"),
            6_389_760,
        ),
        (
            "google/gemma-2-2b",
            AdapterRecipe(rank=32, targets=["q_proj", "k_proj", "v_proj", "o_proj"]),
            12_779_520,
        ),
        ("HuggingFaceTB/SmolLM2-360M", AdapterRecipe(rank=4), 2_170_880),
    ],
)
def test_adapters_of_published_models_have_their_known_size_without_any_weights(
    name: str, adapter: AdapterRecipe, expected: int
) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of_model(name), attn_implementation="eager")
    attach_adapters(model, adapter, seed=0)
    assert sum(tensor.numel() for tensor in trainable(model).values()) == expected
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_adapters_depend_on_their_seed_only_and_leave_the_generator_alone(folder: Path) -> None:
    drawn = []
    for global_seed, seed in ((1, 7), (2, 7), (1, 8)):
        model = load_model(folder, PLAIN)
        torch.manual_seed(global_seed)
        attach_adapters(model, RANK_4, seed=seed)
        after = torch.rand(1)
        torch.manual_seed(global_seed)
        assert torch.equal(after, torch.rand(1))
        drawn.append(trainable(model))
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
    assert not all(torch.equal(drawn[0][name], drawn[2][name]) for name in drawn[0])


def test_fresh_adapters_are_in_fp32_freeze_the_rest_and_change_nothing_yet(folder: Path) -> None:
    model = load_model(folder, Loading("bf16", "sdpa", CPU))
    before = logits_of(model)
    attach_adapters(model, RANK_4, seed=1)
    assert torch.equal(logits_of(model), before)
    assert all(
        "lora_" in name and tensor.dtype == torch.float32
        for name, tensor in trainable(model).items()
    )


def test_rank_scale_targets_and_variants_reach_peft(folder: Path) -> None:
    def attached(adapter: AdapterRecipe) -> PreTrainedModel:
        model = load_model(folder, PLAIN)
        attach_adapters(model, adapter, seed=1)
        return model

    named = attached(AdapterRecipe(rank=4, alpha=6, targets=["q_proj", "down_proj"]))
    assert {name.split(".")[-4] for name in trainable(named)} == {"q_proj", "down_proj"}
    assert named.model.layers[0].self_attn.q_proj.scaling == {"default": 6 / 4}
    assert attached(AdapterRecipe(rank=4, alpha=6, rslora=True)).model.layers[
        0
    ].self_attn.q_proj.scaling == {"default": 6 / 4**0.5}
    assert (
        attached(AdapterRecipe(rank=4, dropout=0.25))
        .model.layers[0]
        .self_attn.q_proj.lora_dropout["default"]
        .p
        == 0.25
    )
    assert any(
        "magnitude" in name for name in trainable(attached(AdapterRecipe(rank=4, dora=True)))
    )
    assert not any("lm_head" in name for name in trainable(attached(RANK_4)))


def test_layers_of_gpt2_take_adapters_too_and_merge() -> None:
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=300, n_positions=32, n_embd=32, n_layer=1, n_head=2)
    ).eval()
    attach_adapters(model, RANK_4, seed=1)
    assert {name.split(".")[-4] for name in trainable(model)} == {"c_attn", "c_proj", "c_fc"}

    randomise(model)
    tuned = logits_of(model)
    merge_adapters(model)
    assert torch.allclose(logits_of(model), tuned, atol=1e-5)


def test_adapters_of_experts_that_are_one_tensor_merge() -> None:
    """Several parameters of one layer have adapters, which lie in one another."""
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
    )
    model = Qwen3MoeForCausalLM(config).eval()
    plain = {name: weight.clone() for name, weight in model.state_dict().items()}
    attach_adapters(model, AdapterRecipe(rank=4, alpha=8), seed=1)
    randomise(model)
    tuned = logits_of(model)

    changed = merge_adapters(model)

    assert {name.rsplit(".", 1)[-1] for name in changed} == {"gate_up_proj", "down_proj", "weight"}
    after = model.state_dict()
    assert after.keys() == plain.keys()
    assert {name for name in plain if not torch.equal(plain[name], after[name])} == changed
    assert torch.allclose(logits_of(model), tuned, atol=1e-5)


@pytest.mark.parametrize("targets", [["q_proj", "query"], "query"])
def test_targets_that_match_nothing_name_what_there_is(
    targets: list[str] | str, refuses: Refuses
) -> None:
    with refuses(RecipeError):
        attach_adapters(llama(), AdapterRecipe(targets=targets), seed=0)


def test_saved_adapters_come_back_and_can_be_switched_off(folder: Path, adapters: Path) -> None:
    base = load_model(folder, PLAIN)
    untuned = logits_of(base)
    with without_adapters(base):
        assert torch.equal(logits_of(base), untuned)
    load_adapters(base, adapters)
    tuned = logits_of(base)

    assert is_adapter_folder(adapters)
    assert not is_adapter_folder(folder)
    assert has_adapters(base)
    assert not torch.equal(tuned, untuned)
    with without_adapters(base):
        assert torch.equal(logits_of(base), untuned)
    assert torch.equal(logits_of(base), tuned)


def test_adapters_of_all_layers_are_gone_on_with_as_such(folder: Path, adapters: Path) -> None:
    """Their folder names the layers that "all-linear" stands for."""
    going_on = load_model(folder, PLAIN)
    attach_adapters(going_on, RANK_4.model_copy(update={"start": str(adapters)}), seed=2)

    saved = load_file(adapters / "adapter_model.safetensors")
    found = trainable(going_on)
    assert RANK_4.targets == "all-linear"
    assert len(found) == len(saved) > 0
    for name, weights in saved.items():
        own = name.removeprefix("base_model.model.").replace(".weight", ".default.weight")
        assert torch.equal(found[own], weights)


def test_adapters_of_another_scale_are_not_gone_on_with_silently(
    folder: Path, adapters: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(adapters, tmp_path / "other")
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 20}))

    with pytest.raises(RecipeError, match=r"adapter\.alpha: 8\.0, but the adapters in .* have 20"):
        attach_adapters(
            load_model(folder, PLAIN), RANK_4.model_copy(update={"start": str(other)}), seed=2
        )


def test_adapters_are_back_after_an_error(folder: Path, adapters: Path) -> None:
    model = load_model(folder, PLAIN)
    load_adapters(model, adapters)
    tuned = logits_of(model)
    with pytest.raises(ZeroDivisionError), without_adapters(model):
        raise ZeroDivisionError
    assert torch.equal(logits_of(model), tuned)


@pytest.mark.parametrize(
    "other",
    [llama(32), GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2))],
)
def test_adapters_of_another_model_are_refused(adapters: Path, other: PreTrainedModel) -> None:
    with pytest.raises(PlanError, match="do not belong to the model"):
        load_adapters(other, adapters)


def test_damaged_adapters_are_refused(folder: Path, adapters: Path) -> None:
    path = adapters / "adapter_model.safetensors"
    whole = path.read_bytes()
    tensors = load_tensors(whole)
    for damaged in (whole[:-20], b""):
        path.write_bytes(damaged)
        with pytest.raises(PlanError, match="or are damaged"):
            load_adapters(load_model(folder, PLAIN), adapters)
    lost = next(iter(tensors))
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, path)
    with pytest.raises(PlanError, match="do not match"):
        load_adapters(load_model(folder, PLAIN), adapters)
    path.write_bytes(whole)
    (adapters / "adapter_config.json").write_text("{")
    with pytest.raises(PlanError, match="or are damaged"):
        load_adapters(load_model(folder, PLAIN), adapters)


@pytest.mark.parametrize(
    "adapter",
    [
        RANK_4,
        AdapterRecipe(rank=4, dora=True),
        AdapterRecipe(rank=4, rslora=True, targets=["q_proj"]),
    ],
)
def test_merged_adapters_leave_a_plain_model_that_computes_the_same(
    folder: Path, adapter: AdapterRecipe
) -> None:
    model = load_model(folder, PLAIN)
    classes = [type(module) for module in model.modules()]
    attach_adapters(model, adapter, seed=1)
    randomise(model)
    tuned = logits_of(model.eval())
    changed = merge_adapters(model)

    plain = load_model(folder, PLAIN)
    differing = {
        name
        for name, parameter in model.named_parameters()
        if not torch.equal(parameter, plain.get_parameter(name))
    }
    assert differing == changed
    assert [type(module) for module in model.modules()] == classes
    assert not has_adapters(model)
    assert torch.allclose(logits_of(model), tuned, atol=1e-5)
    assert isinstance(model.get_submodule("model.layers.0.self_attn.q_proj"), nn.Linear)


def test_weights_mapped_from_a_file_are_copied_and_tied_ones_stay_tied(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    model = load_model(tmp_path, PLAIN)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    mapped = [each for each in model.parameters() if not each.untyped_storage().resizable()]

    copy_mapped_weights(model)

    assert mapped
    assert all(each.untyped_storage().resizable() for each in model.parameters())
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
