"""What goes on inside a model of kernel attention or feedback alignment, on a few held-out windows:
for scores.json, diagnose and the report.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformers import PreTrainedModel

from brimful.base.types import JsonDict
from brimful.data.batches import IGNORED, Batch
from brimful.data.sequences import evaluation_batches
from brimful.data.tokens import TokenSplit
from brimful.evaluation.alignment import Alignment, measure_alignment
from brimful.evaluation.kernel_fidelity import AttentionFidelity, measure_attention
from brimful.recipe import Recipe

WINDOWS = 16
"""Spread evenly over the split, each as long as a training sequence."""


@dataclass(frozen=True)
class Layers:
    """What was measured.

    Attributes:
        tokens: Target tokens it was measured on.
        alignment: Alignment of feedback with backpropagation; None for other methods.
        attention: Fidelity of okadfa's layers; None for other architectures.
    """

    tokens: int
    alignment: Alignment | None
    attention: AttentionFidelity | None

    def to_json(self) -> JsonDict:
        """The record of scores.json: summary figures, and a row for each layer."""
        record: JsonDict = {"tokens": self.tokens}
        if self.alignment is not None:
            rows = [asdict(segment) for segment in self.alignment.segments]
            for row in rows:
                del row["is_below_the_top"]
            record["alignment"] = {"mean_cosine": self.alignment.mean_cosine, "segments": rows}
        if self.attention is not None:
            record["attention"] = {
                "mean_cosine": self.attention.mean_cosine,
                "mean_violation": self.attention.mean_violation,
                "dead": list(self.attention.dead),
                "layers": [asdict(layer) for layer in self.attention.layers],
            }
        finite: JsonDict = _without_nonfinite(record)
        return finite


def _without_nonfinite(value: Any) -> Any:
    """The value with None in place of numbers that JSON cannot hold, as diverged weights give."""
    if isinstance(value, dict):
        return {key: _without_nonfinite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def has_layers_to_look_at(recipe: Recipe) -> bool:
    """Whether a recipe has feedback alignment or okadfa's attention."""
    return bool(recipe.feedback_points) or (
        not isinstance(recipe.model, str) and recipe.model.architecture == "okadfa"
    )


def measure_layers(
    model: PreTrainedModel, recipe: Recipe, split: TokenSplit, *, loss_chunk: int
) -> Layers:
    """Look inside a trained model.

    Args:
        recipe: Recipe of the run: its rules of feedback and its seed.
        split: Held-out tokens.
        loss_chunk: Positions per chunk of logits.

    Raises:
        DataError: the split holds nothing to predict.
    """
    windows: Sequence[Batch] = list(
        evaluation_batches(split, recipe.sequence_length, recipe.sequence_length, 1, WINDOWS)
    )
    is_fed_back = bool(recipe.feedback_points)
    return Layers(
        tokens=sum(int((window.targets_BT != IGNORED).sum()) for window in windows),
        alignment=measure_alignment(
            model, recipe.feedback_rules, recipe.seed, windows, loss_chunk=loss_chunk
        )
        if is_fed_back
        else None,
        attention=measure_attention(model, windows),
    )
