"""What is learned of an example, how it becomes ids, and where generation starts and stops."""

import json
from dataclasses import replace
from typing import Any

import pytest
from fixture_types import Refuses
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from brimful.base.errors import DataError
from brimful.data import chat_template
from brimful.data.chat import EncodedExample, Template
from brimful.data.conversations import only_read
from brimful.data.formats import Example, Message, Prompt

Fast = PreTrainedTokenizerFast
USER, SYSTEM = Message("user", "the cat"), Message("system", "sat on the mat")

LLAMA_2 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content']"
    " + ' [/INST]' }}{% else %}{{ ' ' + m['content'] | trim + ' ' + eos_token }}{% endif %}{%"
    " endfor %}"
)
GEMMA = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{%"
    " endif %}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim +"
    " '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%"
    " endif %}"
)
FORGETFUL = (
    "{% for m in messages %}{{ m['role'] + ': ' + ('thinks, ' if loop.last and m['role'] =="
    " 'assistant' else '') + m['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}{{"
    " 'assistant: ' }}{% endif %}"
)
LOOPS = ("{% for n in range(99999) %}", "{% endfor %}")
DATED = (
    "{{ strftime_now('%d %B %Y') }}{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor"
    " %}{% if add_generation_prompt %}assistant{% endif %}"
)


def example(prompt: Prompt | None, completion: str, *, given: bool = False) -> Example:
    """With `given`, answers in the prompt are not learned."""
    if isinstance(prompt, tuple) and given:
        prompt = only_read(prompt, len(prompt))
    return Example(prompt, completion, "row 1", "")


def shown(tokenizer: Fast, encoded: EncodedExample) -> tuple[str, str]:
    """The whole text, and the text that is learned, special tokens included."""
    learned = [
        token for token, is_one in zip(encoded.ids, encoded.is_target, strict=True) if is_one
    ]
    return tokenizer.decode(encoded.ids), tokenizer.decode(learned)


def test_a_text_prompt_stands_as_it_is_and_its_completion_ends_with_end_of_text(
    tokenizer: Fast,
) -> None:
    """No heading, no blank in between; bytes are those of the completion."""
    template = Template.of(tokenizer)
    (encoded,) = template.encode([example("the cat", " sät")])
    assert shown(tokenizer, encoded) == ("the cat sät<|endoftext|>", " sät<|endoftext|>")
    assert encoded.num_bytes == len(" sät".encode())
    assert template.prompt_ids("the cat") == encoded.ids[: -sum(encoded.is_target)]


def test_messages_stand_under_headings_without_a_chat_template(tokenizer: Fast) -> None:
    """Every answer is learned, each with its end."""
    template = Template.of(tokenizer)
    (encoded,) = template.encode(
        [example((SYSTEM, USER, Message("assistant", "one"), USER), "two")]
    )
    begin = "sat on the mat\n\n### Instruction:\nthe cat\n\n### Response:\n"
    rest = "### Instruction:\nthe cat\n\n### Response:\n"
    assert shown(tokenizer, encoded) == (
        f"{begin}one<|endoftext|>{rest}two<|endoftext|>",
        "one<|endoftext|>two<|endoftext|>",
    )
    assert (template.style, template.stop_ids, encoded.num_bytes) == ("plain", {0}, 6)


def test_messages_follow_the_chat_template_where_there_is_one(chat_tokenizer: Fast) -> None:
    """Learned are the answers up to the token that ends the turn; what the template writes behind
    the last one is cut.
    """
    template = Template.of(chat_tokenizer)
    (encoded,) = template.encode(
        [example((SYSTEM, USER, Message("assistant", "one"), USER), "two")]
    )
    user, system = (
        "<|im_start|>user\nthe cat<|im_end|>\n",
        "<|im_start|>system\nsat on the mat<|im_end|>\n",
    )
    answer = "<|im_start|>assistant\n{}<|im_end|>"
    assert shown(chat_tokenizer, encoded) == (
        f"{system}{user}{answer.format('one')}\n{user}{answer.format('two')}",
        "one<|im_end|>two<|im_end|>",
    )
    assert (template.style, template.stop_ids, encoded.num_bytes) == ("chat", {0, 263}, 6)


def test_the_ids_are_those_transformers_makes_of_the_conversation(chat_tokenizer: Fast) -> None:
    """Prompt and whole, where no word runs over a border."""
    turns = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "the dog"}]
    template = Template.of(chat_tokenizer, "chat")
    whole = chat_tokenizer.apply_chat_template(turns, return_dict=False)
    assert (
        template.encode([example((USER,), "the dog")])[0].ids
        == whole[: whole.index(263, whole.index(263) + 1) + 1]
    )
    assert template.prompt_ids((USER,)) == chat_tokenizer.apply_chat_template(
        turns[:1], add_generation_prompt=True, return_dict=False
    )


@pytest.mark.parametrize("choice", ["plain", "chat"])
@pytest.mark.parametrize(
    "prompt", ["the cat", "", (USER,), (SYSTEM, USER), (USER, Message("assistant", "one"), USER)]
)
def test_generation_starts_from_the_very_ids_that_stood_before_the_answer(
    chat_tokenizer: Fast, choice: Any, prompt: Prompt
) -> None:
    """Also in the middle of a word, and after earlier answers."""
    template = Template.of(chat_tokenizer, choice)
    (encoded,) = template.encode([example(prompt, "t", given=True)])
    ids = template.prompt_ids(prompt)
    assert ids
    assert encoded.ids[: len(ids)] == ids
    assert encoded.is_target == [False] * len(ids) + [True] * (len(encoded.ids) - len(ids))


def test_given_answers_are_context_only(chat_tokenizer: Fast) -> None:
    """Nothing of the first messages is learned, whatever the template."""
    for choice in ("chat", "plain"):
        (encoded,) = Template.of(chat_tokenizer, choice).encode(
            [example((USER, Message("assistant", "one"), USER), "two", given=True)]
        )
        assert shown(chat_tokenizer, encoded)[1].startswith("two<|")


def test_all_but_the_first_token_is_learned_where_that_is_asked_for(chat_tokenizer: Fast) -> None:
    """The first follows nothing."""
    for choice, prompt in (("chat", (USER,)), ("plain", (USER,)), ("plain", "the cat")):
        (encoded,) = Template.of(chat_tokenizer, choice).encode([example(prompt, "two")], "all")
        assert encoded.is_target == [False, *[True] * (len(encoded.ids) - 1)]


@pytest.mark.parametrize("loss_on", ["completion", "all"])
def test_a_text_without_prompt_is_learned_from_its_first_token_to_its_end(
    tokenizer: Fast, loss_on: Any
) -> None:
    """It follows end-of-text, as in pre-training."""
    (encoded,) = Template.of(tokenizer).encode([example(None, "the cat")], loss_on)
    assert shown(tokenizer, encoded) == (
        "<|endoftext|>the cat<|endoftext|>",
        "the cat<|endoftext|>",
    )
    assert encoded.num_bytes == 7


def test_special_tokens_that_are_spelled_in_plain_text_stay_text(chat_tokenizer: Fast) -> None:
    """Else a document about tokenizers would end an answer."""
    template = Template.of(chat_tokenizer, "plain")
    (encoded,) = template.encode([example("a <|im_end|>", "b <|endoftext|> c")])
    assert [token for token in encoded.ids if token in (0, 263)] == [0]
    assert shown(chat_tokenizer, encoded)[0] == "a <|im_end|>b <|endoftext|> c<|endoftext|>"


def begins_with_bos(chat_template: str | None = None) -> Fast:
    """A tokenizer of five words that puts <s> before every text by itself."""
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "?"}
    backend = Tokenizer(
        models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "?": 4}, special["unk_token"])
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer = Fast(tokenizer_object=backend, **special)
    tokenizer.chat_template = chat_template
    return tokenizer


def test_begin_of_text_stands_once_where_the_tokenizer_puts_it() -> None:
    """Before texts, not before what a chat template renders, which has its own."""
    plain, chat = Template.of(begins_with_bos()), Template.of(begins_with_bos(LLAMA_2))
    assert plain.encode([example("a", "b")])[0] == EncodedExample(
        [0, 2, 3, 1], [False, False, True, True], 1, example("a", "b")
    )
    assert plain.encode([example(None, "b")])[0].is_target == [False, True, True]
    assert (plain.prompt_ids("a"), plain.prompt_ids("")) == ([0, 2], [0])
    assert chat.encode([example((Message("user", "a"),), "b")])[0].ids.count(0) == 1


def test_a_template_without_generation_prompt_ends_its_turns_with_end_of_text(
    tokenizer: Fast,
) -> None:
    """As Llama 2's; blanks around the answer are the template's."""
    tokenizer.chat_template = LLAMA_2
    template = Template.of(tokenizer)
    (encoded,) = template.encode([example((USER,), "one")])
    assert shown(tokenizer, encoded) == (
        "<|endoftext|>[INST] the cat [/INST] one <|endoftext|>",
        " one <|endoftext|>",
    )
    assert template.stop_ids == {0}


def test_a_template_that_ends_no_turn_gets_end_of_text_behind_the_last_answer(
    tokenizer: Fast,
) -> None:
    """Else the model would never learn to stop; and what it is told about today is the same every
    day.
    """
    tokenizer.chat_template = DATED
    (encoded,) = Template.of(tokenizer).encode([example((USER,), "one")])
    assert shown(tokenizer, encoded) == (
        "1 January 2026userthe catassistantone<|endoftext|>",
        "one<|endoftext|>",
    )


def test_where_a_template_rewrites_earlier_messages_each_answer_is_an_example(
    tokenizer: Fast,
) -> None:
    """With what stands before it when it is generated; what follows is learned from as well."""
    tokenizer.chat_template = FORGETFUL
    template = Template.of(tokenizer)
    talk = (USER, Message("assistant", "one"), USER)
    encoded = template.encode([example(talk, "two")])
    assert [shown(tokenizer, each)[1] for each in encoded] == [
        "thinks, one\n<|endoftext|>",
        "thinks, two\n<|endoftext|>",
    ]
    assert [each.example for each in encoded] == [
        example((USER,), "one"),
        example(talk, "two", given=True),
    ]
    for each in encoded:
        opened = template.prompt_ids(each.example.prompt or "")
        assert each.ids[: len(opened)] == opened
    for turns, given in (("last", False), ("each", True)):
        (last,) = template.encode([example(talk, "two", given=given)], turns=turns)
        assert last == encoded[1]
    (whole,) = template.encode([example(talk, "two")], "all")
    assert (whole.ids, all(whole.is_target[1:])) == (encoded[1].ids, True)


def test_answers_that_stay_as_they_are_share_an_example(tokenizer: Fast) -> None:
    """A template that forgets thoughts once a user speaks again keeps those of calls before."""
    tokenizer.chat_template = FORGETFUL.replace("loop.last", "loop.index0 > last").replace(
        "{% for",
        "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% set last = ns.last %}{% for",
        1,
    )
    talk = (USER, Message("assistant", "a"), SYSTEM, Message("assistant", "b"), USER)
    encoded = Template.of(tokenizer).encode([example(talk, "c")])
    assert [shown(tokenizer, each)[1] for each in encoded] == [
        "thinks, a\nthinks, b\n<|endoftext|>",
        "thinks, c\n<|endoftext|>",
    ]


def test_the_last_answer_only_is_learned_where_that_is_asked_for(chat_tokenizer: Fast) -> None:
    talk = (USER, Message("assistant", "one"), USER)
    for choice in ("chat", "plain"):
        template = Template.of(chat_tokenizer, choice)
        (encoded,) = template.encode([example(talk, "two")], turns="last")
        assert encoded == template.encode([example(talk, "two", given=3)])[0]


def test_what_a_template_writes_behind_its_last_answer_only_is_cut(chat_tokenizer: Fast) -> None:
    """As Phi-3 writes end-of-text; all answers are learned in one example all the same."""
    chat_tokenizer.chat_template = f"{chat_tokenizer.chat_template}{{% if not add_generation_prompt %}}<|endoftext|>{{% endif %}}"
    (encoded,) = Template.of(chat_tokenizer).encode(
        [example((USER, Message("assistant", "one"), USER), "two")]
    )
    text, learned = shown(chat_tokenizer, encoded)
    assert learned == "one<|im_end|>two<|im_end|>"
    assert "<|endoftext|>" not in text
    assert encoded.num_bytes == 6


def test_a_conversation_may_begin_with_the_assistant(chat_tokenizer: Fast) -> None:
    """Its greeting is learned behind the words that open an answer."""
    for choice in ("chat", "plain"):
        template = Template.of(chat_tokenizer, choice)
        (encoded,) = template.encode([example((Message("assistant", "one"), USER), "two")])
        text, learned = shown(chat_tokenizer, encoded)
        begin = "<|im_start|>assistant\n" if choice == "chat" else "### Response:\n"
        assert text.startswith(f"{begin}one")
        assert learned.count("one") == learned.count("two") == 1
        assert encoded.ids[: len(template.prompt_ids(()))] == template.prompt_ids(())


def test_messages_that_a_chat_template_refuses_are_named(
    chat_tokenizer: Fast, refuses: Refuses
) -> None:
    """With its own words."""
    chat_tokenizer.chat_template = GEMMA
    with refuses(DataError, names=["row 1"]):
        Template.of(chat_tokenizer).encode([example((SYSTEM, USER), "one")])


def test_the_recipe_chooses_the_template(chat_tokenizer: Fast, refuses: Refuses) -> None:
    """auto: chat where there is one; plain also then."""
    assert [Template.of(chat_tokenizer, choice).style for choice in ("auto", "chat", "plain")] == [
        "chat",
        "chat",
        "plain",
    ]
    assert Template.of(chat_tokenizer, "plain").identity != Template.of(chat_tokenizer).identity
    chat_tokenizer.chat_template = None
    with refuses(DataError, names=["data.template=chat"]):
        Template.of(chat_tokenizer, "chat")


def test_further_stop_tokens_come_from_the_recipe_and_the_generation_config(
    chat_tokenizer: Fast,
    refuses: Refuses,
) -> None:
    """A stop token may be special or any single token, such as a line break."""
    line_break = chat_tokenizer.encode("\n")
    template = Template.of(chat_tokenizer, "plain", stop=["<|im_end|>", "\n"], end_ids=[5])
    assert template.stop_ids == {0, 5, 263, *line_break}
    with refuses(DataError, names=["sample.stop", "'<|imend|>'", "'<|im_end|>'"]):
        Template.of(chat_tokenizer, stop=["<|imend|>"])


def test_a_tokenizer_without_end_of_text_is_refused(tokenizer: Fast, refuses: Refuses) -> None:
    """With the place to set it."""
    tokenizer.eos_token = None
    with refuses(DataError, names=["tokenizer_config.json"]):
        Template.of(tokenizer)


TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ '<|im_start|>' +"
    " m['role'] + '\\n' + m['content'] }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif"
    " %}{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{"
    " '<|im_start|>assistant\\n' }}{% endif %}"
)
LOOK_UP = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "cat"}}}
CALL = Message("assistant", "", json.dumps({"tool_calls": [LOOK_UP]}))


def test_tools_and_their_calls_are_given_to_a_chat_template_that_knows_them(
    chat_tokenizer: Fast,
) -> None:
    """The call is learned; tools and the tool's answer are read only."""
    chat_tokenizer.chat_template = TOOLS
    template = Template.of(chat_tokenizer)
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
    asked = Message("user", "a cat", json.dumps({"tools": [tool]}))
    talk = (asked, CALL, Message("tool", "an animal"))
    (encoded,) = template.encode([example(talk, "It is one.")])
    text = chat_tokenizer.decode(encoded.ids)
    pairs = zip(encoded.ids, encoded.is_target, strict=True)
    learned = chat_tokenizer.decode([token for token, is_learned in pairs if is_learned])
    assert text.startswith(json.dumps([tool]))
    assert "<|im_start|>tool\nan animal<|im_end|>" in text
    assert json.dumps([LOOK_UP]) in learned
    assert learned.endswith("It is one.<|im_end|>")
    assert "an animal" not in learned
    opened = template.prompt_ids(talk)
    assert encoded.ids[: len(opened)] == opened


def test_a_call_of_a_tool_may_be_the_answer(chat_tokenizer: Fast) -> None:
    """It has no text."""
    chat_tokenizer.chat_template = TOOLS
    called = replace(example((USER,), ""), extra=CALL.extra)
    (encoded,) = Template.of(chat_tokenizer).encode([called])
    assert "look_up" in chat_tokenizer.decode(encoded.ids)


@pytest.mark.parametrize("style", ["chat", "plain"])
def test_tools_that_would_be_lost_are_refused(
    chat_tokenizer: Fast, style: str, refuses: Refuses
) -> None:
    """ChatML writes any role, but no calls; plain headings have no place for them."""
    template = Template.of(chat_tokenizer, "chat" if style == "chat" else "plain")
    with refuses(DataError, names=["row 1", "tool"]):
        template.encode([example((USER, CALL, Message("tool", "x")), "one")])
    told = Message("user", "x", json.dumps({"tools": [{"name": "look_up"}]}))
    with refuses(DataError, names=["row 1", "tools"]):
        template.encode([example((told,), "one")])
    template.encode([example((USER, Message("tool", "x")), "one")])


def test_a_template_that_leaves_out_tools_answers_is_refused(
    chat_tokenizer: Fast, refuses: Refuses
) -> None:
    """Where another role is passed over in silence, the row would lose its middle."""
    chat_tokenizer.chat_template = (
        str(chat_tokenizer.chat_template)
        .replace("{{ '<|im_start|>' + m", "{% if m.role != 'tool' %}{{ '<|im_start|>' + m", 1)
        .replace("}}{% endfor %}", "}}{% endif %}{% endfor %}")
    )
    with refuses(DataError):
        Template.of(chat_tokenizer).encode([example((USER, Message("tool", "x")), "one")])


def test_a_developer_is_the_system_where_the_template_does_not_know_one(
    chat_tokenizer: Fast, tokenizer: Fast
) -> None:
    """OpenAI's newer name of the same role."""
    developer, system = Message("developer", "Be short."), Message("system", "Be short.")
    for made in (Template.of(chat_tokenizer), Template.of(tokenizer, "plain")):
        (one,), (other,) = (made.encode([example((m, USER), "x")]) for m in (developer, system))
        assert one.ids == other.ids
    chat_tokenizer.chat_template = f"{chat_tokenizer.chat_template}{{# developer #}}"
    (encoded,) = Template.of(chat_tokenizer).encode([example((developer, USER), "x")])
    assert "<|im_start|>developer" in chat_tokenizer.decode(encoded.ids)


@pytest.mark.parametrize(
    "template",
    [
        "{% for n in range(10**9) %}x{% endfor %}",
        "{{ 1 // 0 }}",
        "{{ messages[0].no.such }}",
        "{{ undefined() }}",
        "{% for message in messages %}{{ message.content + 1 }}{% endfor %}",
        f"{LOOPS[0] * 3}x{LOOPS[1] * 3}",
    ],
    ids=lambda template: None if "range(99999)" not in template else "loops within loops",
)
def test_a_template_that_fails_is_refused(
    chat_tokenizer: Fast, template: str, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "RENDER_LIMIT_S", 0.5)
    chat_tokenizer.chat_template = template
    with refuses(DataError, names=["chat template", "data.template=plain"]):
        Template.of(chat_tokenizer)


ASKED = "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"


def test_texts_that_are_rendered_already_keep_their_tokens(chat_tokenizer: Fast) -> None:
    """A prompt, and a text: as the messages would be, and a missing end of the answer is added."""
    template = Template.of(chat_tokenizer)
    (same,) = template.encode([example((USER,), "sat")])
    for completion in ("sat", "sat<|im_end|>", "sat<|im_end|>\n"):
        (encoded,) = template.encode([example(ASKED, completion)])
        assert (encoded.ids, encoded.is_target) == (same.ids, same.is_target)
    assert template.prompt_ids(ASKED) == template.prompt_ids((USER,))
    for end in ("", "<|im_end|>\n", f"<|im_end|>\n{ASKED[-22:]}"):
        (text,) = template.encode([example(None, f"{ASKED}sat{end}")])
        assert (text.ids, text.is_target) == (same.ids, [False] + [True] * (len(same.ids) - 1))


def test_a_token_that_begins_texts_and_turns_is_among_those_of_a_rendered_text(
    chat_tokenizer: Fast,
) -> None:
    """As with SmolLM2, whose begin of text is <|im_start|>."""
    chat_tokenizer.add_special_tokens({"bos_token": "<|im_start|>"})
    template = Template.of(chat_tokenizer)
    assert template.is_rendered(ASKED)
    assert not template.is_rendered("a text with <|im_end|> in it.")


@pytest.mark.parametrize(("text", "is_rendered"), [("a<|im_end|>", False), (ASKED, True)])
def test_a_text_that_spells_but_some_of_the_tokens_stays_text(
    chat_tokenizer: Fast, text: str, is_rendered: bool
) -> None:
    """And so does any text without a chat template."""
    assert Template.of(chat_tokenizer).is_rendered(text) is is_rendered
    assert not Template.of(chat_tokenizer, "plain").is_rendered(text)
    assert "<|im_end|>" in Template.of(chat_tokenizer, "plain").spelled(text)
