"""The prompts that a tuned model and its base continue."""

from brimful.data.formats import Example, Message
from brimful.generation.side_by_side import SHOWN, shown_prompts

EXAMPLES = [Example(f"ask {number}", f"answer {number}", "", "") for number in range(10)]


def test_the_recipes_own_prompt_comes_first_then_held_out_ones_spread_evenly() -> None:
    shown = shown_prompts("Say red.", EXAMPLES)

    assert [each.text for each in shown] == ["Say red.", "ask 0", "ask 5"]
    assert [each.reference for each in shown] == ["", "answer 0", "answer 5"]
    assert [each.text for each in shown_prompts("", EXAMPLES)] == ["ask 0", "ask 3", "ask 6"]


def test_of_a_conversation_the_last_message_is_read() -> None:
    prompt = (Message("system", "Be short."), Message("user", "Hello?"))
    (shown,) = shown_prompts("", [Example(prompt, "Hi.", "", "")])

    assert (shown.prompt, shown.text) == (prompt, "Hello?")


def test_texts_without_a_prompt_are_not_asked() -> None:
    assert shown_prompts("", [Example(None, "a whole text", "", "")] * SHOWN) == []
