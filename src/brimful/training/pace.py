"""What a session does, one piece of work after the other, and how long each is expected to take."""

from brimful.base.types import Numbers
from brimful.planning.cost import Conditions, checkpoint_seconds
from brimful.planning.plan import Plan
from brimful.planning.spacing import interval
from brimful.planning.spread import RANK_STEP
from brimful.recipe import Recipe

BATCH, STEP, EVALUATION = "a batch", "a step", "an evaluation"
DRAWING = "answers to learn from"
BASE, CHECKPOINT, EXPORT = "the base's score", "a checkpoint", "the exported model"


def expected_seconds(recipe: Recipe, plan: Plan, total_steps: int) -> Numbers:
    """Return the seconds that each piece of work takes, as the plan predicts; without those of
    which it predicts no time.
    """
    predicted = {name: prediction.value for name, prediction in plan.predicted.items()}
    save_s = checkpoint_seconds(recipe, plan, Conditions()).high
    expected = {CHECKPOINT: save_s, EXPORT: 2 * save_s}
    step_s = predicted.get("step_time_s", predicted.get(RANK_STEP))
    if step_s is not None:
        expected[STEP] = expected[BATCH] = step_s
    if "evaluation_time_s" in predicted:
        share = min(1.0, interval(recipe, plan, total_steps) / total_steps)
        expected[EVALUATION] = expected[BASE] = predicted["evaluation_time_s"] * share
    return expected


def with_start(expected: Numbers, plan: Plan) -> Numbers:
    """Return the expected seconds with those of compiling added to a step's, as the first step
    takes them.
    """
    start = plan.predicted.get("start_time_s")
    if start is None or STEP not in expected:
        return expected
    return {**expected, STEP: expected[STEP] + start.value}
