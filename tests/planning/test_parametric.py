import dataclasses
from typing import Any

import numpy as np
import pytest
from fixture_types import Refuses
from transformers import GPT2Config, LlamaConfig, PretrainedConfig

from brimful.base.types import JsonDict
from brimful.planning.block_rows import ALIKE, BlockRows, Irregular
from brimful.planning.parametric import equal, stretch
from brimful.planning.step import EVALUATION_FACTOR, Lora, StepSpec, canonical
from brimful.planning.trace import Trace
from brimful.planning.work import GLOBAL
from brimful.rehearsal.models import config_of, with_layers
from brimful.rehearsal.training import record_training

LLAMA = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=9,
    num_attention_heads=4,
    num_key_value_heads=2,
)
GPT2 = GPT2Config(vocab_size=512, n_embd=64, n_layer=9, n_head=4, n_positions=128)
BLOCK_BYTES, WHOLE_BYTES = 100, 7


def _by_hand(blocks: int, *, odd: int | None = None) -> Trace:
    """Every block makes a tensor going forward and ends it coming back; `odd` is a block whose
    tensor is larger.
    """
    forward, backward = [*range(1, blocks + 2)], [*range(-(blocks + 1), 0)]
    sizes = [WHOLE_BYTES, *(BLOCK_BYTES + (index == odd) for index in range(blocks))]
    layers = np.array([GLOBAL, *range(blocks)], np.int32)
    events = np.array(forward + backward, np.int32)
    return Trace(
        events_E=events,
        event_layers_E=layers[np.abs(events) - 1],
        sizes_S=np.array(sizes, np.int64),
        kinds_S=np.zeros(blocks + 1, np.int32),
        places_S=np.arange(blocks + 1, dtype=np.int32),
        layers_S=layers,
        places=("head", *(f"body.h.{index} mm" for index in range(blocks))),
        blocks="body.h",
        marks={"forward": 0, "backward": blocks + 1},
    )


def _rows(few: int, every: int) -> BlockRows:
    return BlockRows(ALIKE * few, ALIKE * every)


def _recorded(
    config: PretrainedConfig,
    blocks: int,
    micro_batch: int = 2,
    evaluation_factor: int = EVALUATION_FACTOR,
    **changes: Any,
) -> Trace:
    spec = StepSpec(
        canonical(config.to_dict()),
        32,
        **({"cuda": False, "loss_chunk": 64, "accumulates": False} | changes),
    )
    return record_training(
        spec, with_layers(config_of(spec), range(blocks)), micro_batch, evaluation_factor
    )


@pytest.mark.parametrize("example", [4, 5])
def test_a_trace_by_hand_is_stretched_to_what_it_would_be(example: int) -> None:
    stretched, origin_S = stretch(_by_hand(example), _rows(example, 12))

    assert np.array_equal(stretched.sizes_S, _by_hand(example).sizes_S[origin_S])
    assert equal(stretched, _by_hand(12))
    assert int(stretched.live_E().max()) == 12 * BLOCK_BYTES + WHOLE_BYTES
    assert set(stretched.places) == set(_by_hand(12).places)
    assert dict(stretched.marks) == {"forward": 0, "backward": 13}


def test_blocks_that_differ_are_refused(refuses: Refuses) -> None:
    with refuses(Irregular):
        stretch(_by_hand(4, odd=2), _rows(4, 12))


def test_too_few_blocks_are_no_example(refuses: Refuses) -> None:
    rows = _rows(3, 12)

    with refuses(Irregular, names=[rows.few, rows.all]):
        stretch(_by_hand(3), rows)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (LLAMA, {"autocast": "bf16"}),
        (
            LLAMA,
            {
                "adapter": Lora(4, "q_proj,v_proj"),
                "quantize": "nf4",
                "weights": "bf16",
                "recompute": True,
                "cuda": True,
            },
        ),
        (GPT2, {"loss": "model", "optimizer": "foreach"}),
    ],
    ids=["llama", "llama, QLoRA, recomputed, CUDA", "gpt2, foreach"],
)
@pytest.mark.long_but("gpt2, foreach")
def test_a_stretched_trace_equals_the_direct_one(
    config: PretrainedConfig, changes: JsonDict
) -> None:
    short, longer, direct = (_recorded(config, blocks, **changes) for blocks in (4, 5, 7))
    outside, longer_outside = (trace.sizes_S[trace.layers_S == GLOBAL] for trace in (short, longer))

    stretched, _ = stretch(short, _rows(4, 7))
    sizes_S = stretched.sizes_S.copy()
    sizes_S[stretched.layers_S == GLOBAL] += 3 * (longer_outside - outside)

    assert equal(dataclasses.replace(stretched, sizes_S=sizes_S), direct)


def test_traces_that_differ_in_a_size_or_a_birth_are_not_equal() -> None:
    one = _by_hand(4)
    larger = dataclasses.replace(
        one, sizes_S=np.where(np.arange(len(one.sizes_S)) == 1, one.sizes_S + 1, one.sizes_S)
    )

    assert equal(one, one)
    assert not equal(one, larger)
    assert not equal(one, _by_hand(5))
