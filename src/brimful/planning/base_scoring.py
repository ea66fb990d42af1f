"""What a tuning run finds out about the model as it was before tuning: held-out loss, samples and
tasks, as far as they take at most a tenth of the run. No torch.
"""

from dataclasses import dataclass, replace

from brimful.base.units import format_duration
from brimful.planning.plan import BaseScoring, Choice, Plan, Prediction, Predictions
from brimful.planning.spacing import MOST_SHARE, Durations
from brimful.recipe import Recipe

BASE = "base"
"""Name of the plan's choice that says which scores of the base model are made, and which not."""
SAMPLE_TOKENS = 64
"""Of an answer that is shown beside the other model's, at most."""
FEWEST_SEQUENCES = 4
"""A loss over fewer validation sequences than this would say nothing."""
LOSS_OR_SAMPLES = 1 / 2
"""Most of the time for the base that samples may take."""
TASK_EXAMPLES, TASK_TOKENS, TASK_ROWS = 200, 256, 16
"""Of a task: examples where the recipe does not limit them, tokens of an answer, and answers that
are written at once (assumptions).
"""
TOKEN_S = 0.01
"""What a token takes beside reading the weights: the program that issues its operators, and the
attention (assumption).
"""
BYTES_PER_S = {"cpu": 10e9, "mps": 100e9, "cuda": 300e9}
"""Rate at which a token's pass reads the weights where the device's bandwidth is unknown."""
BANDWIDTH_SHARE = 0.6
ANSWERS_SPREAD = 4.0
"""Answers may take longer or shorter by this factor (assumption)."""


@dataclass(frozen=True)
class BaseTimes:
    """Expected seconds.

    Attributes:
        run_s: Time of the run without what is decided here.
        evaluation_s: Time of one evaluation, on `sequences` validation sequences.
        samples_s: Time for the base's samples.
        tasks_s: Time for the base's answers to the recipe's tasks; None without tasks.
    """

    run_s: float
    evaluation_s: float
    sequences: float
    samples_s: float
    tasks_s: float | None


def decide(mode: str, times: BaseTimes) -> BaseScoring:
    """Return what is found out about the base.

    `auto` takes what fits into MOST_SHARE of the run: samples, then the loss, over fewer sequences
    where not all fit, then tasks.
    """
    if mode != "auto":
        is_wanted = mode == "always"
        return BaseScoring(float(is_wanted), is_wanted, is_wanted and times.tasks_s is not None)
    room_s = MOST_SHARE * times.run_s
    samples = times.samples_s <= LOSS_OR_SAMPLES * room_s
    room_s -= times.samples_s * samples
    share = _loss_share(room_s, times)
    room_s -= loss_seconds(share, times.evaluation_s)
    tasks = times.tasks_s is not None and share > 0 and times.tasks_s <= room_s
    return BaseScoring(share, samples, tasks)


def _loss_share(room_s: float, times: BaseTimes) -> float:
    if times.evaluation_s <= room_s:
        return 1.0
    # Of fewer sequences than usual the tuned model has to be scored as well.
    share = int(100 * room_s / (2 * times.evaluation_s)) / 100
    return share if share * times.sequences >= FEWEST_SEQUENCES else 0.0


def loss_seconds(share: float, evaluation_s: float) -> float:
    """Return the time for the loss of the base, and of the tuned model where it is scored anew."""
    return evaluation_s * share * (1 if share in (0, 1) else 2)


def token_seconds(plan: Plan, weights_bytes: int | None = None) -> float:
    """Return the expected time in which a model writes one token of a few answers; None: the
    trained model, else one of so many bytes.
    """
    known = plan.device.get("bandwidth_bytes_per_s")
    kind = str(plan.device.get("kind", "cpu"))
    rate = BANDWIDTH_SHARE * float(known) if known else BYTES_PER_S.get(kind, BYTES_PER_S["cpu"])
    if weights_bytes is None:
        weights_bytes = plan.memory_terms.get("weights", 0)
    return TOKEN_S + weights_bytes / rate


def times_of(recipe: Recipe, plan: Plan, parts: Durations, sequences: float) -> BaseTimes:
    """Return what the base's loss, samples and tasks are expected to take.

    Args:
        recipe: Names the tasks.
        plan: The plan of the device, with the bytes of the weights.
        parts: The parts of the run.
        sequences: Sequences of one evaluation.
    """
    token_s, tasks = token_seconds(plan), recipe.evaluation.tasks
    passes = -(-min(recipe.evaluation.max_examples or TASK_EXAMPLES, TASK_EXAMPLES) // TASK_ROWS)
    tasks_s = len(tasks) * passes * TASK_TOKENS * token_s
    return BaseTimes(
        run_s=parts.training_s + parts.start_s,
        evaluation_s=parts.evaluation_s,
        sequences=sequences,
        samples_s=min(SAMPLE_TOKENS, recipe.sample.tokens) * token_s,
        tasks_s=tasks_s if tasks else None,
    )


def with_base(recipe: Recipe, plan: Plan, times: BaseTimes | None) -> Plan:
    """Return the plan of a tuning run with what is found out about the base, and the reason.

    Args:
        recipe: Says whether that is wanted.
        plan: The plan of the run; what it has decided stands, because the run goes on by it.
        times: Expected; None where no time is predicted: then `auto` leaves nothing out.
    """
    choices = tuple(choice for choice in plan.choices if choice.name != BASE)
    if not recipe.tunes_a_writer:
        return replace(plan, base=None, choices=choices)
    mode, has_tasks = recipe.evaluation.base, bool(recipe.evaluation.tasks)
    base = plan.base
    if base is None and times is not None:
        base = decide(mode, times)
    elif base is None:
        is_wanted = mode != "never"
        base = BaseScoring(float(is_wanted), is_wanted, is_wanted and has_tasks)
    if mode != "never":
        reason = _reason(base, has_tasks, times)
        choices += (Choice(BASE, ", ".join(_parts(base)) or "none", reason),)
    return replace(plan, base=base, choices=choices)


def _parts(base: BaseScoring) -> list[str]:
    found = {"loss": base.loss_share > 0, "samples": base.samples, "tasks": base.tasks}
    return [name for name, is_there in found.items() if is_there]


def missing_parts(base: BaseScoring, *, has_tasks: bool) -> list[str]:
    """Return what is not found out about the base, of loss, samples and the recipe's tasks."""
    wanted = ["loss", "samples", *(["tasks"] if has_tasks else [])]
    return [name for name in wanted if name not in _parts(base)]


def _reason(base: BaseScoring, has_tasks: bool, times: BaseTimes | None) -> str:
    """Say what is compared, and what is left out because it would take too long."""
    reason = "of the model before tuning, beside the tuned one"
    if 0 < base.loss_share < 1:
        reason += f"; the loss on {base.loss_share:.0%} of the validation sequences"
    missing = missing_parts(base, has_tasks=has_tasks)
    if not missing or times is None:
        return f"{reason}; evaluation.base=never leaves it out"
    takes = {"loss": times.evaluation_s, "samples": times.samples_s, "tasks": times.tasks_s or 0.0}
    told = ", ".join(f"{name} ({format_duration(takes[name])})" for name in missing)
    return (
        f"{reason}; left out, because it would take the rest above a tenth of the run: {told};"
        " evaluation.base=always"
    )


def base_loss_time(
    base: BaseScoring | None, times: BaseTimes, evaluation: Prediction
) -> Predictions:
    """Return base_time_s, the losses that are computed within the run; nothing without them."""
    if base is None or not base.loss_share:
        return {}
    factor = loss_seconds(base.loss_share, 1.0)
    count = round(base.loss_share * times.sequences)
    what = f"{count:,} validation sequences before the first step"
    if base.loss_share < 1:
        what += ", and of the tuned model"
    return {"base_time_s": evaluation.times(factor, what)}


def base_answers_time(base: BaseScoring | None, times: BaseTimes) -> Predictions:
    """Return base_answers_time_s, what the base writes after the run; nothing without answers."""
    made: dict[str, float] = {}
    if base is not None and base.samples:
        made["samples"] = times.samples_s
    if base is not None and base.tasks:
        made["tasks"] = times.tasks_s or 0.0
    if not made:
        return {}
    seconds = sum(made.values())
    low, high = seconds / ANSWERS_SPREAD, seconds * ANSWERS_SPREAD
    basis = f"{' and '.join(made)} of the base, after the run and not in its total"
    return {"base_answers_time_s": Prediction(seconds, low, high, basis)}
