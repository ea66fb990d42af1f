"""Whether a model is asked through its chat template or with text to continue."""

import copy

import pytest
from fixture_types import Refuses
from transformers import PreTrainedTokenizerFast

from brimful.base.errors import RequestError
from brimful.evaluation.asking import ways_to_ask

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def chatty(byte_tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer = copy.deepcopy(byte_tokenizer)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", ("chat",)),
        ("google/gemma-2-2b-it", ("chat",)),
        ("cache/SmolLM2-135M-Instruct.Q4_1-b179c952", ("chat",)),
        ("Qwen/Qwen2.5-0.5B", ("chat", "plain")),
        ("instruct/italian-base", ("chat", "plain")),
    ],
)
def test_a_name_tells_whether_a_model_was_made_to_answer(
    name: str, ways: tuple[str, ...], chatty: PreTrainedTokenizerFast
) -> None:
    """A chat template alone does not: base models carry it, too, and are asked in both ways."""
    assert ways_to_ask("auto", chatty, ["model", name]) == ways


def test_without_a_chat_template_a_model_continues_text(
    byte_tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert ways_to_ask("auto", byte_tokenizer, ["Some-Instruct"]) == ("plain",)


def test_the_recipe_may_choose(chatty: PreTrainedTokenizerFast) -> None:
    assert ways_to_ask("plain", chatty, ["Some-Instruct"]) == ("plain",)
    assert ways_to_ask("chat", chatty, ["Some"]) == ("chat",)


def test_a_chat_template_that_is_not_there_cannot_be_asked_for(
    byte_tokenizer: PreTrainedTokenizerFast,
    refuses: Refuses,
) -> None:
    with refuses(RequestError, names=["evaluation.ask=chat, but"]):
        ways_to_ask("chat", byte_tokenizer, ["Some-Instruct"])
