"""What brimful learns of conversations beside what TRL learns, for every chat template that comes
with TRL: its templates for training mark the answers (`{% generation %}`).

python benchmarks/chat_templates.py   prints the table and writes its record

Tokens are bytes and the template's own special tokens, so the comparison does not depend on a
model's vocabulary. Templates are read from the installed package trl.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import trl
from jinja2 import TemplateError, UndefinedError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import get_training_chat_template, has_generation_markers

from brimful.base.errors import DataError
from brimful.data.chat import Template
from brimful.data.formats import Example, Message
from record import write_record

FOLDER = Path(trl.__file__).parent / "chat_templates"
_TODAY, _DAY = time.strftime("%d %b %Y"), "1 January 2026"
_SPECIAL = re.compile(r"<\|?[\w:▁]+\|?>|<｜[\w▁]+｜>|</[\w:]+>|\[/?[A-Z]{3,}\]|<[\w]+\|>|<\|\"\|>")


def names() -> list[str]:
    """Return the names of the templates as models have them."""
    found = sorted(path.stem for path in FOLDER.glob("*.jinja"))
    return [name for name in found if not name.endswith("_training")]


def tokenizer_of(template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, and of all that looks like a special token of the template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {byte: number for number, byte in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, **{"bos_token": "<BOS>", "eos_token": "<EOS>"}
    )
    special = sorted(set(_SPECIAL.findall(template)))
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = template
    return tokenizer


def _user(text: str) -> Message:
    return Message("user", text)


def _answer(text: str, **fields: Any) -> Message:
    return Message("assistant", text, json.dumps(fields) if fields else "")


def _thinks(text: str, thought: str) -> Message:
    """An answer with its thought under each name that a template reads."""
    return _answer(text, reasoning_content=thought, thinking=thought, reasoning=thought)


_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
_CALL: dict[str, Any] = {"id": "abcdefghi", "type": "function"}
_CALL["function"] = {"name": "add", "arguments": {"a": 1}}
CASES: Mapping[str, tuple[Message, ...]] = {
    "single": (_user("Q1?"), _answer("A1.")),
    "two turns": (_user("Q1?"), _answer("A1."), _user("Q2?"), _answer("A2.")),
    "system": (Message("system", "Be brief."), _user("Q1?"), _answer("A1.")),
    "thoughts": (_user("Q1?"), _thinks("A1.", "T1"), _user("Q2?"), _thinks("A2.", "T2")),
    "thoughts in text": (
        _user("Q1?"),
        _answer("<think>\nT1\n</think>\n\nA1."),
        _user("Q2?"),
        _answer("<think>\nT2\n</think>\n\nA2."),
    ),
    "tools": (
        Message("user", "1+1?", json.dumps({"tools": [_TOOL]})),
        _answer("", tool_calls=[_CALL]),
        Message("tool", "2", json.dumps({"name": "add", "tool_call_id": "abcdefghi"})),
        _answer("It is 2."),
    ),
    "assistant first": (_answer("Hello."), _user("Q1?"), _answer("A1.")),
}


class Learned(NamedTuple):
    """One answer: what stands before it, and what is learned of it, as text."""

    before: str
    text: str


def of_brimful(tokenizer: PreTrainedTokenizerFast, case: Sequence[Message]) -> list[Learned]:
    last = case[-1]
    example = Example(tuple(case[:-1]), last.content, "the row", "", extra=last.extra)
    encoded = Template.of(tokenizer, "chat").encode([example])
    return [each for one in encoded for each in _learned(tokenizer, one.ids, one.is_target)]


def of_trl(tokenizer: PreTrainedTokenizerFast, case: Sequence[Message]) -> list[Learned]:
    template = str(tokenizer.chat_template)
    if not has_generation_markers(template):
        template = str(get_training_chat_template(tokenizer))
    if "strftime_now" in template:  # brimful tells every model the same day
        template = f"{{% macro strftime_now(format) %}}{_DAY}{{% endmacro %}}{template}"
    encoded = _rendered(
        tokenizer, case, template, return_dict=True, return_assistant_tokens_mask=True
    )
    return _learned(tokenizer, encoded["input_ids"], encoded["assistant_masks"])


def _rendered(
    tokenizer: PreTrainedTokenizerFast, case: Sequence[Message], template: str, **options: Any
) -> Any:
    """What transformers makes of the case; content is a text, or a list where templates of models
    that see images need one.
    """
    turns = [message.to_json() for message in case]
    parts = [turn | {"content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
    given: dict[str, Any] = {"tools": case[0].fields.get("tools"), "chat_template": template}
    try:
        if case[-1].content[-3:] in tokenizer.apply_chat_template(turns, tokenize=False, **given):
            return tokenizer.apply_chat_template(turns, **given, **options)
    except (TypeError, UndefinedError):
        pass
    return tokenizer.apply_chat_template(parts, **given, **options)


def _learned(
    tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], mask: Sequence[int | bool]
) -> list[Learned]:
    found, start = [], 0
    for end in range(1, len(ids) + 1):
        if end < len(ids) and bool(mask[end]) == bool(mask[end - 1]):
            continue
        if mask[end - 1]:
            found.append(Learned(tokenizer.decode(ids[:start]), tokenizer.decode(ids[start:end])))
        start = end
    return found


class Outcome(NamedTuple):
    """How a case compares: letters of REASONS, or `=`; and what was learned, or the refusal."""

    letters: str
    brimful: list[Learned] | str
    trl: list[Learned] | str


REASONS = {
    "t": "what the template writes behind the token that ends an answer (a line break, Phi-3's"
    " end-of-text) is not learned: generation stops before it",
    "p": "the generation prompt is read, not learned: generation starts after it",
    "h": "before the answer stands what the model's own template writes then; TRL's keeps thoughts",
    "d": "the answer's own thought is learned, also where the template drops it once others follow",
    "c": "the generation prompt opens a thought, so an answer without one begins by closing it",
    "e": "an answer ends as it does when it is generated (<|return|>), not as in the history",
    "n": "the model's own template writes no empty thought there",
    "o": "the token that ends calls of tools (<|tool_response>) is learned: generation stops at it",
    "g": "the generation prompt lacks what the template writes before the answer, which is learned",
    "-": "TRL has no template for training; the text is the model's own template's",
    "r": "refused: the template leaves out tools, their calls or thoughts, which TRL does in silence",
    "q": "refused: the generation prompt closes the thought, so the answers' could not be learned",
    "x": "refused by the template itself, in both",
    "?": "not explained",
}
_OPENED = re.compile(r"<think>\s*\Z")
_THOUGHTS = re.compile(
    r"(?s)<think>.*?</think>\s*|<\|channel>thought.*?<channel\|>"
    r"|<\|channel\|>analysis.*?<\|start\|>assistant| to=self.*?<\|start\|>assistant"
)


def compared(name: str, case: str) -> Outcome:
    """Compare what is learned of a case under a template."""
    tokenizer = tokenizer_of((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
    messages = CASES[case]
    ours = _or_refusal(of_brimful, tokenizer, messages)
    theirs = _or_refusal(of_trl, tokenizer, messages)
    if isinstance(ours, str):
        letter = "r" if "would be lost" in ours else "q" if "behind the text" in ours else "?"
        if isinstance(theirs, str) and "refuses the messages" in ours:
            letter = "x"
        return Outcome(letter, ours, theirs)
    if isinstance(theirs, str):
        written = _rendered(tokenizer, messages, str(tokenizer.chat_template), tokenize=False)
        is_same = written.replace(_TODAY, _DAY).startswith("".join(ours[-1]))
        is_known = "not training-compatible" in theirs
        return Outcome("-" if is_known and is_same else "?", ours, theirs)
    if len(ours) != len(theirs):
        return Outcome("?", ours, theirs)
    letters = {letter for pair in zip(ours, theirs, strict=True) for letter in _reasons(*pair)}
    return Outcome("".join(sorted(letters)) or "=", ours, theirs)


def _or_refusal(
    learned: Callable[[PreTrainedTokenizerFast, Sequence[Message]], list[Learned]],
    tokenizer: PreTrainedTokenizerFast,
    messages: Sequence[Message],
) -> list[Learned] | str:
    try:
        return learned(tokenizer, messages)
    except (DataError, TypeError, ValueError, AttributeError, TemplateError) as error:
        return str(error)


def _reasons(ours: Learned, theirs: Learned) -> set[str]:
    """Why one answer is learned otherwise."""
    found = set()
    before, text = ours
    if opened := _OPENED.search(before):
        before, text = before[: opened.start()], opened[0] + text
        found |= {"p"} if theirs.text.startswith("<think>") else set()
    other_before, other = theirs
    if head := _overlap(before, other):
        found.add("p")
        other_before, other = other_before + head, other.removeprefix(head)
    elif head := _overlap(other_before, text):
        found.add("g")
        before, text = before + head, text.removeprefix(head)
    if before != other_before:
        found.add("h")
    end = re.search(r"\n?(<EOS>)?\Z", other)
    if end and not text.endswith(end[0]):
        found.add("t")
        other = other[: end.start()]
    if text.endswith("<|return|>") and other.endswith("<|end|>"):
        found.add("e")
        other = other.removesuffix("<|end|>") + "<|return|>"
    if text == f"{other}<|tool_response>":
        return found | {"o"}
    if text != other:
        is_same = _THOUGHTS.sub("", text).lstrip() == _THOUGHTS.sub("", other).lstrip()
        dropped = set(re.findall(r"T\d", text)) - set(re.findall(r"T\d", other))
        letter = "d" if dropped else "c" if "</think>" in text else "n"
        found.add(letter if is_same else "?")
    return found


def _overlap(before: str, text: str) -> str:
    """The longest beginning of one text with which the other ends."""
    lengths = range(min(len(before), len(text)), 0, -1)
    return next((text[:length] for length in lengths if before.endswith(text[:length])), "")


def main() -> None:
    rows = {name: {case: compared(name, case).letters for case in CASES} for name in names()}
    print("| template | " + " | ".join(CASES) + " |\n" + "|---" * (len(CASES) + 1) + "|")
    for name, letters in rows.items():
        print(f"| {name} | " + " | ".join(letters.values()) + " |")
    counts = Counter(
        letter for row in rows.values() for letters in row.values() for letter in letters
    )
    print()
    for letter, reason in {"=": "equal, token for token", **REASONS}.items():
        if counts[letter]:
            print(f"- `{letter}` ({counts[letter]}) {reason}")
    if counts["?"]:
        raise SystemExit("some differences are not explained")
    write_record(
        "chat_templates",
        {"trl": trl.__version__, "reasons": REASONS, "counts": counts, "templates": rows},
    )


if __name__ == "__main__":
    main()
