"""Rounds of rejection sampling as a whole: what their trainings, samples, verdicts and answers to
tasks are expected to take. No torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

from brimful.planning.base_scoring import TASK_EXAMPLES, TOKEN_S, token_seconds
from brimful.planning.kv_cache import (
    BF16_LEAST_WIDTH,
    CPU_ROWS,
    GPU_ROWS,
    LOGITS_BYTES,
    QUICK_CPU_ROWS,
    QUICK_MODEL_TYPES,
    kv_shape,
)
from brimful.planning.plan import Plan, Prediction
from brimful.recipe import Recipe, RftRecipe

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
"""AskedTexts may be written faster or slower than expected by this factor (assumption)."""
VERDICT_S = {"number": (0.0001, 0.0005, 0.005), "program": (0.02, 0.1, 1.0)}
"""Low, expected and high time of a verdict: a number that is read, a program that is run
(assumptions).
"""


@dataclass(frozen=True)
class AskedTexts:
    """Texts that a model is to write.

    Attributes:
        what: Of which question or task.
        count: How many.
        max_new_tokens: Of each.
        verdict: What judges them: a number is read, or a program is run.
    """

    what: str
    count: int
    max_new_tokens: int
    verdict: str = "number"


@dataclass(frozen=True)
class ChainPhase:
    """One part of a chain.

    Attributes:
        name: training, sampling, verifying or task answers.
        time_s: Of all of it, over rounds and seeds; None where it is not known.
        peak_bytes: Memory on the device; None where it is not known.
        about: How often, and of what.
    """

    name: str
    time_s: Prediction | None
    peak_bytes: int | None
    about: str

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def chain_phases(
    recipe: Recipe,
    rft: RftRecipe,
    plan: Plan,
    config: Mapping[str, Any],
    sampled: AskedTexts | None,
    tasks: Sequence[AskedTexts],
) -> list[ChainPhase]:
    """Return the phases of rounds on one device.

    Args:
        recipe: With the trainings' length.
        rft: Its section.
        plan: Of one training.
        config: Of the model that answers, its text model's.
        sampled: What is drawn in one round with one seed; None: not known before the questions are
            read.
        tasks: What every model answers for its scores; those that share answers once.
    """
    seeds = len(rft.seeds)
    trainings = (rft.rounds + 1) * seeds
    drawings = rft.rounds * seeds
    total, memory = plan.predicted.get("total_time_s"), plan.predicted.get("peak_memory_bytes")
    writing = _writing(recipe, plan, config)
    phases = [
        ChainPhase(
            "training",
            None if total is None else _times(total, trainings),
            None if memory is None else round(memory.value),
            f"{trainings} of them: on demonstrations and in {rft.rounds} rounds, seeds: {seeds}",
        )
    ]
    if sampled is None:
        unknown = "not known before the questions are read; rft.questions.max_questions=N says it"
        phases.append(ChainPhase("sampling", None, None, unknown))
    else:
        about = f"{drawings} x {sampled.count:,} answers to {sampled.what}"
        phases += [
            ChainPhase("sampling", *writing(drawings, [sampled]), about),
            ChainPhase("verifying", _verdicts(drawings, [sampled]), None, about),
        ]
    if tasks:
        models = trainings + 1
        count = sum(each.count for each in tasks)
        names = ", ".join(each.what for each in tasks)
        about = f"{models} models, the base among them, x {count:,} answers to {names}"
        phases.append(ChainPhase("task answers", *writing(models, tasks), about))
    return phases


def total_of(phases: Sequence[ChainPhase]) -> Prediction | None:
    """Return the time of all phases; None where one is not known."""
    times = [phase.time_s for phase in phases]
    if any(time is None for time in times):
        return None
    known = [time for time in times if time is not None]
    return Prediction(
        sum(time.value for time in known),
        sum(time.low for time in known),
        sum(time.high for time in known),
        "the phases one after another",
    )


def _writing(
    recipe: Recipe, plan: Plan, config: Mapping[str, Any]
) -> Callable[[int, Sequence[AskedTexts]], tuple[Prediction | None, int]]:
    """Return what predicts the time and the memory of answers, written so many times over."""
    step_time, kind = plan.predicted.get("step_time_s"), str(plan.device.get("kind", "cpu"))
    shape = kv_shape(SimpleNamespace(**config))
    most_rows, element_bytes, copied_bytes = GPU_ROWS, 2, 0
    if kind == "cpu":
        most_rows, element_bytes = CPU_ROWS, 4
        copied_bytes = _copied_bytes(recipe, plan, config)
    weights_bytes = plan.parameters * (element_bytes + copied_bytes)
    token_s = token_seconds(plan)
    if copied_bytes == BF16_BYTES:  # half of the weights' bytes are read
        token_s = TOKEN_S + (token_s - TOKEN_S) * BF16_BYTES / element_bytes
        if config.get("model_type") in QUICK_MODEL_TYPES:
            most_rows, element_bytes = QUICK_CPU_ROWS, BF16_BYTES

    def predict(times: int, answers: Sequence[AskedTexts]) -> tuple[Prediction | None, int]:
        most = max(each.max_new_tokens for each in answers)
        rows = min(most_rows, max(each.count for each in answers))
        reach = min(most + recipe.sequence_length, 2 * recipe.sequence_length)
        per_row = reach * shape.bytes_per_token(element_bytes) + shape.vocabulary * LOGITS_BYTES
        peak_bytes = weights_bytes + rows * per_row
        if step_time is None:
            return None, peak_bytes
        tuned = "full" if recipe.adapter is None else "adapter"
        positions = plan.effective_batch * plan.sequence_length
        position_s = step_time.value / positions * PASSES_OF_TRAINING[tuned]
        seconds = [
            times * sum(_written(each, share, most_rows, token_s, position_s) for each in answers)
            for share in ANSWER_SHARE
        ]
        basis = f"answers of {ANSWER_SHARE[1]:.0%} of the most tokens, {rows} at once"
        low, high = seconds[0] / WRITING_SPREAD, seconds[2] * WRITING_SPREAD
        return Prediction(seconds[1], low, high, basis), peak_bytes

    return predict


def _copied_bytes(recipe: Recipe, plan: Plan, config: Mapping[str, Any]) -> int:
    """Bytes a weight of the copies that a CPU writes texts with: in bf16, or in fp32 where adapters
    are merged into them.
    """
    if plan.precision == "bf16" and config.get("hidden_size", 0) >= BF16_LEAST_WIDTH:
        return BF16_BYTES
    return 0 if recipe.adapter is None else 4


def _written(
    answers: AskedTexts, share: float, most_rows: int, token_s: float, position_s: float
) -> float:
    """Seconds: each step reads the weights once, and computes a position for each of its rows."""
    tokens = answers.count * answers.max_new_tokens * share
    rows = min(most_rows, answers.count)
    return tokens / rows * token_s + tokens * position_s


def _verdicts(times: int, answers: Sequence[AskedTexts]) -> Prediction:
    low, value, high = (
        times * sum(each.count * VERDICT_S[each.verdict][place] for each in answers)
        for place in range(3)
    )
    return Prediction(value, low, high, "beside the sampling, one after another")


def _times(each: Prediction, count: int) -> Prediction:
    return Prediction(each.value * count, each.low * count, each.high * count, f"{count} of them")


def task_examples(known: int | None, limit: int | None) -> int:
    """Return how many questions a task asks, where its data are not read: TASK_EXAMPLES is an
    assumption.
    """
    count = TASK_EXAMPLES if known is None else known
    return count if limit is None else min(count, limit)
