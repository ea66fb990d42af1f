"""The tokenizer of a published model: read or refused, and given tokens that it does not know."""

import json
from pathlib import Path

import pytest
from fixture_types import Refuses
from trained_tokenizers import train_tokenizer

from brimful.base.errors import PlanError
from brimful.data.tokens import batch_encoder
from brimful.model.adapters import ids_of_tokens
from brimful.model.tokenizer import add_tokens, load_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer beside the configuration of a model, without weights."""
    train_tokenizer("bpe", 257, 2, ["a text"]).save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path / "base"


def test_a_tokenizer_needs_an_end_of_text_token(folder: Path, refuses: Refuses) -> None:
    assert load_tokenizer(folder).eos_token == "<|endoftext|>"  # noqa: S105 - a token of text
    settings = folder / "tokenizer_config.json"
    values = json.loads(settings.read_text())
    del values["eos_token"]
    settings.write_text(json.dumps(values))
    with refuses(PlanError):
        load_tokenizer(folder)
    assert load_tokenizer(folder, ends_texts=False).eos_token is None


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(PlanError):
        load_tokenizer(tmp_path / "nothing")


@pytest.mark.parametrize(
    "model",
    [
        {"vocab": {"a": "x"}, "merges": []},
        {"vocab": {"a": 0}, "merges": [["a", "b"]]},
        {"vocab": {"a": -1}, "merges": []},
        {"vocab": [], "merges": {}},
    ],
)
def test_a_vocabulary_that_cannot_be_built_is_refused(
    folder: Path, model: dict[str, object]
) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": {"type": "BPE"} | model}))
    with pytest.raises(PlanError, match=r"the tokenizer of .* cannot be loaded: [^\n]+$") as error:
        load_tokenizer(folder)
    assert error.value.exit_code == 2


def test_added_tokens_are_tokens_in_plain_text_too() -> None:
    """Special tokens would be spelled there; one that is known keeps its id."""
    tokenizer = train_tokenizer("bpe", 257, 2, ["a text"])
    rows = len(tokenizer)
    add_tokens(tokenizer, ["<search>", "<|endoftext|>"])
    assert ids_of_tokens(tokenizer, ["<search>", "<|endoftext|>"]) == [0, rows]
    assert batch_encoder(tokenizer)(["<search>"]) == [[rows]]
