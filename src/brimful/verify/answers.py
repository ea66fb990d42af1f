r"""Where an answer says its result. docs/verifiers.md has the rules.

Marks are `<answer>...</answer>` (in any case), a line `#### ...` as in GSM8K (Cobbe et al. 2021,
arXiv 2110.14168), and `\boxed{...}` as in MATH (Hendrycks et al. 2021, arXiv 2103.03874). The mark
that begins last counts, whatever its style. "The answer is ..." counts where there is no mark.
"""

import re
from dataclasses import dataclass

MAX_READ_CHARACTERS = 100_000
"""Most characters that are read of an answer, from its end: a mark before that is not seen."""
MAX_FINAL_CHARACTERS = 1000
"""A longer final answer is none."""

NO_MARK = "no final answer"
_MARK = re.compile(
    r"<[ \t]*answer[ \t]*>|^[ \t]*####(?!#)|\\boxed[ \t]*\{", re.IGNORECASE | re.MULTILINE
)
_CLOSE = re.compile(r"<[ \t]*/[ \t]*answer[ \t]*>", re.IGNORECASE)
_PHRASE = re.compile(r"\bthe (?:final )?answer is:?(?=[ \t])", re.IGNORECASE)
_SENTENCE = re.compile(r"(?:[^.\n]|\.(?!\s|$))*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


@dataclass(frozen=True)
class FinalAnswer:
    """What an answer ends with.

    Attributes:
        text: What is marked, without the mark and the space around it; None where there is nothing
            to read.
        problem: Why not: `NO_MARK` ("no final answer"), "empty final answer", "final answer not
            closed", "final answer too long"; empty otherwise.
    """

    text: str | None
    problem: str = ""


def find_final_answer(answer: str) -> FinalAnswer:
    """The last mark of an answer and what is in it."""
    read = answer[-MAX_READ_CHARACTERS:]
    last = _last(_MARK, read)
    if last is None:
        found = _phrase(read)
    elif last[0].endswith("{"):
        found = _braced(read, last.end())
    elif last[0].endswith("#"):
        found = read[last.end() :].partition("\n")[0]
    else:
        found = _closed(read, last.end())
    if found is not None:
        return _within_length(found.strip())
    return FinalAnswer(None, "final answer not closed" if last else NO_MARK)


def final_or_whole(answer: str) -> FinalAnswer:
    """The last mark of an answer, or the whole answer where nothing is marked."""
    final, whole = find_final_answer(answer), answer.strip()
    if final.problem != NO_MARK or not whole:
        return final
    return _within_length(whole)


def _within_length(text: str) -> FinalAnswer:
    if not text:
        return FinalAnswer(None, "empty final answer")
    if len(text) > MAX_FINAL_CHARACTERS:
        return FinalAnswer(None, "final answer too long")
    return FinalAnswer(text)


def _closed(text: str, start: int) -> str | None:
    """The text up to the tag that closes an `<answer>`; None where it stays open."""
    close = _CLOSE.search(text, start)
    return text[start : close.start()] if close else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text):  # noqa: B007  only the last one counts
        pass
    return found


def _phrase(text: str) -> str | None:
    """The rest of the sentence behind the last "the answer is"."""
    last = _last(_PHRASE, text)
    if last is None:
        return None
    sentence = _SENTENCE.match(text, last.end())
    return sentence and sentence[0]


def _braced(text: str, start: int) -> str | None:
    """Up to the brace that closes the one before `start`; None where it stays open."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return text[start : match.start()]
    return None
