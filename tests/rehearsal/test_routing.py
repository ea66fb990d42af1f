"""Experts that are called for their own tokens, on tensors without values."""

import dataclasses
from typing import Any

import pytest
import torch
from fixture_types import MakeStep
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import CONFIG_MAPPING

from brimful.base.errors import PlanError
from brimful.planning.step import Lora, StepSpec, canonical
from brimful.rehearsal.models import config_of
from brimful.rehearsal.real_models import real_model
from brimful.rehearsal.routing import even_routing
from brimful.rehearsal.tracer import _record
from brimful.rehearsal.training import record_training
from measured_steps import measure_steps

EXPERTS = 4
SIZES = {"vocab_size": 512, "num_hidden_layers": 2}
CALLED_FOR_THEIR_TOKENS: dict[str, dict[str, Any]] = {
    "dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 2,
        "vocab_size": 512,
        "attn_config": {"rope_theta": 5e5, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": EXPERTS, "moe_top_k": 2},
    },
    "jetmoe": {
        "hidden_size": 64,
        "num_key_value_heads": 2,
        "kv_channels": 16,
        "intermediate_size": 96,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        **SIZES,
    },
    "longcat_flash": {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "head_dim": 16,
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 32,
        "n_routed_experts": EXPERTS,
        "zero_expert_num": 2,
        "moe_topk": 2,
        "vocab_size": 512,
        "num_layers": 1,
    },
}
MULTIPLIED_BY_GROUPS = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_intermediate_size": 32,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    **SIZES,
}


def step_of(step: MakeStep, model_type: str, values: dict[str, Any], **changes: Any) -> StepSpec:
    config = CONFIG_MAPPING[model_type](**values)
    spec = step("llama", weights="fp32", attention="eager", **changes)
    return dataclasses.replace(spec, config_json=canonical(config.to_dict()))


def peaks_of(spec: StepSpec) -> tuple[int, int]:
    recorded = record_training(spec, config_of(spec), 2)
    measured = measure_steps(real_model(spec, config_of(spec)), spec, 2)
    return int(recorded.live_E().max()), int(measured.live_E().max())


@pytest.mark.parametrize("model_type", sorted(CALLED_FOR_THEIR_TOKENS))
def test_experts_that_share_tokens_evenly_peak_as_a_real_step_does(
    step: MakeStep, model_type: str
) -> None:
    """The real ones share them unevenly: only what one expert alone holds differs."""
    spec = step_of(step, model_type, CALLED_FOR_THEIR_TOKENS[model_type], adapter=Lora(4))

    recorded, measured = peaks_of(spec)

    assert recorded == pytest.approx(measured, rel=0.03)


def test_experts_in_fp32_are_multiplied_by_groups(step: MakeStep) -> None:
    recorded, measured = peaks_of(step_of(step, "qwen3_moe", MULTIPLIED_BY_GROUPS))

    assert recorded == pytest.approx(measured, abs=64)


def test_a_model_that_asks_what_it_cannot_know_is_refused(step: MakeStep) -> None:
    """Longformer asks whether a position attends to all others; no answer had stood for False."""
    values = {"attention_window": 16, "hidden_size": 64, "num_attention_heads": 4, **SIZES}
    spec = step_of(step, "longformer", values)
    classify = dataclasses.replace(
        spec, method="classify", options_json='{"labels": 2}', padded=True
    )

    with pytest.raises(PlanError, match="depends on the values"):
        _record(classify, config_of(classify), 2, (2, 1))


def test_nothing_is_answered_for_models_without_experts() -> None:
    with FakeTensorMode() as fake, even_routing({"hidden_size": 4}):
        flags = fake.from_tensor(torch.ones(EXPERTS))
        with pytest.raises(RuntimeError):
            flags.nonzero()


def test_known_values_are_read_as_they_are() -> None:
    with even_routing({"num_experts": 2}):
        assert torch.tensor([False, True]).nonzero().tolist() == [[1]]
        assert [len(part) for part in torch.arange(6).split([5, 1])] == [5, 1]
