"""A byte-level BPE tokenizer as a GGUF file describes it.

llama.cpp splits text by rules of its own that a file names (`tokenizer.ggml.pre`), so a tokenizer
whose rules have no name there is refused: the model would read other tokens than it was trained on.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from brimful.base.errors import RequestError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Kinds of tokens in GGUF (llama.cpp, `llama_token_type`)."""
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITTING: Mapping[tuple[str, ...], str] = {
    ("gpt2 words",): "gpt-2",
    ("digits", "gpt2 words"): "smollm",
    (_WORDS + r"\p{N}{1,3}" + _REST, "bytes"): "llama-bpe",
    (_WORDS + r"\p{N}" + _REST, "bytes"): "qwen2",
}
"""How a tokenizer splits text before it merges -> llama.cpp's name of it (src/llama-vocab.cpp)."""
TAKES_WHOLE_WORDS = {"llama-bpe"}
"""Rules with which llama.cpp looks a whole word up before it merges (`ignore_merges`)."""


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of a tokenizer.

    Attributes:
        splitting: llama.cpp's name of how text is split.
        tokens: By id; ids that no text gives have a placeholder.
        kinds: Of each token.
        merges: `a b`, in the order in which they apply.
        begins: Whether a text begins with the token `bos_token_id`.
    """

    splitting: str
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    merges: tuple[str, ...]
    begins: bool


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, size: int) -> Vocabulary:
    """Return the vocabulary of a tokenizer.

    Args:
        size: Rows of the model's embedding; tokens beyond them are left out.

    Raises:
        RequestError: llama.cpp has no tokenizer that does the same.
    """
    values = json.loads(tokenizer.backend_tokenizer.to_str())
    splitting = _splitting(values)
    by_id = {id_: token for token, id_ in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens, kinds = [], []
    for id_ in range(size):
        kind = NORMAL
        if id_ not in by_id:
            kind = UNUSED
        elif id_ in added:
            kind = CONTROL if added[id_].special else USER_DEFINED
        tokens.append(by_id.get(id_, f"[PAD{id_}]"))
        kinds.append(kind)
    merges = tuple(
        each if isinstance(each, str) else " ".join(each) for each in values["model"]["merges"]
    )
    first = tokenizer("a")["input_ids"][:1]
    begins = tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]
    return Vocabulary(splitting, tuple(tokens), tuple(kinds), merges, begins)


def _splitting(values: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of how a tokenizer (its tokenizer.json) splits text."""
    model = values["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise _not_written("it is not a byte-level BPE tokenizer")
    if (values.get("normalizer") or {"type": "NFC"})["type"] != "NFC":
        raise _not_written("it changes texts first (its normalizer), which llama.cpp would not do")
    parts = tuple(_part(each) for each in _flat(values.get("pre_tokenizer") or {"type": "nothing"}))
    name = SPLITTING.get(parts)
    if name is None or bool(model.get("ignore_merges")) != (name in TAKES_WHOLE_WORDS):
        raise _not_written("llama.cpp has no rule that splits text as it does")
    return name


def _flat(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(part["pretokenizers"]) if part["type"] == "Sequence" else [part]


def _part(part: Mapping[str, Any]) -> str:
    """Return a step of splitting in a word, or its pattern; its JSON where it is another one."""
    if part["type"] == "ByteLevel" and not part["add_prefix_space"]:
        return "gpt2 words" if part["use_regex"] else "bytes"
    if part["type"] == "Digits" and part["individual_digits"]:
        return "digits"
    is_isolated = part.get("behavior") == "Isolated" and not part.get("invert")
    if part["type"] == "Split" and is_isolated:
        return str(part["pattern"].get("Regex", part))
    return json.dumps(part, sort_keys=True)


def _not_written(reason: str) -> RequestError:
    return RequestError(
        f"the tokenizer cannot be written into a GGUF file: {reason}. Written are byte-level BPE"
        " tokenizers as of GPT-2, SmolLM, Llama 3 and Qwen 2. For another one, run `brimful export`"
        " without --gguf and convert its folder with llama.cpp's convert_hf_to_gguf.py."
    )
