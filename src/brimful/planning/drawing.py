"""Memory of a CPU while the model in training draws answers, tensor by tensor. No torch."""

from dataclasses import dataclass
from types import SimpleNamespace

from brimful.base.types import Json
from brimful.planning.kv_cache import BF16_LEAST_WIDTH, QUICK_MODEL_TYPES, kv_shape

BANK_ROWS, BANK_STEP = 32, 32
"""With quick blocks: most rows of one KV cache (fewer read less of shorter rows, and take more
operations), and the number that its positions are a multiple of.
"""
STORE_STEP = 64
"""Positions of any other KV cache are a multiple of this, and grow by half."""
PROMPTS, QUICK_PROMPT_TOKENS = 16, 512
"""Most prompts that are read in one pass, and most tokens of them with quick blocks."""
BF16, FP32 = 2, 4


@dataclass(frozen=True)
class DrawingMemory:
    """A model in training that draws answers on a CPU.

    Attributes:
        config: Values of its config.
        parameters: Of the model without adapters.
        held_bytes: Weights, adapters and optimizer states.
        weight_bytes: Of one weight of the head.
        in_bf16: Whether products are in bf16.
        has_adapters: Whether adapters are merged into copies.
        in_four_bits: Whether layers in 4 bits compute as they are.
        fill: Products in bf16 have a multiple of so many rows.
    """

    config: Json
    parameters: int
    held_bytes: int
    weight_bytes: int
    in_bf16: bool
    has_adapters: bool
    in_four_bits: bool
    fill: int

    @property
    def _rounds(self) -> bool:
        return self.in_bf16 and int(self.config.get("hidden_size", 0)) >= BF16_LEAST_WIDTH

    @property
    def _is_quick(self) -> bool:
        is_known = self.config.get("model_type") in QUICK_MODEL_TYPES
        return self._rounds and is_known and not self.in_four_bits

    @property
    def _head(self) -> int:
        return int(self.config["vocab_size"]) * int(self.config.get("hidden_size", 0))

    @property
    def copies_bytes(self) -> int:
        """Bytes of the copies of linear layers."""
        apart = 1 if self.config.get("tie_word_embeddings", True) else 2
        layers = 0 if self.in_four_bits else self.parameters - apart * self._head
        if self._rounds:
            return BF16 * (layers + self._head)
        return FP32 * layers * self.has_adapters

    def tensors_bytes(self, rows: int, prompts: int, prompt: int, reach: int) -> int:
        """Return the peak of all tensors. In the first drawing the process tries how its products
        are rounded.

        Args:
            rows: Answers at once.
            prompts: Different questions among them.
            prompt: Tokens of the longest question.
            reach: The same with its longest answer.
        """
        state = self._quick if self._is_quick else self._slow
        read, highest = state(rows, prompts, prompt, reach)
        if self._rounds:
            highest = max(highest, FP32 * self._head)
        return self.held_bytes + self.copies_bytes + read + highest

    def _quick(self, rows: int, prompts: int, prompt: int, reach: int) -> tuple[int, int]:
        """Return what is kept of questions that were read, and the most beside it."""
        shape = kv_shape(SimpleNamespace(**self.config))
        token, read = shape.bytes_per_token(BF16), min(prompts, PROMPTS)
        stored, first = (_filled(each, BANK_STEP) for each in (reach - 1, prompt + 1))
        grown = min(rows, BANK_ROWS) * (stored - BANK_STEP) * token * (stored > first)
        kept = min(read * prompt, max(prompt, QUICK_PROMPT_TOKENS)) * token
        first_logits = BF16 * shape.vocabulary * _filled(read, self.fill)
        logits = shape.vocabulary * (BF16 * _filled(rows, self.fill) + 2 * FP32 * rows)
        return kept, rows * stored * token + first_logits + max(grown, logits)

    def _slow(self, rows: int, prompts: int, prompt: int, reach: int) -> tuple[int, int]:
        """The same of other blocks."""
        shape = kv_shape(SimpleNamespace(**self.config))
        token, read = shape.bytes_per_token(self.weight_bytes), min(prompts, PROMPTS)
        if self._rounds:
            read = 1
        stored = _filled(prompt + 1, STORE_STEP)
        while stored < reach - 1:
            stored = _filled(max(stored + 1, stored * 3 // 2), STORE_STEP)
        first_logits = read * self.weight_bytes * shape.vocabulary
        logits = shape.vocabulary * 2 * FP32 * max(rows, read * read // 2)
        return read * prompt * token, rows * stored * token + first_logits + logits


def _filled(count: int, step: int) -> int:
    """Return the next multiple."""
    return -(-count // step) * step
