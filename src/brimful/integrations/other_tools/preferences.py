"""What training on preferences changes of a job of another tool, and a recipe's section for it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from brimful.integrations.other_tools.settings import Settings
from brimful.integrations.other_tools.step import LossChain

METHODS = {"examples": "sft", "pairs": "dpo", "judged": "kto"}
"""Method of a recipe that learns from the kind of rows that a file trains on."""
ANSWERS = 2
"""Rows of a pair in one pass: the chosen answers and then the rejected ones."""
KTO_PASSES = 3
"""Passes without gradients of Kahneman-Tversky optimisation: the reference's of the answers, and of
both models of answers to other prompts, by which their distance is estimated.
"""
APPROXIMATION = (
    "Of training on preferences, a reference reads the rows with the adapters on, and one that is a"
    " model of its own is the model's copy."
)
Section = Mapping[str, Any]


def rows(of_samples: Callable[[Settings], int], learns: Callable[[Settings], str]) -> Any:
    """Return the fact of how many rows a pass has, from how many samples and what is learned."""

    def count(settings: Settings) -> int:
        return of_samples(settings) * (ANSWERS if learns(settings) in ("pairs", "scores") else 1)

    return count


def compared(
    chain: LossChain, passes: int, *, own_reference: bool, is_kept: bool = False
) -> LossChain:
    """Return a loss with the passes of a reference.

    Args:
        chain: Loss of the trained model.
        passes: Passes of a step without gradients.
        own_reference: Whether the reference is a model of its own.
        is_kept: Whether its log-probabilities are computed before training.
    """
    if is_kept:  # what is left is the trained model's of answers to other prompts
        passes, own_reference = passes // KTO_PASSES, False
    if not passes:
        return chain
    return replace(chain, passes=passes, second_model=own_reference)


def of_judged(settings: Settings, beta: float, good: str, bad: str, loss: str = "kto") -> Section:
    """Return the section of a recipe that learns from judged answers, whose weights are the keys
    `good` and `bad`.
    """
    weights = {
        "desirable_weight": settings.number(good),
        "undesirable_weight": settings.number(bad),
    }
    return section(loss, beta, **{name: each for name, each in weights.items() if each != 1})


def section(loss: str, beta: float, **others: Any) -> Section:
    """Return the section `preference` of a recipe: what is not None and not 0."""
    given = {name: value for name, value in others.items() if value}
    return {"loss": loss, "beta": beta, **given}
