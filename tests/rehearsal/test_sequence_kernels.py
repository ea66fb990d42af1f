"""Kernels of linear attention and of state-space blocks, by what they keep and allocate."""

import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig

from brimful.planning.family_key import family_keys_of
from brimful.planning.step import StepSpec, canonical
from brimful.rehearsal.models import config_of
from brimful.rehearsal.sequence_kernels import (
    STAND_INS,
    causal_conv1d,
    gated_delta_rule,
    mamba,
    mamba2,
    selective_scan,
    sequence_kernels,
    wkv,
)
from brimful.rehearsal.tracer import record_family
from brimful.rehearsal.training import record_training

ONE_TOKEN = ("_update", "recurrent_")
"""In names of kernels that write a token after another."""
BATCH, LENGTH = 2, 128


def kept_bytes(out: Tensor | tuple[Tensor, ...]) -> int:
    """Bytes that a kernel made and keeps for its backward pass: what it was given left out."""
    node: Any = (out if isinstance(out, Tensor) else out[0]).grad_fn
    while not node.name().startswith("_SequenceKernel"):
        node = node.next_functions[0][0]
    return sum(each.nbytes for each in node.saved_tensors if is_own(each))


def is_own(tensor: Tensor | None) -> bool:
    return tensor is not None and not tensor.requires_grad


def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, requires_grad=True)


def test_every_kernel_that_transformers_asks_for_in_training_has_a_stand_in() -> None:
    asked: set[str] = set()
    for file in (Path(transformers.__file__).parent / "models").glob("*/modeling_*.py"):
        asked |= set(re.findall(r'_from_hub_with_fallback\("(\w+)"', file.read_text("utf-8")))

    in_training = {name for name in asked if not any(word in name for word in ONE_TOKEN)}
    assert in_training | {"rwkv_linear_attention"} == STAND_INS.keys()


def test_the_gated_delta_rule_keeps_64_numbers_for_each_position_and_no_states() -> None:
    """fla/ops/gated_delta_rule/chunk.py: q and k normalised with their factors, summed gates, A."""
    heads, values, width = 2, 4, 32
    positions = BATCH * LENGTH

    out, _ = gated_delta_rule(
        made(BATCH, LENGTH, heads, width),
        made(BATCH, LENGTH, heads, width),
        made(BATCH, LENGTH, values, width),
        g=made(BATCH, LENGTH, values, dtype=torch.float32),
        beta=made(BATCH, LENGTH, values),
        use_qk_l2norm_in_kernel=True,
    )

    normalised = 2 * positions * heads * (2 * width + 4)
    assert out.shape == (BATCH, LENGTH, values, width)
    assert kept_bytes(out) == normalised + positions * values * (4 + 2 * 64)


def test_rwkv_keeps_its_decays_in_fp32_beside_what_it_is_given() -> None:
    width, key = 16, made(BATCH, LENGTH, 16)

    out, _ = wkv(made(width), made(width, dtype=torch.float32), key, made(BATCH, LENGTH, width))

    assert out.shape == key.shape
    assert kept_bytes(out) == 4 * width


def test_the_stand_in_for_rwkv_replaces_a_loop_over_positions() -> None:
    modeling = importlib.import_module("transformers.models.rwkv.modeling_rwkv")

    with sequence_kernels():
        assert modeling.rwkv_linear_attention is wkv
    assert modeling.rwkv_linear_attention is not wkv


def test_a_mamba_2_block_keeps_the_output_of_its_scan() -> None:
    heads, size, state = 4, 16, 8
    inner, channels = heads * size, heads * size + 2 * state
    projected = made(BATCH, LENGTH, inner + channels + heads)

    out = mamba2(
        projected,
        made(channels, 4),
        made(channels),
        *(made(heads, dtype=torch.float32) for _ in range(2)),
        D=made(heads, dtype=torch.float32),
        chunk_size=64,
        rmsnorm_weight=made(inner),
        outproj_weight=made(32, inner),
        headdim=size,
    )

    assert out.shape == (BATCH, LENGTH, 32)
    assert kept_bytes(out) == BATCH * LENGTH * (2 * inner + 4)
    out.sum().backward()
    assert projected.grad is not None


def test_a_mamba_block_computes_its_convolution_again() -> None:
    inner, state, small = 32, 8, 2 + 16
    xz = made(BATCH, 2 * inner, LENGTH)

    out = mamba(
        xz,
        made(inner, 1, 4),
        None,
        made(small, inner),
        made(inner, 2),
        made(24, inner),
        None,
        made(inner, state, dtype=torch.float32),
    )

    of_positions = BATCH * LENGTH * 2 * (small + 2 * state + inner)
    assert kept_bytes(out) == of_positions + BATCH * inner * 2 * state * 4


def test_scan_and_convolution_keep_their_inputs() -> None:
    inputs, weight = made(BATCH, 16, LENGTH), made(16, 4)
    assert kept_bytes(causal_conv1d(inputs, weight, None, activation="silu")) == 0

    state = made(BATCH, 8, LENGTH)
    scanned = selective_scan(inputs, inputs, made(16, 8, dtype=torch.float32), state, state)
    assert isinstance(scanned, Tensor)
    assert kept_bytes(scanned) == BATCH * 16 * 2 * 8 * 4


SIZES = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


SMALL = pytest.mark.parametrize(
    ("model_type", "sizes"),
    [
        (
            "qwen3_5_text",
            {
                "num_key_value_heads": 1,
                "intermediate_size": 64,
                "layer_types": ["linear_attention", "full_attention"],
                "head_dim": 32,
            },
        ),
        ("mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1}),
    ],
)


@SMALL
def test_a_step_with_kernels_takes_fewer_operators_and_less_memory(
    model_type: str, sizes: dict[str, object]
) -> None:
    config = AutoConfig.for_model(model_type, **SIZES | sizes)
    spec = StepSpec(canonical(config.to_dict()), 128, autocast="bf16", attention="eager")

    torch_alone, kernels = (
        record_training(each, config_of(each), 2) for each in (spec, replace(spec, kernels=True))
    )

    assert len(kernels.events_E) < 0.8 * len(torch_alone.events_E)
    assert kernels.sizes_S.sum() < 0.8 * torch_alone.sizes_S.sum()
    assert kernels.parameters == torch_alone.parameters


@SMALL
@pytest.mark.long_but("mamba2-sizes1")
def test_every_length_is_as_a_direct_recording_shows(
    model_type: str, sizes: dict[str, object]
) -> None:
    config = AutoConfig.for_model(model_type, **SIZES | sizes)
    spec = StepSpec(
        canonical(config.to_dict()), 300, autocast="bf16", attention="eager", kernels=True
    )
    family = record_family(family_keys_of(spec)[0])

    for length in (64, 512):
        member = replace(spec, sequence_length=length)
        direct = record_training(member, config_of(member), 3)
        assert family.at(member).at(3).live_E().max() == direct.live_E().max()


def test_transformers_functions_are_its_own_again_afterwards() -> None:
    from transformers.models.mamba2 import modeling_mamba2

    own = modeling_mamba2.mamba2_chunk_scan
    with sequence_kernels():
        assert modeling_mamba2.mamba2_chunk_scan is not own
    assert modeling_mamba2.mamba2_chunk_scan is own
