"""Texts that a model writes in a job, samples and answers to tasks: how many at once, in how much
memory and how long; and what judging them takes. No torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from brimful.base.errors import PlanError
from brimful.base.types import Json
from brimful.base.units import format_bytes
from brimful.planning.base_scoring import TASK_EXAMPLES, TOKEN_S, token_seconds
from brimful.planning.kv_cache import (
    BF16_LEAST_WIDTH,
    LOGITS_BYTES,
    QUICK_MODEL_TYPES,
    kv_shape,
    room_for_rows,
)
from brimful.planning.plan import Plan, Prediction, Verdict
from brimful.planning.specs import ModelFacts, model_facts
from brimful.recipe import Recipe

BF16_BYTES = 2
ANSWER_SHARE = (0.15, 0.4, 1.0)
"""Low, expected and high mean length of an answer over the most tokens that it may have
(assumption).
"""
PASSES_OF_TRAINING = {"adapter": 1 / 2, "full": 1 / 3}
"""A forward pass over a step of training: with frozen weights there is no product for their
gradients.
"""
WRITING_SPREAD = 3.0
"""Texts may be written faster or slower than expected by this factor (assumption)."""
LONGEST = 2.5
"""The longest of some answers over their mean length (assumption)."""
COPIED_WEIGHT_S = 5e-9
"""Time to copy a weight with adapters merged into it, once for each time that texts are written on
a CPU (an EPYC, 135M parameters: 0.7 s in bf16, 0.4 s in fp32).
"""
VERDICT_S = {"number": (0.00002, 0.0002, 0.005), "program": (0.02, 0.1, 1.0)}
"""Low, expected and high time of a verdict: a number that is read, a program that is run
(assumptions).
"""
VERDICTS_START_S = {"number": (0.0, 0.0, 0.02), "program": (0.05, 0.3, 5.0)}
"""Low, expected and high time to begin judging a set of answers: programs need a sandbox."""
FILLED_ROWS, MATRIX_UNITS, FILLED_BY_UNITS = 16, 4.0, 64
"""Products in bf16 have a multiple of so many rows; of more where matrix units make them quicker
than those in fp32 by this factor (`generation.quick_blocks`).
"""
LEAST_ROOM = 1.1
"""What the weights and one text take, times this, surely leaves room for the activations of its
prompt (assumption).
"""


@dataclass(frozen=True)
class Texts:
    """Texts that a model is to write.

    Attributes:
        what: Question or task that is answered.
        count: How many.
        max_new_tokens: The most tokens of each.
        verdict: What judges them: a number is read, or a program is run.
        at_once: Whether the longest of them decides how many steps they take, and weights are
            copied for them alone.
    """

    what: str
    count: int
    max_new_tokens: int
    verdict: str = "number"
    at_once: bool = False

    def steps(self, share: float, rows: int) -> float:
        """Return the tokens that are written one after another, where answers have so large a share
        of the most tokens on average.
        """
        rounds = share * max(1.0, self.count / rows)
        if self.at_once:
            rounds = max(rounds, min(1.0, LONGEST * share))
        return rounds * self.max_new_tokens

    def written(self, share: float) -> float:
        """Return the tokens of all answers, of so large a share of the most."""
        return share * self.count * self.max_new_tokens

    def filling(self, share: float, rows: int, fill: int) -> float:
        """Return the rows of zeros that products of all steps are filled up with."""
        written, steps = self.written(share), self.steps(share, rows)
        return steps * fill * math.ceil(written / steps / fill) - written if fill > 1 else 0.0


@dataclass(frozen=True)
class TextsWritten:
    """Time and memory that writing texts is predicted to take.

    Attributes:
        time_s: None where the device's rates are not known.
        memory: Memory on each device, while as many texts are written at once as are worth it or
            fit.
        verdict: Whether the weights and one text fit.
        rows: Texts at once.
        row_bytes: Bytes of one text: keys and values at its full length, and logits of a step.
        most_rows: Texts that memory holds at once; 0 where not even one.
        tensors_bytes: Peak of the tensors alone; 0 where they are not counted one by one.
    """

    time_s: Prediction | None
    memory: Prediction
    verdict: Verdict
    rows: int
    row_bytes: int = 0
    most_rows: int = 0
    tensors_bytes: int = 0


@dataclass(frozen=True)
class TextWriter:
    """A model that writes texts where a plan trains.

    Attributes:
        recipe: The recipe of the training.
        plan: The plan of the training, on the same device.
        config: Values of the writer's own config.
        parameters: Parameters of the writer; as a number of its own where another model is trained.
        usable_bytes: Memory of the device.
        is_student: Whether the writer is the trained model, or another one.
        beside_bytes: What training holds beside the weights while texts are written.
    """

    recipe: Recipe
    plan: Plan
    config: Json
    parameters: int
    usable_bytes: int
    is_student: bool = True
    beside_bytes: int = 0

    @property
    def _is_cpu(self) -> bool:
        return bool(self.plan.device.get("kind", "cpu") == "cpu")

    @property
    def fill(self) -> int:
        """Rows of which every product has a multiple."""
        if self._copied_bytes != BF16_BYTES:
            return 1
        rates = self.plan.device.get("dense_flop_per_s", {})
        has_units = rates.get("bf16", 0) > MATRIX_UNITS * rates.get("fp32", math.inf)
        return FILLED_BY_UNITS if has_units else FILLED_ROWS

    @property
    def _element_bytes(self) -> int:
        """Bytes of one weight while texts are written."""
        if self._is_cpu or (self.is_student and self.plan.precision == "fp32"):
            return 4
        return 2

    @property
    def _copied_bytes(self) -> int:
        """Further bytes of one weight, for the copies that a CPU writes texts with: in bf16, or
        in fp32 where adapters are merged into them.
        """
        if not self._is_cpu:
            return 0
        if self.plan.precision == "bf16" and self.config.get("hidden_size", 0) >= BF16_LEAST_WIDTH:
            return BF16_BYTES
        return 4 if self.is_student and self.recipe.adapter is not None else 0

    @property
    def _weights_bytes(self) -> int:
        held = self.plan.memory_terms
        if self.is_student and self.recipe.quantize != "none" and "weights" in held:
            return held["weights"] + held.get("adapters", 0)
        return self.parameters * (self._element_bytes + self._copied_bytes)

    def write(self, times: int, texts: Sequence[Texts]) -> TextsWritten:
        """Return what it takes to write these texts so many times over."""
        is_quick = self._copied_bytes == BF16_BYTES and (
            self.config.get("model_type") in QUICK_MODEL_TYPES
        )
        config = SimpleNamespace(**self.config)
        shape, cached_bytes = kv_shape(config), BF16_BYTES if is_quick else self._element_bytes
        prompt = self.recipe.sequence_length
        reach = min(max(each.max_new_tokens for each in texts) + prompt, 2 * prompt)
        row_bytes = (
            reach * shape.bytes_per_token(cached_bytes)
            + shape.state_bytes(cached_bytes)
            + shape.vocabulary * LOGITS_BYTES
        )
        standing_bytes = self.outside_bytes + self._weights_bytes + self.beside_bytes
        free_bytes = max(0, self.usable_bytes - standing_bytes)
        most, positions = room_for_rows(
            config, cached_bytes, free_bytes, is_cpu=self._is_cpu, is_quick=is_quick
        )
        rows = max(1, min(most, positions // reach, max(each.count for each in texts)))
        least_bytes, peak_bytes = standing_bytes + row_bytes, standing_bytes + rows * row_bytes
        verdict: Verdict = "fits"
        if least_bytes > self.usable_bytes:
            verdict = "does not fit"
        elif LEAST_ROOM * least_bytes > self.usable_bytes:
            verdict = "uncertain"
        basis = f"weights and {rows:,} texts at once; one at a time {format_bytes(least_bytes)}"
        memory = Prediction(
            peak_bytes, least_bytes, max(peak_bytes, LEAST_ROOM * least_bytes), basis
        )
        time_s, held = self._time(times, texts, rows), positions // reach
        return TextsWritten(time_s, memory, verdict, rows, row_bytes, held)

    @property
    def outside_bytes(self) -> int:
        """What the driver needs beside the allocator, as in training."""
        predicted = self.plan.predicted
        if "device_memory_bytes" not in predicted:
            return 0
        outside = predicted["device_memory_bytes"].value - predicted["peak_memory_bytes"].value
        return max(0, round(outside))

    def _time(self, times: int, texts: Sequence[Texts], rows: int) -> Prediction | None:
        """Each step reads the weights once, and computes a position for each of its rows, in the
        time that one more takes in training; rows that fill up products take these alone. Devices
        that train together share the texts.
        """
        plan, step_time = self.plan, self.plan.predicted.get("step_time_s")
        if step_time is None:
            return None
        read_bytes = None if self.is_student and plan.devices == 1 else self._weights_bytes
        token_s = token_seconds(plan, read_bytes)
        if self._copied_bytes == BF16_BYTES and read_bytes is None:  # half of the weights' bytes
            token_s = TOKEN_S + (token_s - TOKEN_S) / 2
        tuned = "full" if self.recipe.adapter is None else "adapter"
        positions: float = plan.effective_batch * plan.sequence_length
        if "tokens_per_s" in plan.predicted:  # examples may be shorter than the rows
            positions = plan.predicted["tokens_per_s"].value * step_time.value
        growing_s = (1 - plan.fixed_share) * step_time.value
        position_s = growing_s / positions * PASSES_OF_TRAINING[tuned]
        position_s *= self.parameters / plan.parameters
        rate = plan.device.get("dense_flop_per_s", {}).get("bf16", math.inf)
        filled_s = 2 * self.parameters / rate
        copied_s = COPIED_WEIGHT_S * self.parameters if self._copied_bytes else 0.0
        low, value, high = (
            times
            * sum(
                each.steps(share, rows) * token_s / plan.devices
                + each.written(share) * position_s
                + each.filling(share, rows, self.fill) * filled_s
                + each.at_once * copied_s
                for each in texts
            )
            for share in ANSWER_SHARE
        )
        basis = f"answers of {ANSWER_SHARE[1]:.0%} of the most tokens, {rows} at once"
        return Prediction(value, low / WRITING_SPREAD, high * WRITING_SPREAD, basis)


def writer_of(
    recipe: Recipe, plan: Plan, usable_bytes: int, teacher: str | None = None
) -> TextWriter:
    """Return the model that a recipe tunes, or another one, as it writes where a plan trains.

    Raises:
        PlanError: no such model, or nobody knows its size.
    """
    own = recipe
    if teacher is not None:
        changes = {"model": teacher, "adapter": None, "quantize": "none"}
        own = recipe.model_copy(update=changes)
    facts: ModelFacts = model_facts(own)
    config = dict(facts.config)
    text_config = config.get("text_config")
    if isinstance(text_config, dict):
        config |= text_config
    parameters = plan.parameters if teacher is None else facts.parameters
    if parameters is None:
        raise PlanError(f"the size of {own.model} is not in the catalog")
    return TextWriter(recipe, plan, config, parameters, usable_bytes, teacher is None)


def verdicts_time(times: int, texts: Texts) -> Prediction:
    """Return the time of judging texts, so many times over."""
    each_and_start = zip(VERDICT_S[texts.verdict], VERDICTS_START_S[texts.verdict], strict=True)
    low, value, high = (times * (texts.count * each + start) for each, start in each_and_start)
    return Prediction(value, low, high, "beside the sampling, one after another")


def task_examples(known: int | None, limit: int | None) -> int:
    """Return how many questions a task asks, where its data are not read: TASK_EXAMPLES is an
    assumption.
    """
    count = TASK_EXAMPLES if known is None else known
    return count if limit is None else min(count, limit)
