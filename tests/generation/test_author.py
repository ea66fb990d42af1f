"""Who writes samples, and how it is asked."""

from pathlib import Path

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from brimful.data.formats import Example, Message
from brimful.generation.author import source_fingerprint, teacher
from brimful.recipe import QuestionsRecipe, RftRecipe

CPU = torch.device("cpu")
SHOTS = [
    Example((Message("user", f"What is {number}?"),), f"It is {number}.", "row", "")
    for number in range(5)
]


def rft(**values: object) -> RftRecipe:
    return RftRecipe.model_validate({"questions": QuestionsRecipe(path="x"), **values})


def test_a_teacher_is_told_what_to_do_and_shown_solved_examples(
    base_model: Path, snapshot: SnapshotAssertion
) -> None:
    author = teacher(str(base_model), rft(system="Be brief.", shots=2), SHOTS, CPU, "fp32")
    text = author.tokenizer.decode(author.prompt_ids("What is 9?"))

    assert text.startswith("Be brief.")
    assert [
        text.index(part)
        for part in ("What is 0?", "It is 0.", "What is 1?", "It is 1.", "What is 9?")
    ] == sorted(
        text.index(part)
        for part in ("What is 0?", "It is 0.", "What is 1?", "It is 1.", "What is 9?")
    )
    assert "What is 2?" not in text
    assert author.stop.texts == ("### Instruction:",)
    assert author.name == snapshot


def test_a_teacher_is_never_shown_the_answer_to_what_it_is_asked(base_model: Path) -> None:
    author = teacher(str(base_model), rft(shots=2), SHOTS, CPU, "fp32")
    text = author.tokenizer.decode(author.prompt_ids((Message("user", "What is 1?"),)))

    assert "It is 1." not in text
    assert "It is 2." in text


@pytest.mark.parametrize("source", ["owner/name", "FOLDER"])
def test_a_fingerprint_changes_with_the_weights_of_a_folder(base_model: Path, source: str) -> None:
    named = source.replace("FOLDER", str(base_model))
    before = source_fingerprint(named)
    weights = base_model / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"x")
    assert (source_fingerprint(named) == before) is (source == "owner/name")
