"""Where an answer stands in what a chat template writes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Refuses
from transformers import PreTrainedTokenizerFast

from brimful.base.errors import DataError
from brimful.data.chat_template import AnswerPlace, ChatTemplate, use_own_chat_template
from brimful.data.formats import Message
from brimful.recipe import DataRecipe

Fast = PreTrainedTokenizerFast
USER = Message("user", "the cat")
OPENED = "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"


def answer(text: str) -> tuple[Message, Message]:
    return USER, Message("assistant", text)


@pytest.fixture
def opens_thought(chat_tokenizer: Fast) -> Fast:
    """As DeepSeek-R1's: the generation prompt opens a thought, and answers are written without."""
    template = str(chat_tokenizer.chat_template).replace(
        "assistant\\n' }}{% endif %}", "assistant\\n<think>\\n' }}{% endif %}"
    )
    template = template.replace("m['content']", "m['content'].split('</think>')[-1]")
    chat_tokenizer.chat_template = template
    return chat_tokenizer


@pytest.mark.parametrize(
    ("text", "learned"),
    [
        ("<think>\nit is\n</think>\n\none", "it is\n</think>\n\none"),
        ("it is\n</think>\n\none", "it is\n</think>\n\none"),
        ("one", "\n</think>\n\none"),
    ],
)
def test_an_answer_goes_on_in_the_thought_that_its_generation_starts_in(
    opens_thought: Fast, text: str, learned: str
) -> None:
    """What the row holds of a thought is learned; without one the thought is closed."""
    template = ChatTemplate(opens_thought)
    assert template.turn(answer(text), 1, "row 1") == AnswerPlace(
        f"{OPENED}<think>\n", f"{learned}<|im_end|>\n"
    )
    assert template.opens_thought


CLOSES = "assistant\\n' }}{% if not enable_thinking %}{{ '<think></think>' }}{% endif %}{% endif %}"


def test_an_answer_that_is_not_written_where_it_would_be_generated_is_refused(
    chat_tokenizer: Fast, data_recipe: Callable[..., DataRecipe], refuses: Refuses
) -> None:
    """As where the generation prompt says that there is no thought, and the row has one; the advice
    helps.
    """
    chat_tokenizer.chat_template = str(chat_tokenizer.chat_template).replace(
        "assistant\\n' }}{% endif %}", CLOSES
    )
    with refuses(DataError, names=["row 1", "message 2", "enable_thinking: true"]):
        ChatTemplate(chat_tokenizer).turn(answer("one"), 1, "row 1")
    data = data_recipe("a.jsonl", template_options={"enable_thinking": True})
    use_own_chat_template(data, chat_tokenizer)
    assert ChatTemplate(chat_tokenizer).turn(answer("one"), 1, "row 1").before == OPENED


def test_an_own_template_that_cannot_be_used_is_refused(
    chat_tokenizer: Fast,
    data_recipe: Callable[..., DataRecipe],
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    """A missing file, an option that nothing reads, or no template to read it."""
    own = str(tmp_path / "own.jinja")
    with refuses(DataError, names=["data.chat_template", own]):
        use_own_chat_template(data_recipe("a.jsonl", chat_template=own), chat_tokenizer)
    data = data_recipe("a.jsonl", template_options={"enable_thinkin": False})
    with refuses(DataError, names=["'enable_thinkin'"]):
        use_own_chat_template(data, chat_tokenizer)
    chat_tokenizer.chat_template = None
    with refuses(DataError, names=["data.chat_template=FILE"]):
        use_own_chat_template(data, chat_tokenizer)


def test_a_template_that_writes_lists_of_parts_is_given_them(chat_tokenizer: Fast) -> None:
    """As of models that see images; it would write nothing of a text."""
    given = ChatTemplate(chat_tokenizer)
    chat_tokenizer.chat_template = str(chat_tokenizer.chat_template).replace(
        "m['content']", "m['content'][0]['text']"
    )
    parts = ChatTemplate(chat_tokenizer)
    assert parts.turn(answer("one"), 1, "") == given.turn(answer("one"), 1, "")
    assert parts.identity == {"chat_template": chat_tokenizer.chat_template, "parts": True}
    assert given.identity == {"chat_template": given.source}


def test_a_template_that_writes_no_answer_is_refused(
    chat_tokenizer: Fast, refuses: Refuses
) -> None:
    chat_tokenizer.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    with refuses(DataError, names=["data.template=plain"]):
        ChatTemplate(chat_tokenizer)


def test_an_answer_ends_with_what_follows_it_where_the_template_writes_no_end(
    chat_tokenizer: Fast,
) -> None:
    """As GLM, which generates the beginning of the user's next turn."""
    chat_tokenizer.chat_template = str(chat_tokenizer.chat_template).replace("<|im_end|>\\n", "")
    template = ChatTemplate(chat_tokenizer)
    turn = template.turn((*answer("one"), USER, Message("assistant", "two")), 1, "row 1")
    assert turn.answer == "one<|im_start|>"
    assert template.ends == ["<|im_start|>"]


def test_the_end_is_the_last_of_several_special_tokens_in_a_row(chat_tokenizer: Fast) -> None:
    """As Cohere's end of a response and of a turn."""
    chat_tokenizer.chat_template = str(chat_tokenizer.chat_template).replace(
        "<|im_end|>\\n", "<|im_end|><|endoftext|>\\n"
    )
    assert ChatTemplate(chat_tokenizer).ends == ["<|endoftext|>"]


def test_the_place_of_a_greeting_is_found_in_a_template_that_ends_with_a_question_only(
    chat_tokenizer: Fast,
) -> None:
    """As Qwen3.5, which refuses a conversation without a user's message."""
    chat_tokenizer.chat_template = (
        "{% if messages | selectattr('role', 'eq', 'user') | list | length == 0 %}{{"
        f" raise_exception('No user query') }}}}{{% endif %}}{chat_tokenizer.chat_template}"
    )
    template = ChatTemplate(chat_tokenizer)
    system = Message("system", "be brief")
    for before, number in (((), 0), ((system,), 1)):
        talk = (*before, Message("assistant", "hello"), *answer("one"))
        turn = template.turn(talk, number, "row 1")
        assert turn.before.endswith("<|im_start|>assistant\n")
        assert turn.answer == "hello<|im_end|>\n"


@pytest.mark.parametrize(
    "attack",
    [
        "''.__class__.__mro__[1].__subclasses__()",
        "cycler.__init__.__globals__.os.system('touch ran')",
        "lipsum.__globals__['os'].popen('touch ran').read()",
        "'{0.__class__.__init__.__globals__}'.format(messages)",
        "'%s'|format(messages.append.__self__.__class__.__subclasses__())",
        "messages.append({'role': 'user', 'content': 'more'})",
        "self.__init__.__globals__",
    ],
)
def test_a_template_runs_no_code(
    chat_tokenizer: Fast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    monkeypatch.chdir(tmp_path)
    chat_tokenizer.chat_template = "{{ " + attack + " }}" + str(chat_tokenizer.chat_template)
    with pytest.raises(DataError):
        ChatTemplate(chat_tokenizer).turn(answer("one"), 1, "row 1")
    assert not (tmp_path / "ran").exists()
