"""What a changed effective batch asks of the learning rate and the warm-up, and what
`optimizer.scale_learning_rate` made of it.

Adam: the square-root rule (Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive
Gradient Algorithms"). With k = B'/B the learning rate grows by sqrt(k), 1 - beta1 and 1 - beta2 by
k, and eps falls by sqrt(k). It is derived for gradients that are mostly noise, so it ends at the
critical batch size (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training"), which
only a run can measure. The linear rule is that of plain SGD (Goyal et al. 2017, "Accurate, Large
Minibatch SGD").
"""

import math
from collections.abc import Container, Iterable

from brimful.base.types import Texts
from brimful.base.warning_codes import as_note
from brimful.recipe import OptimizerRecipe, Recipe, differences
from brimful.recipe.loading import counts_examples, learning_rate_factor, step_growth

SOURCES = {
    "sqrt": (
        "the square-root rule for Adam (Malladi et al. 2022), which ends at the critical batch size"
    ),
    "linear": "the linear rule, made for plain SGD (Goyal et al. 2017); Adam's is the square root",
}
"""By `optimizer.scale_learning_rate`."""


def notes(original: Recipe, changed: Recipe) -> list[str]:
    """Lines for a user who changed the effective batch of a recipe; none where nothing is to be
    said.

    With a rule they tell what `recipe.load` made of the learning rate. Without one they suggest
    values, unless the model changed, too.

    Args:
        original: The recipe as written.
        changed: The same with the user's changes. What the user set is never suggested again.
    """
    ratio = step_growth(original, changed)
    if ratio == 1:
        return []
    changes = differences(original, changed)
    length = _settings(_length(original, ratio, changes), changes)
    if changed.optimizer.scale_learning_rate != "none":
        told = f"{_seen(original, changed)}, k = {ratio:.4g}; {_scaled(original, changed)}"
        lines = [as_note(told, "B101")]
        return [
            *lines,
            *(
                [f"  Consider: {length}", "    as many tokens of warm-up and training as before"]
                if length
                else []
            ),
        ]
    if any(key.split(".")[0] in {"model", "adapter"} for key in changes):
        return []
    rule = _settings(_square_root_rule(original.optimizer, ratio), changes)
    lines = [
        as_note(
            f"{_seen(original, changed)}, k = {ratio:.4g}; nothing else of the recipe was changed"
            " for it. Consider:",
            "B101",
        )
    ]
    if rule:
        lines += [
            f"  {rule}",
            (
                "    the square-root rule for Adam: learning rate x sqrt(k), (1 - beta) x k, eps /"
                " sqrt(k) (Malladi et al. 2022)"
            ),
        ]
    if length:
        lines += [f"  {length}", "    as many tokens of warm-up and training as before"]
    for name in ("beta1", "beta2"):
        beta = getattr(original.optimizer, name)
        if ratio * (1 - beta) > 1:
            lines.append(
                f"  The rule has no {name} here, because (1 - {beta:g}) x k is above 1: this"
                " step is too far for it."
            )
    return [
        *lines,
        (
            "  The rule ends at the critical batch size (McCandlish et al. 2018), which cannot be"
            " known before training."
        ),
    ]


def _seen(original: Recipe, changed: Recipe) -> str:
    if counts_examples(original, changed):
        return (
            f"an optimizer step sees {changed.effective_batch:,} examples instead of"
            f" {original.effective_batch:,}"
        )
    before, after = (recipe.tokens_per_step for recipe in (original, changed))
    return f"an optimizer step sees {after:,} tokens instead of {before:,}"


def _scaled(original: Recipe, changed: Recipe) -> str:
    """What became of the learning rate: scaled, or kept because the user set it."""
    rule, factor = changed.optimizer.scale_learning_rate, learning_rate_factor(original, changed)
    before, after = original.optimizer.learning_rate, changed.optimizer.learning_rate
    if not math.isclose(after, before * factor, rel_tol=1e-5):
        return (
            f"optimizer.learning_rate={after:g} was set, so optimizer.scale_learning_rate={rule}"
            " leaves it."
        )
    by = "sqrt(k)" if rule == "sqrt" else "k"
    return f"optimizer.learning_rate {before:g} x {by} = {after:g}: {SOURCES[rule]}."


def _settings(values: Texts, changes: Container[str]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items() if key not in changes)


def _square_root_rule(optimizer: OptimizerRecipe, ratio: float) -> Texts:
    """Return the settings of Adam for a batch `ratio` times as large (Malladi et al. 2022). They
    hold no betas, and then no eps, where one of the betas would be below 0.
    """
    root = math.sqrt(ratio)
    values = {"learning_rate": optimizer.learning_rate * root}
    if optimizer.min_learning_rate is not None:
        values["min_learning_rate"] = optimizer.min_learning_rate * root
    betas = {name: 1 - ratio * (1 - getattr(optimizer, name)) for name in ("beta1", "beta2")}
    if min(betas.values()) >= 0:
        values |= {**betas, "eps": optimizer.eps / root}
    return {
        f"optimizer.{name}": f"{value:.4g}" if name in betas else f"{value:.3g}"
        for name, value in values.items()
    }


def _length(recipe: Recipe, ratio: float, changes: Iterable[str]) -> Texts:
    """Warm-up and training over as many tokens as before; a share of the steps stays one."""
    values = {}
    if recipe.optimizer.warmup >= 1:
        values["optimizer.warmup"] = str(max(1, round(recipe.optimizer.warmup / ratio)))
    if recipe.training.steps is not None and not any(
        key.startswith("training.") for key in changes
    ):
        values["training.steps"] = str(max(1, round(recipe.training.steps / ratio)))
    return values
