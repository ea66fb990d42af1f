"""The likelihood of a text of the user's."""

import math
from io import StringIO
from pathlib import Path

import pytest
import torch
from finished_runs import train
from fixture_types import MakeRecipe, Refuses
from rich.console import Console

from brimful.base.errors import DataError
from brimful.chains.text_score import score_text
from brimful.generation.load import load_run

TEXT = "A word, and a word.\n"


def test_a_text_is_scored_as_the_model_says(
    tiny: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    """Beside the model itself, asked once for all of it; and what cannot be scored."""
    folder = train(tiny("training.steps=2"))
    file = tmp_path / "mine.txt"
    file.write_text(TEXT)

    record = score_text(folder, file, Console(file=StringIO()))["mine.txt"]

    loaded = load_run(folder, torch.device("cpu"), torch.float32)
    ids = [loaded.end_of_text_id, *loaded.encode(TEXT)]
    with torch.no_grad():
        logits = loaded.model(torch.tensor([ids[:-1]])).logits[0].double()
    nats = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]))
    assert record["bytes"] == len(TEXT.encode())
    assert record["tokens"] == len(loaded.encode(TEXT))
    assert record["windows"] == 1
    assert record["loss"] == pytest.approx(float(nats), rel=1e-4)
    total_bits = record["loss"] * record["tokens"] / math.log(2)
    assert record["bits_per_byte"] == pytest.approx(total_bits / record["bytes"], rel=1e-6)

    file.write_bytes(b"\xff\xfe words")
    with refuses(DataError, names=["UTF-8"]):
        score_text(folder, file, Console(file=StringIO()))
    file.write_text("\n \n")
    with refuses(DataError):
        score_text(folder, file, Console(file=StringIO()))
    with refuses(DataError):
        score_text(folder, tmp_path / "nowhere.txt", Console(file=StringIO()))
