"""What every test shares: one thread, own cache and runs folders, a tiny corpus and recipe."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from brimful.base.env import shared_data_folder
from brimful.recipe import Recipe, load

TINY = """
name: tiny
sequence_length: 32
batch: {sequences: 8}
training: {steps: 12}
model: {architecture: llama, layers: 2, heads: 2, width: 32}
tokenizer: {kind: bpe, vocabulary: 300}
data: {path: CORPUS, document_start: "^# ", validation: 0.2}
optimizer: {learning_rate: 1e-2, warmup: 3}
evaluation: {every: 6}
sample: {tokens: 8}
plan: {device: cpu, precision: fp32, threads: 1, compile: false}
"""


@pytest.fixture(autouse=True)
def _quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BRIMFUL_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A text file of 60 short documents with some structure to learn."""
    words = ["red", "green", "blue", "cat", "dog", "sees", "likes", "the", "a", "tree"]
    drawn = random.Random(0)
    documents = [f"# story {number}\n" + " ".join(drawn.choices(words, k=60)) + "\n" for number in range(60)]
    path = tmp_path / "corpus.txt"
    path.write_text("".join(documents))
    return path


@pytest.fixture
def recipe_file(corpus: Path, tmp_path: Path) -> Path:
    """The tiny recipe as a file, for commands."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.replace("CORPUS", str(corpus)))
    return path


@pytest.fixture
def tiny(recipe_file: Path) -> Callable[..., Recipe]:
    """`tiny("key=value", ...)` gives the tiny recipe with overrides."""
    return lambda *overrides: load(str(recipe_file), overrides)


@pytest.fixture
def shared_data() -> Path:
    folder = shared_data_folder()
    if folder is None:
        pytest.skip("no real data: set BRIMFUL_DATA to the folder that holds it")
    return folder.resolve()
