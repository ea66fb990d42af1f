"""Small helpers for the tests of the data stage."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import MakeRecipe
from trained_tokenizers import train_tokenizer
from transformers import PreTrainedTokenizerFast

from brimful.base.env import shared_data_folder
from brimful.base.types import JsonDict
from brimful.data.examples import ExampleSplit
from brimful.data.formats import Example
from brimful.data.tokens import TokenSplit
from brimful.recipe import DataRecipe, Recipe


@pytest.fixture
def data_recipe() -> Callable[..., DataRecipe]:
    """A data section with the given fields; paths may be Path objects."""

    def make(path: Path | str | list[str], **fields: Any) -> DataRecipe:
        return DataRecipe(path=path if isinstance(path, list) else str(path), **fields)

    return make


@pytest.fixture
def recipe() -> MakeRecipe:
    """A tiny recipe with the given data and tokenizer sections."""

    def make(data: JsonDict, tokenizer: JsonDict | None = None) -> Recipe:
        values = {
            "name": "tiny",
            "sequence_length": 8,
            "batch": {"sequences": 2},
            "training": {"steps": 1},
            "model": {"layers": 1, "heads": 1, "width": 8},
            "tokenizer": tokenizer or {"kind": "bpe", "vocabulary": 280},
            "data": {
                key: str(value) if isinstance(value, Path) else value for key, value in data.items()
            },
            "optimizer": {"learning_rate": 1e-3},
        }
        return Recipe.model_validate(values)

    return make


@pytest.fixture
def tuning() -> MakeRecipe:
    """A recipe for fine-tuning on the rows at a path; fields of its data section as keywords."""

    def make(
        path: Path | str, sequence_length: int = 64, stop: tuple[str, ...] = (), **data: Any
    ) -> Recipe:
        values = {
            "name": "tuned",
            "method": "sft",
            "sequence_length": sequence_length,
            "batch": {"sequences": 2},
            "training": {"steps": 1},
            "model": "owner/name",
            "data": {"path": str(path), "validation": 0.2, **data},
            "optimizer": {"learning_rate": 1e-3},
            "sample": {"stop": list(stop)},
        }
        return Recipe.model_validate(values)

    return make


@pytest.fixture
def example_split() -> Callable[..., ExampleSplit]:
    """Examples with the given numbers of prompt and answer tokens; all ids differ, counting upwards
    from 1.
    """

    def make(*sizes: tuple[int, int]) -> ExampleSplit:
        lengths = [prompt + answer for prompt, answer in sizes]
        is_target = [
            place >= prompt for prompt, answer in sizes for place in range(prompt + answer)
        ]
        examples = tuple(Example("", "", f"row {number}", "") for number in range(len(sizes)))
        tokens_N = np.arange(1, sum(lengths) + 1, dtype=np.uint32)
        return ExampleSplit(
            tokens_N, np.array(is_target), np.cumsum([0, *lengths]), sum(lengths), examples
        )

    return make


@pytest.fixture
def token_split() -> Callable[..., TokenSplit]:
    """A split of documents with the given token counts: ids count upwards from 1, end-of-text is
    0.
    """

    def make(*lengths: int) -> TokenSplit:
        ids: list[int] = []
        offsets = [0]
        for length in lengths:
            ids += [*range(len(ids) + 1, len(ids) + length + 1), 0]
            offsets.append(len(ids))
        return TokenSplit(
            np.array(ids, dtype="<u2"),
            np.array(offsets, dtype="<u8"),
            sum(lengths),
            sum(lengths),
            len(lengths),
        )

    return make


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets; skips where there is none."""
    folder = shared_data_folder()
    if folder is None:
        pytest.skip("real data are not on this machine (set BRIMFUL_DATA)")
    return folder


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n'"
    " }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, 262 ids, end-of-text 0, without a chat template."""
    return train_tokenizer("bpe", 262, 2, ["the cat sat on the mat, the dog sat on the log\n" * 3])


@pytest.fixture
def chat_tokenizer(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same with ChatML's two tokens (262 and 263) and template."""
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    return tokenizer
