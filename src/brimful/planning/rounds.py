"""What a run that is rewarded for its own answers takes beside its updates: rounds of drawing,
verifying and scoring, and the answers to held-out questions. No torch.
"""

from dataclasses import dataclass, replace

from brimful.base.types import Numbers
from brimful.planning.plan import Plan, Prediction
from brimful.planning.writing import (
    PASSES_OF_TRAINING,
    Texts,
    TextsWritten,
    TextWriter,
    verdicts_time,
    writer_of,
)
from brimful.recipe import Recipe
from brimful.recipe.rewards import CountedRewards, RewardsRecipe, rewards_of


@dataclass(frozen=True)
class AnswerRounds:
    """The rounds of a run.

    Attributes:
        recipe: Recipe, as planning counts.
        plan: Plan, with step_time_s among its predictions.
        usable_bytes: Memory of the device.
    """

    recipe: Recipe
    plan: Plan
    usable_bytes: int

    @property
    def rules(self) -> RewardsRecipe:
        """How answers are drawn, resolved."""
        return rewards_of(self.recipe)

    @property
    def answers(self) -> int:
        """Number of answers of a round."""
        rules, batch = self.rules, self.recipe.effective_batch
        if isinstance(rules, CountedRewards):
            batch = rules.answers
        return rules.batches * batch

    @property
    def asked(self) -> Texts:
        """The answers of a round."""
        group = self.rules.samples_per_prompt
        what = f"{self.answers // group:,} questions x {group}"
        verdict = "program" if self.rules.runs_programs else "number"
        return Texts(what, self.answers, self.rules.max_new_tokens, verdict, at_once=True)

    def count(self, steps: int) -> int:
        """Return how many rounds so many updates take."""
        return -(-steps // self.rules.updates)

    def drawing(self, steps: int) -> TextsWritten:
        """Return time and memory of drawing the answers of all rounds."""
        return self._writer.write(self.count(steps), [self.asked])

    def held_out(self, questions: int) -> TextsWritten:
        """Return time and memory of answering held-out questions once."""
        most = self.rules.max_new_tokens
        texts = Texts("held-out questions", questions, most, at_once=True)
        return self._writer.write(1, [texts])

    @property
    def _writer(self) -> TextWriter:
        """The model with what training holds meanwhile: gradients are let go of."""
        room = self.recipe.sequence_length - self.rules.max_new_tokens
        writer = writer_of(self.recipe, self.plan, self.usable_bytes)
        recipe = self.recipe.model_copy(update={"sequence_length": room})
        held = self.plan.memory_terms.get("optimizer states", 0)
        return replace(writer, recipe=recipe, beside_bytes=held)

    @property
    def scores_all(self) -> bool:
        """Whether the trainer scores the answers of every round, and not of the first one alone,
        where sampler and trainer are compared.
        """
        return bool(self.recipe.loss_options["rewards"]["old"])

    def times(self, steps: int) -> dict[str, Prediction]:
        """Predict the seconds of so many updates' rounds, by name of the phase."""
        drawn, step_time = self.drawing(steps).time_s, self.plan.predicted["step_time_s"]
        share = PASSES_OF_TRAINING["adapter" if self.recipe.adapter else "full"]
        passes = share * self.rules.batches * (self.count(steps) if self.scores_all else 1)
        value, low, high = (passes * t for t in (step_time.value, step_time.low, step_time.high))
        scored = Prediction(value, low, high, "a pass without gradients over each answer")
        found = {
            "verifying_time_s": verdicts_time(self.count(steps), self.asked),
            "scoring_time_s": scored,
        }
        return found if drawn is None else {"sampling_time_s": drawn} | found


def seconds_of_round(recipe: Recipe, plan: Plan) -> Numbers:
    """Return what one round is predicted to take, as `round_` and the name of the phase; nothing
    where the run has none, or times are not known.
    """
    if not recipe.kind.draws_answers or "step_time_s" not in plan.predicted:
        return {}
    rounds = AnswerRounds(recipe, plan, int(plan.device.get("memory_bytes") or 0))
    times = rounds.times(rounds.rules.updates)
    return {f"round_{name}": each.value for name, each in times.items()}
