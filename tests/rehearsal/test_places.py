import functools

import numpy as np
import pytest
from fixture_types import MakeStep

from brimful.planning.step import Lora, StepSpec
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import GLOBAL
from brimful.rehearsal.models import config_of
from brimful.rehearsal.training import record_training


@functools.cache
def _trace(spec: StepSpec) -> Trace:
    return record_training(spec, config_of(spec), 2)


def _of(trace: Trace, kind: str) -> dict[str, int]:
    """Layer by place of all storages of a kind."""
    members = np.flatnonzero(trace.kinds_S == KINDS.index(kind))
    return {
        trace.places[trace.places_S[storage]]: int(trace.layers_S[storage]) for storage in members
    }


def test_weights_and_gradients_belong_to_their_blocks(step: MakeStep) -> None:
    trace = _trace(step("llama"))

    for kind in ("weights", "gradients"):
        layers = _of(trace, kind)
        assert layers["model.layers.1.mlp.up_proj.weight"] == 1
        assert layers["model.layers.0.self_attn.q_proj.weight"] == 0
        assert layers["lm_head.weight"] == GLOBAL


def test_states_of_the_optimizer_belong_to_their_parameters(step: MakeStep) -> None:
    states = _of(_trace(step("llama")), "optimizer states")

    assert states["model.layers.1.mlp.up_proj.weight exp_avg"] == 1
    assert states["model.norm.weight exp_avg_sq"] == GLOBAL


def test_only_adapters_have_gradients_on_a_frozen_base(step: MakeStep) -> None:
    trace = _trace(step("llama", adapter=Lora(4)))

    assert all("lora_" in place for place in _of(trace, "gradients"))
    assert all("lora_" in place for place in _of(trace, "adapters"))
    assert not [place for place in _of(trace, "weights") if "lora_" in place]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_a_backward_pass_goes_through_the_blocks_from_the_last_to_the_first(
    step: MakeStep, family: str, *, recompute: bool
) -> None:
    trace = _trace(step(family, blocks=4, recompute=recompute, accumulates=False))

    layers = trace.event_layers_E[trace.marks["backward 2"] : trace.marks["optimizer 2"]]
    inside = layers[layers != GLOBAL]
    after_loss = inside[np.flatnonzero(inside == 3)[-1] + 1 :]

    assert inside[np.concatenate([[True], np.diff(inside) != 0])].tolist()[-4:] == [3, 2, 1, 0]
    assert (np.diff(after_loss) <= 0).all()


def test_logits_belong_to_the_loss(step: MakeStep) -> None:
    trace = _trace(step("llama", loss="model"))

    logits = trace.sizes_S == 2 * 64 * 512 * 4

    assert {KINDS[kind] for kind in trace.kinds_S[logits]} == {"loss and logits"}
