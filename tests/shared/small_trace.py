"""The trace of a step with seven storages."""

import numpy as np

from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import GLOBAL

STORAGES = [
    # kind, block, place, bytes
    ("weights", GLOBAL, "model.embed_tokens.weight", 100),
    ("weights", 0, "model.layers.0.mlp.weight", 50),
    ("inputs", GLOBAL, "batch", 8),
    ("activations", 0, "model.layers.0.mlp add", 70),
    ("loss and logits", GLOBAL, "mm", 200),
    ("gradients", 0, "model.layers.0.mlp.weight", 50),
    ("gradients", GLOBAL, "model.embed_tokens.weight", 100),
]
EVENTS = (1, 2, 3, 4, 5, -5, 6, -4, 7, -3, -6, -7)
"""Numbers of storages, from 1 on, as they are allocated, and below zero as they are freed."""


def small_trace() -> Trace:
    """All storages come, and go but for the weights."""
    kinds, layers, places, sizes = zip(*STORAGES, strict=True)
    return Trace(
        events_E=np.array(EVENTS, np.int32),
        event_layers_E=np.full(len(EVENTS), GLOBAL, np.int32),
        sizes_S=np.array(sizes, np.int64),
        kinds_S=np.array([KINDS.index(kind) for kind in kinds], np.int32),
        places_S=np.arange(len(STORAGES), dtype=np.int32),
        layers_S=np.array(layers, np.int32),
        places=places,
        blocks="model.layers",
        marks={"inputs": 2, "forward": 3, "backward": 5, "optimizer": 9, "between steps": 12},
    )
