"""Samples that repeat a question of the evaluation: word for word, up to case and punctuation, or
in a long piece.

Pieces of 13 words, or whole questions from 8 words on, as in Brown et al. 2020 (arXiv 2005.14165),
appendix C, who leave out what very many documents hold. Here that is the wording around the
questions ("You are an expert Python programmer, and here is your task"): a piece needs 8 words of
its own, half of them no numbers. Questions from a template differ in a number or a unit alone, so
texts that are merely similar are not taken for repetitions.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from brimful.data.leakage import normalised

PIECE_WORDS = 13
OWN_WORDS = 8
"""Shorter questions count as repeated only where a whole question equals them: their words follow
each other by chance.
"""
WORDING_WORDS = 5
WORDING_SHARE = 0.1
"""So many words in a row that a tenth of the questions hold, and three of them at least, are their
wording.
"""

Words = tuple[str, ...]

_WORD = re.compile(r"(?:(?<!\S)[-−])?\d+(?:[.,]\d+)*|[^\W\d_]+")

Kind = Literal["exact", "words", "piece"]


@dataclass(frozen=True)
class Contamination:
    """What a sample repeats.

    Attributes:
        evaluation_id: The evaluation's question.
        kind: "exact": the same question but for case and white space; "words": also but for
            punctuation; "piece": a long piece of it.
    """

    evaluation_id: str
    kind: Kind


class EvaluationQuestions:
    """The questions of an evaluation, indexed to look samples up in.

    Args:
        questions: Ids and texts; where texts are equal, the first id is told.
    """

    def __init__(self, questions: Iterable[tuple[str, str]]) -> None:
        self._exact: dict[str, str] = {}
        self._words: dict[Words, str] = {}
        self._pieces: dict[Words, list[tuple[Words, str]]] = {}
        self._asked: dict[str, Contamination | None] = {}
        for evaluation_id, text in questions:
            self._exact.setdefault(normalised(text), evaluation_id)
            self._words.setdefault(_words_of(text), evaluation_id)
        wording = _wording(self._words)
        for words, evaluation_id in self._words.items():
            self._index(words, evaluation_id, wording)

    def find(self, question: str, completion: str) -> Contamination | None:
        """What a sample repeats, in its question or in its answer; None: nothing. A question is
        looked up once, however many answers it has.
        """
        if question not in self._asked:
            self._asked[question] = self._of_question(question)
        return self._asked[question] or self._piece(_words_of(completion))

    def _index(self, words: Words, evaluation_id: str, wording: frozenset[Words]) -> None:
        """Pieces by their first words: one look-up a word finds the few that are worth
        comparing.
        """
        is_own = [True] * len(words)
        for start in range(len(words)):
            if words[start : start + WORDING_WORDS] in wording:
                is_own[start : start + WORDING_WORDS] = [False] * WORDING_WORDS
        for start in range(max(1, len(words) - PIECE_WORDS + 1)):
            piece = words[start : start + PIECE_WORDS]
            own = [
                word
                for word, counts in zip(piece, is_own[start : start + PIECE_WORDS], strict=True)
                if counts
            ]
            if len(own) >= OWN_WORDS and sum(word.isalpha() for word in own) >= OWN_WORDS // 2:
                self._pieces.setdefault(piece[:OWN_WORDS], []).append((piece, evaluation_id))

    def _of_question(self, question: str) -> Contamination | None:
        words = _words_of(question)
        if (found := self._exact.get(normalised(question))) is not None:
            return Contamination(found, "exact")
        if words and (found := self._words.get(words)) is not None:
            return Contamination(found, "words")
        return self._piece(words)

    def _piece(self, words: Words) -> Contamination | None:
        for start in range(len(words) - OWN_WORDS + 1):
            for piece, evaluation_id in self._pieces.get(words[start : start + OWN_WORDS], ()):
                if words[start : start + len(piece)] == piece:
                    return Contamination(evaluation_id, "piece")
        return None


def _words_of(text: str) -> Words:
    return tuple(_WORD.findall(text.casefold()))


def _wording(questions: Iterable[Words]) -> frozenset[Words]:
    """What stands in very many of the questions."""
    pieces = [
        {words[start : start + WORDING_WORDS] for start in range(len(words) - WORDING_WORDS + 1)}
        for words in questions
    ]
    counts = Counter(piece for of_question in pieces for piece in of_question)
    return frozenset(
        piece for piece, count in counts.items() if count >= max(3, WORDING_SHARE * len(pieces))
    )
