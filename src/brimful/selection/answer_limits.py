"""Limits within which rounds of rewarded answers should stay: what lies beyond teaches little, or
makes a model worse.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile

import numpy as np

from brimful.base.errors import RequestError
from brimful.base.text import plural
from brimful.base.warning_codes import coded
from brimful.recipe.rewards import RewardsRecipe
from brimful.selection.answer_journal import ANSWERS_FILE, DrawnAnswer

_MOST_APART = 0.1
"""Nats by which log-probabilities of sampler and trainer may differ without a warning; in bf16 a
hundredth is usual.
"""
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
        "{value:.0%} of the answers have no text (rewards.most_empty). Look at them in "
        + ANSWERS_FILE
        + ": the model"
        " may end its answers before they begin"
    ),
    "failed": (
        "a verifier failed for {value:.0%} of the answers (rewards.most_failed), which get no"
        " reward from it. Its first error is told above: correct the file, and start anew"
    ),
    "gamed": (
        "{value:.0%} of the answers are programs that try to pass without being right"
        " (rewards.most_gamed). How is told above, and they are in "
        + ANSWERS_FILE
        + ": rewards.kl=0.02 or fewer steps keep a model closer to what it wrote before"
    ),
}
_ODD = {
    "failed": "got no reward from a verifier that failed",
    "gamed": "tried to pass without being right, for which there is no reward",
}


def passed(rules: RewardsRecipe, rounds: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Yield what is to be told of the last of some rounds.

    Args:
        rules: Resolved.
        rounds: What they are watched by, one more than rules.patience where there are so many.

    Raises:
        RequestError: a limit is passed, and the recipe says to stop there.
    """
    is_passed: dict[str, Callable[[float], bool]] = {
        "entropy": lambda value: value < rules.least_entropy,
        "cut": lambda value: value > rules.most_cut,
        "equal": lambda value: value >= rules.most_equal,
        "empty": lambda value: value > rules.most_empty,
        "failed": lambda value: value > rules.most_failed,
        "gamed": lambda value: value > rules.most_gamed,
    }
    for name, told in _LIMITS.items():
        values = [each.get(name, math.nan) for each in reversed(rounds)]
        in_a_row = len([*takewhile(is_passed[name], values)])
        value = told.format(value=values[0])
        text = f"in {plural(rules.patience, 'round')} in a row {value}"
        if in_a_row >= rules.patience and rules.stop:
            raise RequestError(f"{text}. The recipe says to stop there (rewards.stop).")
        if in_a_row == rules.patience:
            yield coded("B328", text)


def odd_answers(number: int, odd: Mapping[str, Sequence[str]], total: int) -> list[str]:
    """Return what is told of a round's odd answers (`Judges.odd`).

    Args:
        number: Number of the round, from 0.
        odd: Reasons by the name of what is odd.
        total: Answers of the round.
    """
    return [
        f"{len(each):,} of the {plural(total, 'answer')} of round {number + 1} {_ODD[name]}; the"
        f" first: {each[0]}"
        for name, each in odd.items()
        if each
    ]


def agreement(
    drawn: Sequence[DrawnAnswer], scored: Sequence[Sequence[float]], cause: str = ""
) -> str:
    """Return how much the sampler's and the trainer's log-probabilities of the same tokens differ.

    Args:
        drawn: Answers with those of the sampler.
        scored: Those of the trainer.
        cause: Why they differ, in brackets after a space, where the sampler is another program.
    """
    sampled = np.concatenate([answer.log_probs for answer in drawn])
    apart_N = np.abs(np.concatenate([*scored]) - sampled)
    text = (
        f"sampler and trainer: the log-probabilities of {len(apart_N):,} drawn tokens differ by at"
        f" most {apart_N.max():.1e} nats, {apart_N.mean():.1e} on average{cause}"
    )
    if apart_N.max() <= _MOST_APART:
        return text
    return coded(
        "B329",
        f"{text}, more than {_MOST_APART:g}: answers are learned as if the trainer had drawn them."
        " rewards.weight_cap=2 corrects for it; plan.precision=fp32"
        f" {'makes it smaller' if cause else 'avoids it'}",
    )
