"""The model with either attention: equal weights, equal outputs at the start, and every way of
reading a text gives the same, also for Llama with kernel attention.
"""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import records_of, train
from fixture_types import MakeRecipe, Refuses
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from brimful.data.batches import Batch
from brimful.model.blocks import CACHE_NAME
from brimful.model.build import build
from brimful.model.catalog import config_of_model
from brimful.model.okadfa import modeling
from brimful.model.okadfa.kernel_attention import (
    MOST_TEMPERATURE,
    draw_projection,
    key_features,
    query_features,
)
from brimful.model.okadfa.kernel_llama import KernelLlamaConfig
from brimful.model.okadfa.linear_attention import causal_attention
from brimful.model.okadfa.modeling import (
    OkadfaAttention,
    OkadfaConfig,
    OkadfaForCausalLM,
    attentions_of,
    orthogonality_penalty,
    redraw_features,
    sinusoids,
    violation_per_head,
)
from brimful.model.published import Loading, load_model
from brimful.model.registered import register
from brimful.training.activations import recompute_activations
from brimful.training.loop import accumulate_gradients
from brimful.training.method import Network, find_method, hidden_states_of
from brimful.training.precision import Precision

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
BOTH = pytest.mark.parametrize("attention", ["kernel", "softmax"])
EVERY = pytest.mark.parametrize("attention", ["kernel", "softmax", "llama"])
"""Llama's kernel attention has two heads of queries on each of keys."""
OF_LLAMA = {"intermediate_size": 96, "num_key_value_heads": 2, "num_features": 48}


@pytest.fixture(autouse=True)
def _known() -> None:
    register()


def _model(attention: str = "kernel", **values: Any) -> PreTrainedModel:
    """With the weights of one seed, large enough that attention decides something; a temperature of
    its own for each head.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = (
            KernelLlamaConfig(**SIZES | OF_LLAMA | values)
            if attention == "llama"
            else OkadfaConfig(**SIZES | values, attention=attention)
        )
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "log_temperature" in name:
                parameter.copy_(torch.linspace(-1, 1.5, len(parameter)))
            elif parameter.ndim > 1:
                parameter.mul_(4)
    return model.eval()


def _ids(rows: int, length: int) -> Tensor:
    return torch.randint(1, 60, (rows, length), generator=torch.Generator().manual_seed(1))


def _attentions(model: PreTrainedModel) -> list[OkadfaAttention]:
    return [module for module in model.modules() if isinstance(module, OkadfaAttention)]


@pytest.mark.parametrize(
    ("width", "layers", "heads", "inner", "millions"),
    [
        (768, 12, 12, 3072, 123.7),
        (1024, 12, 16, 3072, 177.4),
        (1024, 12, 16, 4096, 202.6),
        (1024, 24, 16, 3072, 303.4),
        (1024, 24, 16, 4096, 353.8),
        (1280, 36, 20, 3072, 583.9),
        (1280, 36, 20, 5120, 772.7),
    ],
)
def test_parameters_are_those_of_the_original_and_a_temperature_per_head(
    width: int, layers: int, heads: int, inner: int, millions: float
) -> None:
    config = OkadfaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
    )
    with torch.device("meta"):
        model = OkadfaForCausalLM(config)
    formula = (
        50257 * width
        + layers * (4 * width**2 + 4 * width + 2 * width * inner + inner + width + 4 * width)
        + 2 * width
    )
    assert sum(parameter.numel() for parameter in model.parameters()) == formula + layers * heads
    assert round(formula / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("activation", "function"),
    [("gelu", F.gelu), ("gelu_erf", F.gelu), ("relu", F.relu), ("swish", F.silu)],
)
def test_mlps_have_the_activation_of_the_config(
    activation: str, function: Callable[[Tensor], Tensor]
) -> None:
    mlp = _model(activation=activation).model.layers[0].mlp_part
    hidden_BTD = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0))
    inner = function(mlp.up_proj(mlp.norm(hidden_BTD)))
    expected = hidden_BTD + mlp.down_proj(inner)
    # GELU is computed by its approximation with tanh, which is off by 0.0005 at most.
    torch.testing.assert_close(mlp(hidden_BTD), expected, rtol=1e-3, atol=2e-2)


def test_both_kinds_of_attention_have_the_same_parameters() -> None:
    kernel, softmax = (_model(attention) for attention in ("kernel", "softmax"))
    assert [(name, each.shape) for name, each in kernel.named_parameters()] == [
        (name, each.shape) for name, each in softmax.named_parameters()
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_at_the_start_kernel_attention_has_direction_and_norm_of_softmax_attention(
    dtype: torch.dtype,
) -> None:
    """Every layer's attention, on what it reads in the model; four features per number of a
    head.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            OkadfaConfig(**SIZES | {"hidden_size": 256, "num_hidden_layers": 3})
        )
    assert model.config.num_features == 4 * 64
    config = copy.deepcopy(model.config)
    config.attention = "softmax"
    read: list[Tensor] = []
    handles = [
        module.register_forward_pre_hook(lambda _, args: read.append(args[0]))
        for module in _attentions(model)
    ]
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        model(_ids(2, 192))
        for handle in handles:
            handle.remove()
        for kernel, hidden_BTD in zip(_attentions(model), read, strict=True):
            softmax = OkadfaAttention(config, kernel.layer)
            softmax.load_state_dict(kernel.state_dict(), strict=False)
            found, expected = kernel(hidden_BTD).float(), softmax(hidden_BTD).float()
            assert F.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.95
            assert F.cosine_similarity(found, expected, dim=-1).mean() > 0.95
            assert found.norm() / expected.norm() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("norm", "is_close"), [(1.0, True), (None, False)], ids=["of length 1", "of unit variance"]
)
def test_queries_and_keys_are_normalised_because_else_the_estimate_is_noise(
    norm: float | None, is_close: bool
) -> None:
    size = 64
    queries, keys, values = torch.randn(
        3, 1, 2, 512, size, generator=torch.Generator().manual_seed(0)
    )
    if norm is None:
        queries, keys = queries / size**0.25, keys / size**0.25
    else:
        queries, keys = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)
    projection = draw_projection(2, 4 * size, size, seed=0, layer=0)
    found, _ = causal_attention(
        query_features(queries, projection), key_features(keys, projection), values
    )
    expected = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=1.0)
    cosine = F.cosine_similarity(found.flatten(), expected.flatten(), dim=0)
    assert (cosine > 0.95) if is_close else (cosine < 0.6)


@EVERY
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_future_is_not_looked_at(attention: str, implementation: str) -> None:
    model, ids_BT = _model(attention), _ids(2, 150)
    model.config._attn_implementation = implementation
    changed_BT = ids_BT.clone()
    changed_BT[:, 90:] = 60 - changed_BT[:, 90:]
    with torch.no_grad():
        before, after = model(ids_BT).logits, model(changed_BT).logits
    torch.testing.assert_close(before[:, :90], after[:, :90], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before[:, 90:], after[:, 90:])


@EVERY
def test_padding_on_either_side_changes_nothing_of_the_text(attention: str) -> None:
    model, ids_BT = _model(attention), _ids(2, 90)
    padding = torch.zeros(2, 13, dtype=torch.long)
    text, none = torch.ones_like(ids_BT), torch.zeros_like(padding)
    with torch.no_grad():
        alone = model(ids_BT).logits
        left = model(
            torch.cat([padding, ids_BT], 1), attention_mask=torch.cat([none, text], 1)
        ).logits[:, 13:]
        right = model(
            torch.cat([ids_BT, padding], 1), attention_mask=torch.cat([text, none], 1)
        ).logits[:, :90]
    torch.testing.assert_close(left, alone, **CLOSE)
    torch.testing.assert_close(right, alone, **CLOSE)


@EVERY
def test_packed_documents_read_as_each_alone(attention: str) -> None:
    lengths = (3, 90, 1, 140, 17)
    model, ids_BT = _model(attention), _ids(1, sum(lengths))
    model.config._attn_implementation = "brimful_packed"
    positions_BT = torch.cat([torch.arange(each) for each in lengths])[None]
    with torch.no_grad():
        packed = model(
            ids_BT, position_ids=positions_BT, packed_lengths=torch.tensor([*lengths, 0, 0])
        ).logits
        alone = torch.cat([model(each).logits for each in ids_BT.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, **CLOSE)


@pytest.mark.parametrize("attention", ["kernel", "llama"])
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_that_keep_no_features_give_the_same_with_the_same_gradients(
    attention: str, *, packed: bool
) -> None:
    model, ids_BT = _model(attention), _ids(2, 150)
    how = {"packed_lengths": torch.tensor([60, 90])} if packed else {}
    gradients = {}
    for implementation in ("sdpa", "brimful_blocks"):
        model.config._attn_implementation = implementation
        model.zero_grad()
        model(ids_BT, labels=ids_BT, **how).loss.backward()
        gradients[implementation] = {
            name: parameter.grad for name, parameter in model.named_parameters()
        }
    torch.testing.assert_close(gradients["brimful_blocks"], gradients["sdpa"], **CLOSE)


@pytest.mark.parametrize("attention", ["kernel", "llama"])
def test_packed_documents_are_read_without_a_cache(attention: str, refuses: Refuses) -> None:
    with refuses(ValueError):
        _model(attention)(_ids(1, 6), packed_lengths=torch.tensor([2, 4]), use_cache=True)


@EVERY
@pytest.mark.parametrize("searched", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.long_but("greedy-kernel")
def test_generate_with_a_cache_equals_generate_without(
    attention: str, searched: dict[str, int]
) -> None:
    """Rows of unequal length, padded on the left."""
    model, ids_BT = _model(attention), _ids(3, 9)
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, :4] = 0
    options = {
        "attention_mask": mask_BT,
        "max_new_tokens": 90,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        **searched,
    }
    assert torch.equal(
        model.generate(ids_BT, **options), model.generate(ids_BT, **options, use_cache=False)
    )


@EVERY
def test_a_text_may_be_read_in_parts(attention: str) -> None:
    """Whether positions are told, counted from the mask of all that was read, or known to the
    cache.
    """
    model, ids_BT = _model(attention), _ids(2, 100)
    with torch.no_grad():
        whole = model(ids_BT).logits
        for told in ("positions", "mask", "cache"):
            cache = DynamicCache(config=model.config) if told == "positions" else None
            parts = []
            for start, end in ((0, 70), (70, 71), (71, 100)):
                how: dict[str, Tensor] = {}
                if told == "positions":
                    how = {"position_ids": torch.arange(start, end)[None]}
                elif told == "mask":
                    how = {"attention_mask": torch.ones(2, end)}
                outputs = model(ids_BT[:, start:end], use_cache=True, **{CACHE_NAME: cache}, **how)
                cache = outputs[CACHE_NAME]
                parts.append(outputs.logits)
            torch.testing.assert_close(torch.cat(parts, dim=1), whole, **CLOSE)


def test_a_written_model_is_read_back_with_its_directions(tmp_path: Path) -> None:
    model = _model()
    for module in _attentions(model):
        module.redraw(3)
    model.save_pretrained(tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(read) is OkadfaForCausalLM
    assert torch.equal(read(_ids(1, 20)).logits, model(_ids(1, 20)).logits)
    short = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for ours, theirs in zip(_attentions(model), _attentions(short), strict=True):
        assert theirs.q_proj.weight.dtype == torch.bfloat16
        assert torch.equal(ours.projection_HMD, theirs.projection_HMD)


def test_weights_of_one_kind_of_attention_can_be_read_as_the_other(tmp_path: Path) -> None:
    model = _model("softmax")
    model.save_pretrained(tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, attention="kernel")
    for ours, theirs in zip(_attentions(model), _attentions(read), strict=True):
        assert torch.equal(ours.q_proj.weight, theirs.q_proj.weight)
        assert torch.equal(theirs.projection_HMD, theirs.directions())
    for each in (model, read):
        assert each.generate(
            _ids(1, 5), max_new_tokens=4, eos_token_id=None, pad_token_id=0
        ).shape == (1, 9)


def test_redrawing_changes_directions_and_the_first_draw_brings_them_back() -> None:
    model = _model()
    before = model(_ids(1, 30)).logits
    first = [module.projection_HMD.clone() for module in _attentions(model)]
    assert not torch.equal(*first)
    for module in _attentions(model):
        module.redraw(1)
    assert not torch.allclose(model(_ids(1, 30)).logits, before)
    for module in _attentions(model):
        module.redraw(0)
    assert torch.equal(model(_ids(1, 30)).logits, before)


@pytest.mark.parametrize("log_temperature", [-20.0, math.log(64), 30.0])
def test_extreme_temperatures_stay_finite(log_temperature: float) -> None:
    model = _model(hidden_size=128, num_attention_heads=2)
    with torch.no_grad():
        for module in _attentions(model):
            module.log_temperature_H.fill_(log_temperature)
            assert module.temperature_H11().max() <= MOST_TEMPERATURE * 1.0001
    loss = model(_ids(2, 200), labels=_ids(2, 200)).loss
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@BOTH
def test_fp64_stays_fp64(attention: str) -> None:
    model = _model(attention).double()
    attention_module = _attentions(model)[0]
    hidden_BTD = torch.randn(
        1, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    assert model(_ids(1, 5)).logits.dtype == torch.float64
    assert torch.autograd.gradcheck(attention_module, hidden_BTD)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_weights_keep_sums_and_directions_in_fp32(dtype: torch.dtype) -> None:
    model = AutoModelForCausalLM.from_config(OkadfaConfig(**SIZES), dtype=dtype).eval()
    outputs = model(_ids(1, 30), use_cache=True)
    assert outputs.logits.dtype == dtype
    assert (
        _attentions(model)[0].projection_HMD.dtype
        == outputs[CACHE_NAME].layers[0].recurrent_states[0].dtype
        == torch.float32
    )


@EVERY
def test_recomputation_gives_the_same_gradients_and_leaves_caches_alone(attention: str) -> None:
    gradients = []
    for recomputes in (False, True):
        model = _model(attention).train()
        if recomputes:
            recompute_activations(model)
        model(_ids(2, 100), labels=_ids(2, 100), use_cache=recomputes).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for kept, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(kept, recomputed)


def test_dropout_acts_while_training_only() -> None:
    model, ids_BT = _model(dropout=0.3), _ids(1, 20)
    assert torch.equal(model(ids_BT).logits, model(ids_BT).logits)
    model.train()
    assert not torch.allclose(model(ids_BT).logits, model(ids_BT).logits)


@BOTH
@pytest.mark.parametrize(
    "context",
    [lambda: FakeTensorMode(allow_non_fake_inputs=True), lambda: torch.device("meta")],
    ids=["fake", "meta"],
)
def test_a_step_can_be_traced_without_data(attention: str, context: Callable[[], Any]) -> None:
    with context():
        model = AutoModelForCausalLM.from_config(OkadfaConfig(**SIZES, attention=attention))
        logits = model(torch.zeros(2, 150, dtype=torch.long)).logits
        logits.sum().backward()
    assert logits.shape == (2, 150, 60)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.long
def test_a_block_is_one_graph_and_packed_rows_of_any_length_share_it() -> None:
    """From one chunk and from one group of chunks on; the graph's own back end, because what is
    asked is whether there is one.
    """
    torch._dynamo.reset()
    model = _model()

    def read(lengths: tuple[int, ...]) -> Tensor:
        length = sum(lengths)
        as_many = F.pad(torch.tensor(lengths), (0, length - len(lengths)))
        positions = torch.cat([torch.arange(each) for each in lengths])[None]
        hidden_BTD: Tensor = model.model(
            _ids(1, length), position_ids=positions, packed_lengths=as_many
        ).last_hidden_state
        return hidden_BTD

    rows = [(140, 50, 6), (96,), (1, 2, 3, 60, 30), (170, 91, 2)]
    expected = [read(row) for row in rows]
    for block in model.model.layers:
        block.compile(dynamic=True, fullgraph=True, backend="eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for row, hidden_BTD in zip(rows, expected, strict=True):
            torch.testing.assert_close(read(row), hidden_BTD, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


def test_positions_have_the_size_of_embeddings_and_differ() -> None:
    found = sinusoids(torch.arange(50)[None], 32)
    assert found.shape == (1, 50, 32)
    torch.testing.assert_close(found.square().mean(-1), torch.full((1, 50), 0.5))
    assert torch.cdist(found[0], found[0]).fill_diagonal_(1).min() > 0.1
    assert sinusoids(torch.arange(3)[None], 7).shape == (1, 3, 7)


@BOTH
def test_a_saved_model_can_be_named_as_a_published_one(attention: str, tmp_path: Path) -> None:
    model = _model(attention)
    model.save_pretrained(tmp_path)

    assert config_of_model(str(tmp_path)).model_type == "okadfa"
    loaded = load_model(tmp_path, Loading("fp32", "sdpa", torch.device("cpu")))
    assert torch.equal(loaded(_ids(1, 20)).logits, model.eval()(_ids(1, 20)).logits)


def test_what_is_not_said_follows_from_the_sizes() -> None:
    config = OkadfaConfig(hidden_size=512, num_attention_heads=8, num_hidden_layers=3)
    assert (config.head_size, config.num_features, config.intermediate_size) == (64, 256, 2048)
    assert config.layer_types == ["linear_attention"] * 3
    assert config.max_position_embeddings is None
    assert (
        OkadfaConfig(attention="softmax", num_hidden_layers=2).layer_types == ["full_attention"] * 2
    )


def test_a_written_configuration_is_read_back(tmp_path: Path) -> None:
    register()
    config = OkadfaConfig(
        hidden_size=32,
        num_attention_heads=2,
        num_features=24,
        feature_seed=5,
        initial_temperature=2.5,
        eos_token_id=[1, 2],
    )
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == config.to_diff_dict()
    assert AutoConfig.for_model("okadfa", hidden_size=32, num_attention_heads=2).head_size == 16


def test_the_kind_of_attention_can_be_changed_when_a_model_is_read(tmp_path: Path) -> None:
    register()
    OkadfaConfig(num_hidden_layers=2).save_pretrained(tmp_path)
    assert (
        AutoConfig.from_pretrained(tmp_path, attention="softmax").layer_types
        == ["full_attention"] * 2
    )


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": 30, "num_attention_heads": 4},
        {"attention": "linear"},
        {"initial_temperature": 0.0},
        {"initial_temperature": float("nan")},
        {"num_features": 0},
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object], refuses: Refuses) -> None:
    with refuses(ValueError):
        OkadfaConfig(**values)


CPU = torch.device("cpu")
OKADFA = "model={architecture: okadfa, layers: 2, heads: 2, width: 32}"
MakeModel = Callable[..., torch.nn.Module]


@pytest.fixture
def built(tiny: MakeRecipe) -> MakeModel:
    """A fresh model of two layers and two heads."""

    def make(*overrides: str) -> torch.nn.Module:
        return build(
            tiny(OKADFA, *overrides), vocabulary=50, end_of_text_id=0, attention="sdpa", device=CPU
        )

    return make


def _weight() -> Tensor:
    return torch.randn(24, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_violation_of_a_head_is_the_squared_distance_of_its_small_gram_matrix_from_the_identity() -> (
    None
):
    slices_HDW = _weight().reshape(3, 8, 40)
    by_hand = [
        sum(
            (float(one @ other) - (i == j)) ** 2
            for i, one in enumerate(rows)
            for j, other in enumerate(rows)
        )
        for rows in slices_HDW
    ]

    torch.testing.assert_close(
        violation_per_head(_weight(), 3), torch.tensor(by_hand, dtype=torch.float64)
    )


def test_its_gradient_is_4_times_the_distance_times_the_weight() -> None:
    weight = _weight().requires_grad_()
    violation_per_head(weight, 3).sum().backward()

    slices_HDW = _weight().reshape(3, 8, 40)
    expected_HDW = (
        4
        * (slices_HDW @ slices_HDW.transpose(1, 2) - torch.eye(8, dtype=torch.float64))
        @ slices_HDW
    )
    torch.testing.assert_close(weight.grad.reshape(3, 8, 40), expected_HDW)


def test_orthogonal_rows_cost_nothing_however_the_heads_lie_to_each_other() -> None:
    rows_DW = torch.linalg.qr(_weight().T)[0].T[:8]
    weight = torch.cat([rows_DW, rows_DW])

    assert float(violation_per_head(weight, 2).sum()) < 1e-24
    assert float(violation_per_head(weight, 1).sum()) == pytest.approx(16)


def test_it_counts_queries_and_keys_of_all_layers_and_nothing_else(built: MakeModel) -> None:
    model = built("model.attention=softmax")
    with torch.no_grad():
        for attention in attentions_of(model):
            attention.q_proj.weight.mul_(1.1)
    penalty = orthogonality_penalty(model)
    penalty.backward()

    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert moved == {
        f"model.layers.{layer}.attention_part.attention.{each}_proj.weight"
        for layer in (0, 1)
        for each in "qk"
    }
    # of orthogonal rows times 1.1: (1.1^2 - 1)^2 for each of 16 rows of 2 heads in 2 layers
    assert penalty.dtype is torch.float32
    assert penalty.item() == pytest.approx(2 * 32 * (1.1**2 - 1) ** 2, rel=1e-3)


def test_with_values_it_counts_their_projections_as_well(built: MakeModel) -> None:
    model = built(OKADFA)
    with torch.no_grad():
        for attention in attentions_of(model):
            attention.v_proj.weight.mul_(2)
    expected = sum(
        violation_per_head(attention.v_proj.weight, attention.heads).sum()
        for attention in attentions_of(model)
    )
    found = orthogonality_penalty(model, values=True) - orthogonality_penalty(model)
    torch.testing.assert_close(found, expected)
    assert expected > 1


def test_a_fresh_model_is_where_the_penalty_wants_it(built: MakeModel) -> None:
    assert orthogonality_penalty(built()).item() < 1e-8


def test_features_are_drawn_anew_by_number_and_softmax_attention_has_none(built: MakeModel) -> None:
    model = built()
    before = [attention.projection_HMD.clone() for attention in attentions_of(model)]

    redraw_features(model, 3)
    for attention, old in zip(attentions_of(model), before, strict=True):
        assert not torch.equal(attention.projection_HMD, old)
        assert torch.equal(attention.projection_HMD, attention.directions(3))
    redraw_features(model, 0)
    assert all(
        torch.equal(attention.projection_HMD, old)
        for attention, old in zip(attentions_of(model), before, strict=True)
    )
    redraw_features(built("model.attention=softmax"), 3)


@pytest.mark.parametrize("method", ["pretrain", "feedback"])
@pytest.mark.parametrize("sizes", [(4,), (1, 3), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 2.0**16], ids=["fp32", "as fp16 scales"])
def test_whatever_the_micro_batches_it_is_added_once_and_not_to_the_loss(
    tiny: MakeRecipe, method: str, sizes: tuple[int, ...], scale: float
) -> None:
    """The gradient of an update is that of the mean loss plus the penalty's: the loop divides by
    what they carry.
    """
    recipe = tiny(OKADFA, f"method={method}", "sequence_length=16")
    model = build(recipe, vocabulary=50, end_of_text_id=0, attention="sdpa", device=CPU)
    with torch.no_grad():
        attentions_of(model)[0].q_proj.weight.mul_(1.5)
    network, configured = (
        Network(model, hidden_states_of(model), loss_chunk=16),
        find_method(method).with_options(recipe.loss_options),
    )
    ids = torch.randint(0, 50, (4, 17), generator=torch.Generator().manual_seed(0))
    batch, weight = Batch(ids[:, :-1], ids[:, 1:]), attentions_of(model)[0].q_proj.weight

    def gradient(penalty: Callable[[], Tensor] | None) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        pieces = batch.micro_batches(sizes)
        loss = accumulate_gradients(
            network,
            configured,
            Precision("fp32"),
            CPU,
            pieces,
            torch.tensor(scale / 64),
            added=penalty,
        )
        return loss, weight.grad / scale  # carried: scale / 64 times 64 tokens

    (loss, without), (same_loss, with_it) = (
        gradient(None),
        gradient(lambda: 0.01 * orthogonality_penalty(model) * 64),
    )

    assert torch.equal(loss, same_loss)
    (expected,) = torch.autograd.grad(0.01 * orthogonality_penalty(model), weight)
    assert expected.norm() > 0.1
    torch.testing.assert_close(with_it - without, expected, rtol=1e-3, atol=1e-5)


def test_a_run_adds_it_by_its_schedule_once_per_update_and_tells_the_loss_alone(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reaches the penalty in the backward pass is its weight: 256 targets, a power of two, are
    divided out.
    """
    weights: list[float] = []

    def penalty(model: torch.nn.Module, *, values: bool) -> Tensor:
        found = 1 + orthogonality_penalty(model, values=values)
        found.register_hook(lambda gradient: weights.append(gradient.item()))
        return found

    monkeypatch.setattr(modeling, "orthogonality_penalty", penalty)
    folder = train(
        tiny(
            OKADFA,
            "training.steps=5",
            "orthogonality={weight: 1000.0, warmup: 4}",
            "plan.micro_batch=3",
        )
    )

    assert weights == [250, 500, 750, 1000, 1000]
    losses = [record["loss"] for record in records_of(folder, "step")]
    assert len(losses) == 5
    assert max(losses) < 20  # with it they would be 250 and more
