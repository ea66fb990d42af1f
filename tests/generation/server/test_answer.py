"""Texts as they come are in the end the text as a whole, without what ends them."""

import pytest
from transformers import PreTrainedTokenizerFast

from brimful.generation.requests import Finish, Generation
from brimful.generation.server.answer import Answer


def pieces(
    tokenizer: PreTrainedTokenizerFast, text: str, stops: tuple[str, ...], finish: Finish
) -> tuple[Answer, list[str]]:
    answer, found = Answer(tokenizer, [5], stops), list[str]()
    ids = tokenizer.encode(text)
    for token in ids:
        found.append(answer.take((token, -0.5)))
        if answer.finish is not None:
            return answer, found
    return answer, [*found, answer.take(Generation(ids, finish))]


@pytest.mark.parametrize("stops", [(), ("dog",), ("catalogue of things",)])
def test_pieces_are_the_text(tokenizer: PreTrainedTokenizerFast, stops: tuple[str, ...]) -> None:
    text = "the cat sat on the müll of a cat"
    answer, found = pieces(tokenizer, text, stops, "end_of_text")
    assert "".join(found) == answer.text == text
    assert answer.finish == "stop"


@pytest.mark.parametrize("stop", ["mat", " mat", "the mat and", "t and", "d"])
def test_a_text_ends_before_the_first_stop_text(
    tokenizer: PreTrainedTokenizerFast, stop: str
) -> None:
    text = "the cat sat on the mat and the rat"
    answer, found = pieces(tokenizer, text, (stop, "rat"), "length")
    assert "".join(found) == answer.text == text[: text.index(stop)]
    assert answer.finish == "stop"


def test_a_text_that_is_cut_says_so(tokenizer: PreTrainedTokenizerFast) -> None:
    answer, found = pieces(tokenizer, "the cat", ("catalogue",), "length")
    assert ("".join(found), answer.finish) == ("the cat", "length")


def test_logprobs_stand_with_their_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    answer, _ = pieces(tokenizer, "the cat", (), "length")
    text = answer.logprobs(0, is_chat=False)
    chat = answer.logprobs(1, is_chat=True)["content"]
    assert "".join(text["tokens"]) == "the cat"
    assert text["text_offset"][-1] == len("the cat") - len(text["tokens"][-1])
    assert [each["token"] for each in chat] == text["tokens"][1:]
    assert {each["logprob"] for each in chat} == {-0.5}
