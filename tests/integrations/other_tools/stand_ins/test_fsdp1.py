"""A step of transformers' Trainer with a model in parts, by torch's older wrapper, recorded on one
rank: nothing is sent, and what each rank holds follows from the weights.
"""

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig

from brimful.base.types import JsonDict
from brimful.integrations.other_tools.stand_ins import ForeignStep, LossChain, TrainerQuirks
from brimful.planning.step import Lora, canonical
from brimful.planning.trace import KINDS, Trace, same_events
from brimful.rehearsal import training
from brimful.rehearsal.models import config_of
from brimful.rehearsal.recorder import Recorder
from brimful.rehearsal.training import record_training

BLOCKS, WIDTH, TOKENS = 3, 32, 64
SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": 2}
CONFIG = LlamaConfig(vocab_size=64, intermediate_size=64, num_key_value_heads=1, **SHAPE)


def _step(**changes: Any) -> Trace:
    values: JsonDict = {
        "sequence_length": TOKENS,
        "weights": "bf16",
        "optimizer": "foreach",
        "accumulates": False,
        "recompute": True,
        "chain": LossChain(),
        "quirks": TrainerQuirks(reentrant=True),
        "ranks": 2,
        "sharding": "fsdp1",
    }
    spec = ForeignStep(config_json=canonical(CONFIG.to_dict()), **values | changes)
    return record_training(spec, config_of(spec), 1)


def _bytes_of(trace: Trace, kind: str) -> int:
    return int(trace.sizes_S[trace.kinds_S == KINDS.index(kind)].sum())


def _alive(trace: Trace, event: int) -> np.ndarray:
    events_E = trace.events_E[:event]
    alive: set[int] = set()
    for each in events_E.tolist():
        (alive.add if each > 0 else alive.discard)(abs(each) - 1)
    return np.array(sorted(alive))


def test_each_rank_holds_its_part_of_weights_and_states() -> None:
    trace = _step()

    part = trace.parameters / 2
    alive_S = _alive(trace, trace.marks["inputs 2"])
    states_S = alive_S[trace.kinds_S[alive_S] == KINDS.index("optimizer states")]
    assert _bytes_of(trace, "weights") == pytest.approx(2 * part, rel=0.05)
    assert trace.sizes_S[states_S].sum() == pytest.approx(4 * part, rel=0.05)


def test_gradients_between_frozen_blocks_are_kept_until_the_backward_pass_ends() -> None:
    def kept(**changes: Any) -> int:
        trace = _step(adapter=Lora(2, "q_proj,v_proj", 0.0, "bf16"), **changes)
        births_E = np.flatnonzero(trace.events_E[: trace.marks["optimizer"]] > 0)
        alive_S = _alive(trace, int(births_E[-1]))
        made = f"layers.{BLOCKS - 1} backward"
        return sum(made in trace.places[trace.places_S[storage]] for storage in alive_S)

    assert kept() > kept(ranks=1)


def test_a_recording_with_the_quick_recorder_is_that_of_the_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = _step(adapter=Lora(2, "q_proj,v_proj", 0.0, "bf16"))
    monkeypatch.setattr(training, "QuickRecorder", Recorder)
    plain = _step(adapter=Lora(2, "q_proj,v_proj", 0.0, "bf16"))

    assert same_events(quick, plain)
    assert np.array_equal(quick.sizes_S, plain.sizes_S)
    assert np.array_equal(quick.kinds_S, plain.kinds_S)


def test_what_is_gathered_lies_in_a_pool_of_its_own() -> None:
    assert _bytes_of(_step(), "communication buffers") > 0
    assert _bytes_of(_step(ranks=1), "communication buffers") == 0
