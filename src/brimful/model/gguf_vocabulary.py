"""A BPE tokenizer as a GGUF file describes it: of bytes, or as SentencePiece makes them.

llama.cpp splits text by rules of its own that a file names (`tokenizer.ggml.pre`), so a tokenizer
whose rules have no name there is refused: the model would read other tokens than it was trained on.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from brimful.base.errors import RequestError
from brimful.base.types import Json, Numbers

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITTING: Mapping[tuple[str, ...], str] = {
    ("gpt2 words",): "gpt-2",
    ("digits", "gpt2 words"): "smollm",
    (_WORDS + r"\p{N}{1,3}" + _REST, "bytes"): "llama-bpe",
    (_WORDS + r"\p{N}" + _REST, "bytes"): "qwen2",
}
"""How a tokenizer splits text before it merges -> llama.cpp's name of it (src/llama-vocab.cpp)."""
LOOKS_UP_WORDS = {"llama-bpe": "dbrx"}
"""Rules with which llama.cpp looks a whole word up before it merges (`ignore_merges`), and the name
of those that split alike and do not.
"""
SPACE = "\u2581"
BYTE = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of a tokenizer.

    Attributes:
        splitting: llama.cpp's name of how text is split.
        tokens: Tokens by id; ids that no text gives have a placeholder.
        kinds: Kind of each token.
        merges: `a b`, in the order in which they apply.
        begins: Whether a text begins with the token `bos_token_id`.
        scores: Scores of SentencePiece's tokens, the higher the earlier they are merged; else
            empty.
        begins_with_space: Whether a space is put before each text, of SentencePiece's.
    """

    splitting: str
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    merges: tuple[str, ...]
    begins: bool
    scores: tuple[float, ...] = ()
    begins_with_space: bool = False

    @property
    def model(self) -> str:
        """llama.cpp's name of the algorithm."""
        return "llama" if self.scores else "gpt2"


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, size: int) -> Vocabulary:
    """Return the vocabulary of a tokenizer.

    Args:
        size: Rows of the model's embedding; tokens beyond them are left out.

    Raises:
        RequestError: llama.cpp has no tokenizer that does the same.
    """
    values = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = [
        tuple(each.split(" ", 1)) if isinstance(each, str) else tuple(each)
        for each in values["model"].get("merges", ())
    ]
    by_id = {id_: token for token, id_ in tokenizer.get_vocab().items()}
    scores: tuple[float, ...] = ()
    begins_with_space, splitting = False, "default"
    if values["model"]["type"] == "BPE" and values["model"].get("byte_fallback"):
        begins_with_space = _begins_with_space(values)
        ranks = _ranks(merges, by_id.values())
        scores = tuple(-ranks.get(by_id.get(id_, ""), 1000.0) for id_ in range(size))
    else:
        splitting = _splitting(values)
    first = tokenizer("a")["input_ids"][:1]
    return Vocabulary(
        splitting,
        tuple(by_id.get(id_, f"[PAD{id_}]") for id_ in range(size)),
        tuple(_kinds(tokenizer, by_id, size, of_bytes=bool(scores))),
        tuple(map(" ".join, merges)),
        tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id],
        scores,
        begins_with_space,
    )


def _kinds(
    tokenizer: PreTrainedTokenizerBase, by_id: Mapping[int, str], size: int, *, of_bytes: bool
) -> Iterator[int]:
    """Yield the kind of each token. `of_bytes`: some spell a byte, one stands for the unknown."""
    from gguf import TokenType  # noqa: PLC0415 - for files alone

    added = tokenizer.added_tokens_decoder
    for id_ in range(size):
        if id_ not in by_id:
            yield TokenType.UNUSED
        elif of_bytes and by_id[id_] == tokenizer.unk_token:
            yield TokenType.UNKNOWN
        elif id_ in added:
            yield TokenType.CONTROL if added[id_].special else TokenType.USER_DEFINED
        elif of_bytes and BYTE.fullmatch(by_id[id_]):
            yield TokenType.BYTE
        else:
            yield TokenType.NORMAL


def _begins_with_space(values: Json) -> bool:
    """Return whether a tokenizer of SentencePiece's kind (its tokenizer.json) puts a space before
    each text between special tokens.
    """
    steps = [*_flat(values["normalizer"]), *_flat(values["pre_tokenizer"])]
    found = [step for step in map(_spacing, steps) if step]
    known = {("space", "marks"): True, ("always",): True, ("marks",): False, ("never",): False}
    if tuple(found) not in known:
        raise _not_written(f"llama.cpp prepares no text as it does ({', '.join(found)})")
    return known[tuple(found)]


def _spacing(step: Json) -> str:
    """Return what a step does to spaces: a word for those of SentencePiece, nothing for one that
    does nothing, else its JSON.
    """
    if step["type"] == "Metaspace" and step["replacement"] == SPACE and not step.get("split"):
        return str(step["prepend_scheme"])
    known = {
        ("Prepend", SPACE): "space",
        ("Replace", SPACE): "marks",
        ("Split", None): "",  # at spaces, of which none are left
    }
    text = step.get("content", step.get("prepend"))
    at_spaces = step.get("pattern", {"String": " "}) == {"String": " "}
    return known.get((step["type"], text), json.dumps(step)) if at_spaces else json.dumps(step)


def _ranks(merges: Iterable[tuple[str, ...]], tokens: Iterable[str]) -> Numbers:
    """Return when each token is merged: llama.cpp merges whatever two tokens make one, by the score
    of that one.

    Raises:
        RequestError: the tokenizer merges other pairs, or one token's at different times.
    """
    made = [key for key, _ in itertools.groupby(map("".join, merges))]
    known = set(tokens)
    possible = sum(
        token[:cut] in known and token[cut:] in known
        for token in set(made)
        for cut in range(1, len(token))
    )
    if len(set(made)) < len(made) or possible != sum(1 for _ in merges):
        raise _not_written("it merges other pairs of tokens than llama.cpp would")
    return {token: float(rank) for rank, token in enumerate(made)}


def _splitting(values: Json) -> str:
    """Return llama.cpp's name of how a tokenizer (its tokenizer.json) splits text."""
    model = values["model"]
    if model["type"] != "BPE":
        raise _not_written("it is no BPE tokenizer")
    if (values.get("normalizer") or {"type": "NFC"})["type"] != "NFC":
        raise _not_written("it changes texts first (its normalizer), which llama.cpp would not do")
    parts = tuple(_part(each) for each in _flat(values.get("pre_tokenizer")))
    name = SPLITTING.get(parts)
    if name is not None and not model.get("ignore_merges"):
        name = LOOKS_UP_WORDS.get(name, name)
    elif name not in LOOKS_UP_WORDS:
        raise _not_written("llama.cpp has no rule that splits text as it does")
    return str(name)


def _flat(part: Json | None) -> list[Json]:
    if part is None:
        return []
    return next((part[key] for key in ("pretokenizers", "normalizers") if key in part), [part])


def _part(part: Json) -> str:
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
        " tokenizers as of GPT-2, SmolLM, Llama 3, Phi-4 and Qwen, and those of SentencePiece as of"
        " Llama 2 and Gemma. For another one, run `brimful export`"
        " without --gguf and convert its folder with llama.cpp's convert_hf_to_gguf.py."
    )
