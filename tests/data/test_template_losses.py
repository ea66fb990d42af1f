"""What a chat template leaves out of a conversation is refused, with a way out that works."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from fixture_types import Refuses
from transformers import PreTrainedTokenizerFast

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.chat import Template
from brimful.data.formats import Example, examples_of
from brimful.data.rows import Row
from brimful.recipe import DataRecipe

Fast = PreTrainedTokenizerFast
Make = Callable[..., DataRecipe]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = CHATML.replace("<|im_start|>{{", "{% if m.role != 'system' %}<|im_start|>{{").replace(
    "{% endfor %}", "{% endif %}{% endfor %}"
)
FIRST_SYSTEM_ONLY = NO_SYSTEM.replace("m.role != 'system'", "m.role != 'system' or loop.first")


def thinking(name: str) -> str:
    """A template that writes the thoughts in a field of this name."""
    thoughts = f"{{% if m.{name} %}}<think>{{{{ m.{name} }}}}</think>{{% endif %}}"
    return CHATML.replace("{{ m.content }}", thoughts + "{{ m.content }}")


def turns(*said: tuple[str, str], **of_last: Any) -> JsonDict:
    messages: list[JsonDict] = [{"role": role, "content": text} for role, text in said]
    messages[-1] |= of_last
    return {"messages": messages}


def example(data: DataRecipe, row: JsonDict) -> Example:
    (found,) = examples_of([Row(row, "rows, row 1")], data)
    return found


def written(tokenizer: Fast, data: DataRecipe, row: JsonDict) -> tuple[str, str]:
    """What the template in use writes of a row, and what of it is learned."""
    template = Template.of(tokenizer, data.template)
    (encoded,) = template.encode([example(data, row)])
    learned = [id_ for id_, is_one in zip(encoded.ids, encoded.is_target, strict=True) if is_one]
    return tokenizer.decode(encoded.ids), tokenizer.decode(learned)


SYSTEM = turns(("system", "be short"), ("user", "the cat"), ("assistant", "sat"))
LATER = turns(
    ("system", "be short"), ("user", "a"), ("assistant", "b"), ("system", "be long"), ("user", "c")
)
LATER["messages"].append({"role": "assistant", "content": "d"})


@pytest.mark.parametrize(
    ("template", "row", "message"),
    [(NO_SYSTEM, SYSTEM, "message 1"), (FIRST_SYSTEM_ONLY, LATER, "message 4")],
)
def test_a_system_message_that_is_not_written_is_refused(
    chat_tokenizer: Fast,
    data_recipe: Make,
    template: str,
    row: JsonDict,
    message: str,
    refuses: Refuses,
) -> None:
    """Also in the middle of a conversation; both ways out work."""
    chat_tokenizer.chat_template = template
    with refuses(DataError, names=["row 1", message, "system", "data.leave_out", "plain"]):
        written(chat_tokenizer, data_recipe("x"), row)
    assert "be " not in written(chat_tokenizer, data_recipe("x", leave_out=["system"]), row)[0]
    assert "be short" in written(chat_tokenizer, data_recipe("x", template="plain"), row)[0]


def test_what_is_written_is_not_refused(chat_tokenizer: Fast, data_recipe: Make) -> None:
    chat_tokenizer.chat_template = FIRST_SYSTEM_ONLY
    assert "be short" in written(chat_tokenizer, data_recipe("x"), SYSTEM)[0]
    chat_tokenizer.chat_template = CHATML
    assert "be long" in written(chat_tokenizer, data_recipe("x"), LATER)[0]


@pytest.mark.parametrize("read", ["reasoning_content", "thinking"])
@pytest.mark.parametrize("held", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_reach_a_template_that_writes_them_under_its_own_name(
    chat_tokenizer: Fast, data_recipe: Make, held: str, read: str
) -> None:
    """They are learned as the answer is."""
    chat_tokenizer.chat_template = thinking(read)
    row = turns(("user", "the cat"), ("assistant", "sat"), **{held: "cats sit"})
    whole, learned = written(chat_tokenizer, data_recipe("x"), row)
    assert whole.count("cats sit") == 1
    assert learned == "<think>cats sit</think>sat<|im_end|>"


@pytest.mark.parametrize("style", ["chat", "plain"])
def test_thoughts_that_are_not_written_are_refused(
    chat_tokenizer: Fast, data_recipe: Make, style: str, refuses: Refuses
) -> None:
    """The way out works: without them, and no others are looked for."""
    chat_tokenizer.chat_template = CHATML
    row = turns(("user", "the cat"), ("assistant", "sat"), thinking="cats sit")
    with refuses(DataError, names=["row 1", "thinking", "data.leave_out='[thinking]'"]):
        written(chat_tokenizer, data_recipe("x", template=style), row)
    data = data_recipe("x", template=style, leave_out=["thinking"])
    assert written(chat_tokenizer, data, row)[1].startswith("sat<|")


def test_thoughts_that_only_the_last_answer_shows_are_no_loss(
    chat_tokenizer: Fast, data_recipe: Make
) -> None:
    """As with Qwen3, where the model does not see earlier ones either."""
    chat_tokenizer.chat_template = thinking("thinking").replace(
        "{% if m.thinking %}", "{% if m.thinking and loop.last %}"
    )
    row = turns(("user", "a"), ("assistant", "b"), thinking="c")
    assert "<think>c" in written(chat_tokenizer, data_recipe("x"), row)[0]


def test_the_text_beside_a_call_is_not_lost_either(
    chat_tokenizer: Fast, data_recipe: Make, refuses: Refuses
) -> None:
    """As with templates that write one or the other."""
    chat_tokenizer.chat_template = CHATML.replace(
        "{{ m.content }}",
        "{% if m.tool_calls %}{{ m.tool_calls }}{% else %}{{ m.content }}{% endif %}",
    )
    call = {"type": "function", "function": {"name": "f", "arguments": json.dumps({"a": 1})}}
    only_call = turns(("user", "a"), ("assistant", ""), tool_calls=[call])
    assert "'a': 1" in written(chat_tokenizer, data_recipe("x"), only_call)[0]
    with refuses(DataError, names=["message 2", "assistant"]):
        row = turns(("user", "a"), ("assistant", "I look"), tool_calls=[call])
        written(chat_tokenizer, data_recipe("x"), row)


def test_a_template_that_refuses_the_probe_is_judged_by_the_messages(
    chat_tokenizer: Fast, data_recipe: Make, refuses: Refuses
) -> None:
    chat_tokenizer.chat_template = "{% if 'probe' in messages[0].content %}{{ 1 // 0 }}{% endif %}"
    chat_tokenizer.chat_template += CHATML
    Template.of(chat_tokenizer)
    assert "sat" in written(chat_tokenizer, data_recipe("x"), SYSTEM)[0]
    chat_tokenizer.chat_template += "{# #}" + NO_SYSTEM
    chat_tokenizer.chat_template = chat_tokenizer.chat_template.replace(CHATML, NO_SYSTEM, 1)
    with refuses(DataError, names=["message 1", "system"]):
        written(chat_tokenizer, data_recipe("x"), SYSTEM)


def test_a_thought_may_stand_under_several_names_but_not_another_one(
    chat_tokenizer: Fast, data_recipe: Make, refuses: Refuses
) -> None:
    """As logs of several tools have it."""
    chat_tokenizer.chat_template = thinking("thinking")
    same, data = {"reasoning_content": "I think", "reasoning": "I think"}, data_recipe("x")
    said = (("user", "the cat"), ("assistant", "sat"))
    _, learned = written(chat_tokenizer, data, turns(*said, **same))
    assert "I think" in learned
    with refuses(DataError, names=["reasoning", "would be lost"]):
        written(chat_tokenizer, data, turns(*said, **{**same, "reasoning": "or not"}))
