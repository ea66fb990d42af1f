"""In which ways an untuned model is asked: through its chat template, as one that was made to
answer; in the words that examples begin with, as one that continues text; or both, where neither
its name nor its files tell.
"""

import re
from collections.abc import Iterable
from typing import Literal

from transformers import PreTrainedTokenizerBase

from brimful.base.errors import RequestError

Way = Literal["chat", "plain"]
Ask = Literal["auto", "chat", "plain"]

CHAT_WORDS = frozenset({"instruct", "chat", "it"})
"""Words in the names of models that were made to answer, such as Qwen2.5-0.5B-Instruct or
gemma-2-2b-it. A chat template alone does not tell: many base models carry that of their sibling.
"""


def ways_to_ask(
    choice: Ask, tokenizer: PreTrainedTokenizerBase, names: Iterable[str]
) -> tuple[Way, ...]:
    """Return how a model that was not tuned is asked; with both ways the better score counts.

    Args:
        choice: `evaluation.ask`.
        tokenizer: The model's.
        names: What the model is called: hub id, short name or folder.

    Raises:
        RequestError: the chat template is asked for and there is none.
    """
    if choice == "chat" and not tokenizer.chat_template:
        raise RequestError(
            f"evaluation.ask=chat, but the tokenizer {tokenizer.name_or_path or 'of this model'}"
            " has no chat template. Use evaluation.ask=plain, or put a chat_template.jinja beside"
            " its tokenizer.json."
        )
    if choice != "auto":
        return (choice,)
    if not tokenizer.chat_template:
        return ("plain",)
    return ("chat",) if any(map(_says_chat, names)) else ("chat", "plain")


def _says_chat(name: str) -> bool:
    last = name.rstrip("/").rpartition("/")[2].lower()
    return not CHAT_WORDS.isdisjoint(re.split(r"[^a-z0-9]+", last))
