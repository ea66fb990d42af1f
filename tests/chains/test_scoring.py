"""Scores of a finished run: what a stop in the middle leaves out is made up for."""

import json
from io import StringIO

import pytest
from fixture_types import MakeRecipe
from rich.console import Console

from brimful.chains import pipeline
from brimful.evaluation import layers


def test_a_stop_between_loss_and_layers_leaves_neither_out(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(
        "method=feedback",
        "model={architecture: okadfa, layers: 1, heads: 2, width: 32}",
        "training.steps=2",
    )

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(layers, "measure_layers", stop)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(recipe, Console(file=StringIO()))
    folder = pipeline.run(recipe, Console(file=StringIO())).parent

    scores = json.loads((folder / "scores.json").read_text())
    assert {"validation", "layers"} <= scores.keys()
