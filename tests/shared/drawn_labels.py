"""Logits of texts whose labels are drawn."""

import numpy as np

from brimful.base.arrays import Array, Floats32
from brimful.data.labels import Labels


def drawn_labels(
    names: tuple[str, ...], *, multiple: bool, count: int, seed: int, gain: float
) -> tuple[Labels, Floats32, Array]:
    """Labels, logits that are higher by `gain` for what a text has, and targets."""
    labels = Labels(names, multiple, 1 if len(names) == 2 and not multiple else None)
    drawn = np.random.default_rng(seed)
    targets = (
        drawn.integers(0, 2, (count, len(names))).astype(np.float32)
        if multiple
        else drawn.integers(0, len(names), count)
    )
    hot = targets if multiple else np.eye(len(names))[targets]
    logits_EC = (drawn.normal(size=(count, len(names))) + gain * hot).astype(np.float32)
    return labels, logits_EC, targets
