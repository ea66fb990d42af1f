"""What a session's first step shows, on small random models: each failure is caught, and sound
models of many types pass.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import records_of
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from brimful.base.errors import PlanError, TrainingStopped
from brimful.chains.pipeline import train
from brimful.data.batches import MicroBatch
from brimful.kinds import run_data
from brimful.model import packed_attention, packed_texts
from brimful.model.published import attach_adapters
from brimful.model.registered import register
from brimful.recipe import AdapterRecipe
from brimful.training.method import hidden_states_of
from brimful.training.step_checks import (
    ReplayCheck,
    _looked_at,
    samples_of,
    what_moved,
    who_sees_whom,
)

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_expand": 2}
DELTA = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
TYPES: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen3_5_text": {**DELTA, "layer_types": ["linear_attention", "full_attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "granitemoehybrid": EXPERTS | MAMBA | {"layer_types": ["mamba", "attention"]},
    "gpt_oss": {**EXPERTS, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"]},
}
ROWS = MicroBatch(torch.arange(60).view(3, 20) + 3, torch.arange(60).view(3, 20) + 4)
PACKED = MicroBatch(
    ROWS.inputs_BT.view(1, 60), ROWS.targets_BT.view(1, 60), lengths_E=torch.tensor([23, 20, 17])
)


def model_of(kind: str, micro: MicroBatch = ROWS, *, adapted: bool = False) -> PreTrainedModel:
    torch.manual_seed(1)
    packed_attention.register()
    attention = {} if micro.lengths_E is None else {"attn_implementation": packed_attention.NAME}
    config = AutoConfig.for_model(kind, **SIZES | TYPES[kind])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, **attention)
    if adapted:
        attach_adapters(model, AdapterRecipe(rank=4), seed=1)
    return model


def told(
    model: PreTrainedModel,
    micro: MicroBatch = ROWS,
    *,
    update: Callable[[torch.optim.Optimizer], object] = lambda optimizer: optimizer.step(),
) -> list[str]:
    """What is told of one step."""
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW([p for p in named.values() if p.requires_grad], lr=1e-3)
    head = model.get_output_embeddings().weight
    logits_NV = (hidden_states_of(model)(micro) @ head.T).flatten(0, 1)
    nn.functional.cross_entropy(logits_NV, micro.targets_BT.flatten()).backward()
    seen, samples = who_sees_whom(model, micro), samples_of(named)
    update(optimizer)
    return [seen, *what_moved(named, samples)]


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_a_sound_model_of_any_type_passes(kind: str, adapted: bool) -> None:
    seen, counted = told(model_of(kind, adapted=adapted))

    moved, total = (int(each) for each in counted.split()[-4:-1:2])
    assert moved == total > 2
    assert counted.endswith("adapters" if adapted else "tensors")
    assert seen == "of 3 rows none sees another or what follows"


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_packed_examples_are_looked_at_in_their_row(kind: str) -> None:
    assert told(model_of(kind, PACKED), PACKED)[0].startswith("of 3 examples in one row")


def test_texts_in_one_row_are_looked_at_in_16_bits_too() -> None:
    """Their attention's backward pass is written out, and autocast must not change its types."""
    register()
    config = AutoConfig.for_model("bert", **SIZES)
    model = AutoModelForSequenceClassification.from_config(
        config, attn_implementation=packed_texts.NAME
    )

    with torch.autocast("cpu", torch.bfloat16):
        assert who_sees_whom(model, PACKED) == "of 3 examples in one row none sees another"


def test_an_example_may_see_the_one_that_it_goes_on_from_and_no_other() -> None:
    on_from = replace(PACKED, after_E=torch.tensor([-1, 0, 0]))

    assert told(model_of("llama", on_from), on_from)[0]
    with pytest.raises(PlanError, match="seen by another"):
        _looked_at(*everything_seen(), replace(on_from, after_E=torch.tensor([-1, -1, 0])), True)


def everything_seen() -> tuple[torch.Tensor, torch.Tensor]:
    """States in which each position sees all those before it, and embeddings."""
    leaf_BTD = torch.ones(1, 60, 2, requires_grad=True)
    return leaf_BTD.cumsum(1), leaf_BTD


def test_padding_that_is_seen_stops_the_run() -> None:
    leaf_BTD = torch.ones(1, 20, 2, requires_grad=True)
    mask_BT = (torch.arange(20) < 16).long()[None]
    padded = MicroBatch(ROWS.inputs_BT[:1], ROWS.targets_BT[:1], mask_BT=mask_BT)

    assert _looked_at((leaf_BTD * mask_BT[..., None]).cumsum(1), leaf_BTD, padded, False)
    with pytest.raises(PlanError, match="or padding is"):
        _looked_at(leaf_BTD.flip(1).cumsum(1), leaf_BTD, padded, False)


@pytest.mark.parametrize("kind", ["llama", "qwen3_5_text", "lfm2"])
def test_a_packed_row_whose_examples_are_not_apart_stops_the_run(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States of Qwen3.5 and LFM2 are carried on; Llama's attention is broken by hand."""
    kernel = packed_attention._Kernel
    monkeypatch.setattr(
        kernel,
        "attend_within",
        lambda self, *heads_and_lengths: self.attend(*heads_and_lengths[:3]),
    )

    with pytest.raises(PlanError, match=r"seen by another.*packing=padded"):
        told(model_of(kind, PACKED), PACKED)


def test_a_position_that_sees_what_it_should_predict_stops_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fused = nn.functional.scaled_dot_product_attention

    def both_ways(*heads: Any, **options: Any) -> torch.Tensor:
        return fused(*heads, **options | {"is_causal": False, "attn_mask": None})

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", both_ways)

    with pytest.raises(PlanError, match="tokens that follow it"):
        told(model_of("llama"))


def test_a_kind_of_block_that_comes_late_is_looked_at_too() -> None:
    torch.manual_seed(1)
    kinds = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    sizes = SIZES | {"num_hidden_layers": 7, "layer_types": kinds}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma3_text", **sizes))
    model.model.layers[5].self_attn.register_forward_hook(
        lambda layer, inputs, output: (output[0].flip(1), *output[1:])
    )

    with pytest.raises(PlanError, match="tokens that follow it"):
        told(model)


def test_a_position_that_sees_too_little_stops_the_run() -> None:
    model = model_of("llama")
    for block in model.model.layers:
        block.self_attn.o_proj.register_forward_hook(lambda layer, inputs, output: output * 0)

    with pytest.raises(PlanError, match="does not see those before it"):
        told(model)


def test_layers_that_a_detached_state_cuts_off_are_named() -> None:
    model = model_of("llama")
    model.model.layers[1].register_forward_pre_hook(
        lambda block, inputs: (inputs[0].detach(), *inputs[1:])
    )

    seen, counted, warned = told(model)

    assert seen == "who sees whom cannot be told behind a state that is detached"
    assert counted.endswith("moved 11 of 21 tensors")
    assert "B330: 10 of 21 tensors" in warned
    assert "model.embed_tokens.weight, model.layers.N.self_attn.q_proj.weight" in warned


@pytest.mark.parametrize("way", ["goes around the adapter", "scales it to nothing"])
def test_adapters_that_are_left_out_of_the_computation_are_named(way: str) -> None:
    model = model_of("qwen3_moe", adapted=True)
    layer = model.model.layers[0].self_attn.q_proj
    if way == "scales it to nothing":
        layer.scaling["default"] = 0.0
    else:
        # As a fused kernel does that takes the weight alone: the adapted layer is not called.
        layer.forward = layer.base_layer.forward
        layer.__class__ = type("Around", (type(layer),), {"__call__": lambda s, x: s.forward(x)})

    _, counted, warned = told(model)

    assert counted.endswith("moved 13 of 14 adapters")
    assert "B330: 2 of 28 tensors" in warned
    assert "q_proj.lora_A" in warned


def test_an_update_that_moves_nothing_stops_the_run() -> None:
    with pytest.raises(PlanError, match="left all 21 tensors"):
        told(model_of("llama"), update=lambda optimizer: None)


def test_a_layer_that_the_model_never_calls_is_named_and_the_run_goes_on() -> None:
    model = model_of("llama")
    model.model.layers[0].unused = nn.Linear(2, 2, bias=False)

    assert told(model)[2].endswith("the first step: model.layers.N.unused.weight")


def test_looking_changes_neither_gradients_nor_random_numbers_nor_modes() -> None:
    model = model_of("llama", adapted=True)
    model.train()
    model.lm_head.eval()
    hidden_states_of(model)(ROWS).sum().backward()
    before = {name: each.grad for name, each in model.named_parameters()}
    copies = {name: None if each is None else each.clone() for name, each in before.items()}
    modes = [each.training for each in model.modules()]
    random = torch.get_rng_state()

    who_sees_whom(model, ROWS)

    assert torch.equal(torch.get_rng_state(), random)
    assert [each.training for each in model.modules()] == modes
    for name, each in model.named_parameters():
        assert each.grad is before[name]
        copy = copies[name]
        assert each.grad is None or (copy is not None and torch.equal(each.grad, copy))


def test_a_run_tells_it_once(
    tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = run_data.build  # type: ignore[attr-defined]

    def with_an_unused_layer(*args: Any, **kwargs: Any) -> Any:
        model = build(*args, **kwargs)
        model.unused = torch.nn.Linear(2, 2, bias=False)
        return model

    monkeypatch.setattr(run_data, "build", with_an_unused_layer)
    train(tiny("training.steps=2"), Console(quiet=True))

    events = [each["message"] for each in records_of(tmp_path / "runs" / "tiny", "event")]
    assert (
        len(
            [
                each
                for each in events
                if each.startswith("checked: the first update moved 20 of 21 tensors; of 3 rows")
            ]
        )
        == 1
    )
    assert [each for each in events if "B330" in each and each.endswith(": unused.weight")]


CPU = torch.device("cpu")


class Work:
    """Gradients of a layer, to the first of which `added[call]` is added."""

    def __init__(self, added: tuple[float, ...]) -> None:
        self.layer, self.added, self.calls = nn.Linear(3, 2), added, 0
        self.parameters = dict(self.layer.named_parameters())

    def gradients(self) -> Tensor:
        self.layer.zero_grad()
        loss = (self.layer(torch.rand(4, 3)) ** 2).sum()  # a draw, as of dropout
        loss.backward()
        assert self.layer.weight.grad is not None
        self.layer.weight.grad[0, 0] += self.added[self.calls]
        self.calls += 1
        return loss.detach()


@pytest.mark.parametrize(("step", "calls"), [(0, 1), (1, 1), (4, 2), (5, 1), (8, 2)])
def test_every_so_many_steps_are_computed_twice_and_the_generator_ends_where_it_would(
    step: int, calls: int
) -> None:
    work, check = Work((0.0,) * 2), ReplayCheck(4, CPU, pytest.fail)
    torch.manual_seed(0)
    work.gradients()
    expected, work.calls = torch.get_rng_state(), 0
    torch.manual_seed(0)
    check.compute(step, work.parameters, work.gradients)
    assert work.calls == calls
    assert torch.equal(torch.get_rng_state(), expected)


def test_without_a_number_of_steps_nothing_is_computed_twice() -> None:
    work = Work((0.0,))
    ReplayCheck(None, CPU, pytest.fail).compute(4, work.parameters, work.gradients)
    assert work.calls == 1


@pytest.mark.parametrize("wrong", [0, 1])
def test_one_computation_of_three_that_differs_is_a_fault(wrong: int, refuses: Refuses) -> None:
    added = [0.0] * 5
    added[2 + wrong] = 1e-3
    work, check = Work(tuple(added)), ReplayCheck(2, CPU, pytest.fail)
    check.compute(2, work.parameters, work.gradients)
    with refuses(TrainingStopped, names=["step 5", "(weight)", "alike is 3"]):
        check.compute(4, work.parameters, work.gradients)


def test_a_device_that_never_gives_the_same_bits_is_told_once_and_left_alone(
    snapshot: SnapshotAssertion,
) -> None:
    said: list[str] = []
    work, check = Work((0.0, 1.0, 2.0, 0.0)), ReplayCheck(2, CPU, said.append)
    check.compute(2, work.parameters, work.gradients)
    check.compute(4, work.parameters, work.gradients)
    assert work.calls == 4
    assert len(said) == 1
    assert said[0] == snapshot
