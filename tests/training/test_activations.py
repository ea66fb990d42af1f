"""Selective recomputation: the same numbers, and no expensive operator computed twice."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
)

from brimful.base.types import JsonDict
from brimful.planning.offload import offloaded_bytes
from brimful.planning.step import Recompute, StepSpec, canonical
from brimful.runs.folder import read_run
from brimful.training.activations import (
    HostMemory,
    KeptOutputs,
    as_one_operator,
    is_expensive,
    offload_activations,
    recompute_activations,
)

aten = torch.ops.aten


class _Calls(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.of[str(func.__name__).partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def configs(llama_values: JsonDict) -> dict[str, PretrainedConfig]:
    values = {**llama_values, "num_hidden_layers": 3}
    bert = {
        name: values[name]
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
    }
    return {
        "llama": LlamaConfig(**values),
        "gemma2": Gemma2Config(**values, head_dim=16),
        "mixtral": MixtralConfig(**values, num_local_experts=4, sliding_window=None),
        "gpt2": GPT2Config(
            vocab_size=values["vocab_size"], n_embd=64, n_layer=3, n_head=4, n_positions=64
        ),
        "bert": BertConfig(**bert, num_hidden_layers=3),
    }


def _model(config: PretrainedConfig, how: Recompute) -> Any:
    torch.manual_seed(0)
    is_encoder = config.model_type == "bert"
    kind = AutoModelForSequenceClassification if is_encoder else AutoModelForCausalLM
    model = kind.from_config(config).train()
    if how:
        recompute_activations(model, how)
    return model


def _gradients(model: Any, *, bf16: bool = False) -> tuple[dict[str, Tensor], Counter[str]]:
    """Return the gradients of two passes, and the operators of the second one."""
    classifies = model.config.model_type == "bert"
    for seed in (1, 2):
        torch.manual_seed(seed)
        tokens = torch.randint(0, 512, (2, 32))
        labels = torch.tensor([0, 1]) if classifies else tokens
        others = {} if classifies else {"use_cache": False}
        with _Calls() as calls:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(input_ids=tokens, labels=labels, **others).loss
            loss.backward()
    return {name: each.grad.clone() for name, each in model.named_parameters()}, calls.of


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16 autocast"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "gpt2", "bert"])
def test_gradients_are_those_without_it_bit_for_bit(
    configs: dict[str, PretrainedConfig], family: str, *, bf16: bool
) -> None:
    expected, once = _gradients(_model(configs[family], False), bf16=bf16)
    whole, twice = _gradients(_model(configs[family], True), bf16=bf16)
    found, calls = _gradients(_model(configs[family], "selective"), bf16=bf16)

    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert all(torch.equal(expected[name], whole[name]) for name in expected)
    products = ["mm", "addmm", "_scaled_dot_product_flash_attention_for_cpu"]
    narrow = 3 if family == "mixtral" else 0  # choosing experts
    assert sum(calls[name] for name in products) == sum(once[name] for name in products) + narrow
    assert sum(twice[name] for name in products) > sum(once[name] for name in products)
    cheap = "silu" if once["silu"] else "add"
    assert once[cheap] < calls[cheap] <= twice[cheap]


def test_the_last_product_of_a_block_is_kept_only_where_it_is_asked_for(
    configs: dict[str, PretrainedConfig],
) -> None:
    needed = {}
    for family in ("llama", "gpt2", "bert"):
        model, kept = _model(configs[family], False), KeptOutputs()
        model.activation_checkpointing_enable({"use_reentrant": False, "context_fn": kept})
        _gradients(model)
        needed[family] = kept.last_is_needed

    # Dropout and a norm keep what they read of it.
    assert needed == {"llama": False, "gpt2": True, "bert": True}


def test_an_adapters_products_are_computed_again(configs: dict[str, PretrainedConfig]) -> None:
    wide, low, high = torch.empty(64, 64), torch.empty(64, 4), torch.empty(4, 64)

    assert is_expensive(aten.mm.default, (wide, wide), {})
    assert is_expensive(aten.addmm.default, (torch.empty(64), wide, wide), {})
    assert not is_expensive(aten.mm.default, (wide, low), {})
    assert not is_expensive(aten.mm.default, (low, high), {})
    assert not is_expensive(aten.bmm.default, (wide[None], wide[None]), {})


def test_attention_with_dropout_is_computed_again() -> None:
    kernel, heads = aten._scaled_dot_product_flash_attention.default, (torch.empty(1, 2, 8, 16),)

    assert is_expensive(kernel, 3 * heads, {})
    assert is_expensive(kernel, (*(3 * heads), 0.0, True), {})
    assert not is_expensive(kernel, (*(3 * heads), 0.1, True), {})
    assert not is_expensive(kernel, 3 * heads, {"dropout_p": 0.1})


class _InPlace(nn.Module):
    """A block that changes what a product returned."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.sin(self.first(x).mul_(2)))


def _checkpointed(
    block: nn.Module, contexts: Callable[[], Any] | None, passes: int = 1, *, bf16: bool = False
) -> list[Tensor | None]:
    torch.manual_seed(0)
    x = torch.randn(4, 16, requires_grad=True)
    block.zero_grad()
    options = {} if contexts is None else {"context_fn": contexts}
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        hidden = x
        for _ in range(passes):
            if contexts is None:
                hidden = block(hidden)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=False, **options)
    hidden.float().sum().backward()
    return [x.grad, *(each.grad for each in block.parameters())]


def _are_equal(found: list[Tensor | None], expected: list[Tensor | None]) -> bool:
    return all(
        one is not None and other is not None and torch.equal(one, other)
        for one, other in zip(found, expected, strict=True)
    )


def test_what_is_changed_in_place_is_computed_again() -> None:
    torch.manual_seed(0)
    block = _InPlace()

    assert _are_equal(_checkpointed(block, KeptOutputs()), _checkpointed(block, None))


def test_blocks_that_share_weights_work_under_autocast() -> None:
    """Autocast converts a shared weight once in the first pass and for each block in the second.
    torch's own contexts do not find these operators again.
    """
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU())
    twice = partial(_checkpointed, block, passes=2, bf16=True)
    theirs = partial(create_selective_checkpoint_contexts, [aten.mm.default, aten.addmm.default])

    assert _are_equal(twice(contexts=KeptOutputs()), twice(contexts=None))
    with pytest.raises(RuntimeError, match="not found in storage"):
        twice(contexts=theirs)


@pytest.mark.parametrize("weight", [(16, 16), (16, 1), ()], ids=["wide", "narrow", "attention"])
def test_several_operators_can_stand_for_one(weight: tuple[int, ...]) -> None:
    calls = []

    def run(first: Tensor) -> Tensor:
        def compute() -> Tensor:
            calls.append(1)
            return torch.empty(4, 16)

        made = as_one_operator(compute, weight)
        return (first * made).exp() @ torch.ones(16, 16)

    x = torch.randn(4, 16, requires_grad=True)
    checkpoint(run, x, use_reentrant=False, context_fn=KeptOutputs()).sum().backward()

    assert len(calls) == (2 if weight == (16, 1) else 1)
    assert as_one_operator(lambda: 7) == 7


KINDS = {
    "classifier": ("labels_recipe_file", ("training={steps: 6}",)),
    "feedback": ("recipe_file", ("method=feedback",)),
}


@pytest.mark.parametrize("encoder", ["bert"], indirect=True)
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.long_but("classifier-bert")
def test_a_run_with_it_has_the_losses_of_one_without(
    request: pytest.FixtureRequest,
    said: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    encoder: Path,
    kind: str,
) -> None:
    fixture, changes = KINDS[kind]
    recipe = str(request.getfixturevalue(fixture))
    for name, how in (("plain", "false"), ("whole", "true"), ("selective", "selective")):
        options = (f"run.name={name}", f"plan.recompute={how}", "plan.micro_batch=2", *changes)
        code, _, err = said("train", recipe, *options)
        assert code == 0, err

    plain, whole, selective = (
        read_run(tmp_path / "runs" / name) for name in ("plain", "whole", "selective")
    )

    assert selective.plan is not None
    assert (selective.plan.recompute, selective.plan.compile) == ("selective", False)
    for run in (whole, selective):
        assert [step.loss for step in run.steps] == [step.loss for step in plain.steps]
        assert [step.grad_norm for step in run.steps] == [step.grad_norm for step in plain.steps]


class _Watched(HostMemory):
    """The host's memory, which notes what came to it."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.came: list[weakref.ref[Tensor]] = []

    def away(self, tensor: Tensor) -> Any:
        self.num_bytes += tensor.nbytes
        self.came.append(weakref.ref(tensor))
        return super().away(tensor)


def _llama(values: JsonDict, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(**{**values, "num_hidden_layers": 3})
    return AutoModelForCausalLM.from_config(config).to(dtype).train()


def _gradients_of_loss(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    return {name: each.grad.clone() for name, each in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_an_offloaded_model_are_those_without_it_bit_for_bit(
    llama_values: JsonDict, dtype: torch.dtype
) -> None:
    tokens = torch.randint(0, 512, (2, 32))
    plain, offloaded = _llama(llama_values, dtype), _llama(llama_values, dtype)
    for model in (plain, offloaded):
        recompute_activations(model)
    elsewhere = _Watched()

    assert offload_activations(offloaded, elsewhere) >= 3
    expected, found = _gradients_of_loss(plain, tokens), _gradients_of_loss(offloaded, tokens)

    assert all(torch.equal(expected[name], found[name]) for name in expected)
    spec = StepSpec(
        canonical({**llama_values, "num_hidden_layers": 3}),
        32,
        weights="fp32" if dtype == torch.float32 else "bf16",
        recompute=True,
        offload=True,
    )
    assert elsewhere.num_bytes == offloaded_bytes(spec, 2)


def test_inputs_of_blocks_end_with_the_forward_pass(llama_values: JsonDict) -> None:
    model, elsewhere = _llama(llama_values), _Watched()
    recompute_activations(model)
    offload_activations(model, elsewhere)

    tokens = torch.randint(0, 512, (2, 32))
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    gc.collect()

    assert len(elsewhere.came) == 3
    assert all(each() is None for each in elsewhere.came)
    loss.backward()
    assert all(each.grad is not None for each in model.parameters())


def test_without_checkpointed_layers_nothing_is_offloaded() -> None:
    assert offload_activations(torch.nn.Linear(2, 2), HostMemory()) == 0


def test_a_run_with_it_has_the_losses_of_one_that_recomputes(
    said: Callable[..., tuple[int, str, str]], recipe_file: Any, tmp_path: Any
) -> None:
    from brimful.runs.folder import read_run

    for name, change in (("plain", "plan.recompute=true"), ("away", "plan.offload=activations")):
        code, _, err = said("train", str(recipe_file), f"run.name={name}", change)
        assert code == 0, err

    plain, away = (read_run(tmp_path / "runs" / name) for name in ("plain", "away"))

    assert away.plan is not None
    assert (away.plan.offload, away.plan.recompute, away.plan.compile) == (True, True, False)
    assert [step.loss for step in away.steps] == [step.loss for step in plain.steps]
    assert [step.grad_norm for step in away.steps] == [step.grad_norm for step in plain.steps]
