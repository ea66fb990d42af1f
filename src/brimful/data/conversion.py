"""The unit-conversion corpus: questions with exact answers and worked reasoning, and text about
units and numbers to learn the facts from.

Training, validation and test differ in the pairs of units, in the values, or in both
(`conversion_pairs`); a pair counts whichever of its units comes first, and a value wherever its
point stands. Everything is drawn from seeds, without end, and is the same everywhere.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import islice
from types import MappingProxyType

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.types import Counts, Texts
from brimful.data.conversion_pairs import UnitPair, facts, pairs, pairs_apart, value_split
from brimful.data.conversion_reasoning import Path, Working, fact, number, paths, working
from brimful.data.conversion_short import needs_small_numbers_only, short_paths
from brimful.data.rows import Row
from brimful.data.units import Unit

GENERATION = 1
"""Raised when the making of the corpus changes."""
KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "train": ("known",),
        "validation": ("new-values", "new-pairs", "new-both"),
        "test": ("new-values", "new-pairs", "new-both"),
    }
)
"""What is new in a split's questions against those of training."""
NUM_ROWS: Counts = MappingProxyType({"train": 20_000, "validation": 300, "test": 600})
SMALL_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"train": ("known",), "validation": ("new-values",), "test": ("new-values",)}
)
"""New pairs of units mostly need a longer way."""
NUM_DOCUMENTS = 16_000

_WORDINGS = (
    "{value} {source}: how many {target} is that?",
    "Write {value} {source} in {target}.",
    "How many {target} equal {value} {source}?",
    "Give the number of {target} in {value} {source}.",
    "Turn {value} {source} into {target}.",
    "A record states {value} {source}. State it in {target}.",
    "If something comes to {value} {source}, what does it come to in {target}?",
    "Measured in {target}, what are {value} {source}?",
    "Someone notes {value} {source}. What would the note say in {target}?",
    "We have {value} {source} and need {target}. How many?",
    "Which number of {target} is the same as {value} {source}?",
    "Change the unit: {value} {source} to {target}.",
    "The label reads {value} {source}. Reword it in {target}.",
    "Find {value} {source} expressed in {target}.",
    "From {source} to {target}: {value}.",
    "I know it is {value} {source}; tell me the {target}.",
)
_NOTES = (
    "{value} {source} in {target}: {steps} So {value} {source} = {answer} {target}.",
    (
        "It was {value} {source}, so in {target} it was the following. {steps} It was {answer}"
        " {target}."
    ),
    "For the {target}, take the {value} {source}. {steps} That makes {answer} {target}.",
    (
        "The {target} were not known, but there were {value} {source}. {steps} There were {answer}"
        " {target}."
    ),
    "With {value} {source} at hand, these are the {target}: {steps} These are {answer} {target}.",
)
_MOST_DRAWN = 100_000
"""Questions, of which about four in ten need small numbers only."""
_SYMBOL_SHARE = 0.25
_APART_SHARE = 0.6
"""So many more of the pairs that need, or allow, two steps."""
_SCALES, _SCALE_WEIGHTS = (Fraction(1), Fraction(1, 10), Fraction(10)), (18, 1, 1)
"""Of the numbers from 2 to 99."""


@dataclass(frozen=True)
class Problem:
    """A question with its answer.

    Attributes:
        question: A sentence or two.
        value, source, target: What it asks.
        answer: A decimal of few digits.
        kind: One of `KINDS`.
        path: One way to the answer.
    """

    question: str
    value: Fraction
    source: Unit
    target: Unit
    answer: str
    kind: str
    path: Path

    @property
    def reasoning(self) -> str:
        """Facts and equations, and the answer in its tags."""
        return f"{' '.join(self.path.sentences)} <answer>{self.answer}</answer>"

    @property
    def columns(self) -> Texts:
        """The problem as a row of a data set: a value for each column."""
        return {
            "question": self.question,
            "answer": self.answer,
            "reasoning": self.reasoning,
            "kind": self.kind,
            "quantity": self.source.quantity,
            "document": f"{self.question}\n{self.reasoning}\n",
        }


def questions(
    split: str, count: int, seed: int, kinds: Sequence[str] | None = None
) -> Iterator[Problem]:
    """So many problems, no question twice; the kinds, by default those of the split, come in equal
    numbers, but for one.
    """
    kinds = KINDS[split] if kinds is None else kinds
    seen: set[str] = set()
    drawn = random.Random(f"unit-conversion {split} {seed}")
    while len(seen) < count:
        problem = _problem(drawn, split, kinds[len(seen) % len(kinds)])
        if problem.question not in seen:
            seen.add(problem.question)
            yield problem


def _rows(
    corpus: str,
    split: str,
    kinds: Mapping[str, tuple[str, ...]],
    made: Callable[[Problem], Problem | None],
) -> Iterator[Row]:
    """The rows of the first problems of a split that something is made of.

    Raises:
        DataError: there is no such split.
    """
    if split not in NUM_ROWS:
        raise DataError(
            f"builtin:{corpus} has no split {split!r}{did_you_mean(split, NUM_ROWS)} It has"
            f" {', '.join(NUM_ROWS)}."
        )
    problems = filter(None, map(made, questions(split, _MOST_DRAWN, 0, kinds[split])))
    for place, problem in enumerate(islice(problems, NUM_ROWS[split]), start=1):
        yield Row(problem.columns, f"builtin:{corpus}, {split} row {place}")


def conversion_rows(split: str = "train") -> Iterator[Row]:
    """The built-in rows of a split: question, answer, reasoning, kind, quantity and document;
    always the same ones in the same order.

    Raises:
        DataError: as `_rows`.
    """
    return _rows("unit-conversion", split, KINDS, lambda problem: problem)


def short_conversion_rows(split: str = "train") -> Iterator[Row]:
    """The same questions and answers with short reasoning (`conversion_short`), in one of several
    ways each; spelled out where numbers get long.

    Raises:
        DataError: as `_rows`.
    """

    def shortened(problem: Problem) -> Problem:
        ways = _short_ways(problem.value, problem.source, problem.target, split)
        return _by_one_of(problem, ways) or problem

    return _rows("unit-conversion-short", split, KINDS, shortened)


def small_conversion_rows(split: str = "train") -> Iterator[Row]:
    """Questions whose short reasoning needs products and quotients of small numbers only, in one of
    several ways each; those of validation and test have pairs of units that training knows, and
    values that it never sees.

    Raises:
        DataError: as `_rows`.
    """

    def made_small(problem: Problem) -> Problem | None:
        ways = _small_ways(problem.value, problem.source, problem.target, split)
        return _by_one_of(problem, ways)

    return _rows("unit-conversion-small", split, SMALL_KINDS, made_small)


@cache
def _small_ways(value: Fraction, source: Unit, target: Unit, split: str) -> list[Path]:
    return [
        way for way in _short_ways(value, source, target, split) if needs_small_numbers_only(way)
    ]


def _short_ways(value: Fraction, source: Unit, target: Unit, split: str) -> list[Path]:
    return [
        path
        for path in short_paths(value, source, target)
        if split != "train" or _stays_in_training(path)
    ]


def _by_one_of(problem: Problem, ways: list[Path]) -> Problem | None:
    """The problem with one of these ways to its answer; None where there is none."""
    if not ways:
        return None
    return replace(problem, path=_chosen(random.Random(f"short {problem.question}"), (*ways,)))


def conversion_documents() -> Iterator[str]:
    """Text to pre-train on: facts about units, sums, and conversions worked out in other words than
    those of the questions.

    All of it comes from the pairs and values of training.
    """
    return iter(_documents())


@cache
def _documents() -> tuple[str, ...]:
    """6 MB that take seconds to make and are read several times."""
    drawn = random.Random("unit-conversion documents")
    writers = (drawn.choices(_WRITERS, weights=_WEIGHTS)[0] for _ in range(NUM_DOCUMENTS))
    return tuple("".join(f"{line}\n" for line in islice(write(drawn), 10)) for write in writers)


def _problem(drawn: random.Random, split: str, kind: str) -> Problem:
    pair_split = values_of = "train"
    if kind in ("new-pairs", "new-both"):
        pair_split = split
    if kind in ("new-values", "new-both"):
        values_of = split
    conversions: tuple[_Conversion, ...] = ()
    while not conversions:
        available = pairs()[pair_split]
        if drawn.random() < _APART_SHARE:
            available = pairs_apart(pair_split)
        conversions = _drawn_conversions(drawn, drawn.choice(available), split, values_of)
    asked = drawn.choice(conversions)
    return Problem(
        _question(drawn, asked),
        asked.value,
        asked.source,
        asked.target,
        asked.answer,
        kind,
        _chosen(drawn, asked.ways),
    )


@dataclass(frozen=True)
class _Conversion:
    """A conversion that can be asked for, and the ways to its answer."""

    value: Fraction
    source: Unit
    target: Unit
    answer: str
    ways: tuple[Path, ...]


@cache
def _conversions(
    pair: UnitPair, scale: Fraction, multiplies: bool, split: str, values_of: str
) -> tuple[_Conversion, ...]:
    """All values of a split to multiply by the pair's factor, or all multiples to divide, that have
    short numbers all the way.
    """
    source, target = pair.large, pair.small
    if not multiplies:
        source, target, scale = target, source, scale * pair.factor
    conversions = []
    for plain in range(2, 100):
        value = plain * scale
        answer = number(value * source.size / target.size)
        if number(value) is None or answer is None or value_split(value) != values_of:
            continue
        ways = tuple(
            path
            for path in paths(value, source, target)
            if split != "train" or _stays_in_training(path)
        )
        if ways:
            conversions.append(_Conversion(value, source, target, answer, ways))
    return tuple(conversions)


def _drawn_conversions(
    drawn: random.Random, pair: UnitPair, split: str, values_of: str
) -> tuple[_Conversion, ...]:
    """The conversions of a pair at a drawn scale and in a drawn direction."""
    scale = drawn.choices(_SCALES, weights=_SCALE_WEIGHTS)[0]
    return _conversions(pair, scale, drawn.random() < 0.5, split, values_of)


def _stays_in_training(way: Path | Working) -> bool:
    return all(value_split(operand) == "train" for operand in way.operands)


def _chosen(drawn: random.Random, ways: tuple[Path, ...]) -> Path:
    """Draw a direct way and a way through a hub with equal chance, however many there are of
    each.
    """
    kind = drawn.choice(sorted({path.name for path in ways}))
    return drawn.choice([path for path in ways if path.name == kind])


def _question(drawn: random.Random, asked: _Conversion) -> str:
    source, target = _names(drawn, asked.value, asked.source, asked.target)
    return drawn.choice(_WORDINGS).format(value=number(asked.value), source=source, target=target)


def _names(drawn: random.Random, value: Fraction, source: Unit, target: Unit) -> tuple[str, str]:
    if drawn.random() < _SYMBOL_SHARE:
        return source.symbol, target.symbol
    if value == 1:
        return source.name, target.plural
    return source.plural, target.plural


def _facts(drawn: random.Random) -> Iterator[str]:
    while True:
        pair = drawn.choice([*facts().values()])
        if drawn.random() < 0.3:
            unit = drawn.choice((pair.large, pair.small))
            yield f"{unit.symbol}: {unit.plural}"
        else:
            yield fact(pair.large, pair.small)


def _sums(drawn: random.Random) -> Iterator[str]:
    """Multiplications and divisions by the factors of training."""
    while True:
        pair = drawn.choice([*facts().values()])
        if conversions := _drawn_conversions(drawn, pair, "train", "train"):
            asked = drawn.choice(conversions)
            sums = working(asked.value, pair.factor, divide=asked.source == pair.small)
            if sums is not None and _stays_in_training(sums):
                yield ". ".join(sums.equations)


def _notes(drawn: random.Random) -> Iterator[str]:
    """Conversions worked out, in other words than those of the questions, and without tags."""
    while True:
        problem = _problem(drawn, "train", "known")
        names = _names(drawn, problem.value, problem.source, problem.target)
        steps = " ".join(problem.path.sentences)
        yield drawn.choice(_NOTES).format(
            value=number(problem.value),
            source=names[0],
            target=names[1],
            steps=steps,
            answer=problem.answer,
        )


_WRITERS = (_facts, _sums, _notes)
_WEIGHTS = (6, 44, 50)
