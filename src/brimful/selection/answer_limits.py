"""Limits within which rounds of rewarded answers should stay: what lies beyond teaches little, or
makes a model worse.
"""

from collections.abc import Iterator, Mapping

from brimful.base.errors import RequestError
from brimful.base.text import plural
from brimful.base.warning_codes import coded
from brimful.recipe.rewards import RewardsRecipe
from brimful.selection.answer_journal import ANSWERS_FILE

_MOST_EMPTY = 0.5
"""Share of a round's answers without any text, from which it is told."""
_LIMITS = {
    "entropy": (
        "answers have become nearly certain: {value:.3f} nats per token (rewards.least_entropy), so"
        " that little is left to choose from. A lower optimizer.learning_rate, rewards.loss=dapo or"
        " rewards.kl=0.02 keep them apart"
    ),
    "cut": (
        "{value:.0%} of the answers were cut at rewards.max_new_tokens (rewards.most_cut) and could"
        " not be finished. Raise rewards.max_new_tokens, or tune the model on short answers first"
    ),
    "equal": (
        "{value:.0%} of the groups had equal rewards (rewards.most_equal): nothing is learned from"
        " them. Ask easier or harder questions, tune the model first, or raise"
        " rewards.samples_per_prompt"
    ),
    "empty": (
        "{value:.0%} of the answers have no text. Look at them in " + ANSWERS_FILE + ": the model"
        " may end its answers before they begin"
    ),
}


class AnswerLimits:
    """Counts the rounds in a row that pass a limit.

    Args:
        rules: Resolved.
    """

    def __init__(self, rules: RewardsRecipe) -> None:
        self._rules = rules
        self._in_a_row = dict.fromkeys(_LIMITS, 0)

    def passed(self, watched: Mapping[str, float]) -> Iterator[str]:
        """Yield what is to be told of a round.

        Raises:
            RequestError: a limit is passed, and the recipe says to stop there.
        """
        rules = self._rules
        is_passed = {
            "entropy": watched["entropy"] < rules.least_entropy,
            "cut": watched["cut"] > rules.most_cut,
            "equal": watched["equal"] >= rules.most_equal,
            "empty": watched["empty"] > _MOST_EMPTY,
        }
        for name, told in _LIMITS.items():
            self._in_a_row[name] = self._in_a_row[name] + 1 if is_passed[name] else 0
            if self._in_a_row[name] == rules.patience:
                value = told.format(value=watched[name])
                text = f"in {plural(rules.patience, 'round')} in a row {value}"
                if rules.stop:
                    raise RequestError(f"{text}. The recipe says to stop there (rewards.stop).")
                yield coded("B328", text)
