"""Which samples are asked for, and when: questions with shared prompts together, in waves where a
question can be settled early.

The order never decides what is kept: a sample's seed follows from its question and number, and what
counts is cut by `choose.prefix`.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from brimful.base.errors import DataError
from brimful.generation.requests import Request
from brimful.selection.choose import SelectionRules, obstacle, settled
from brimful.selection.sample import JudgedSample, SampledPrompt


@dataclass(frozen=True)
class Drawn:
    """How far the drawing is.

    Attributes:
        questions: All of them.
        questions_done: Settled: nothing more is asked about them.
        samples: Drawn and verified, those held from before too.
        samples_left: Still to be drawn at most; with `stop_early` it may be fewer.
        tokens: New tokens of all samples.
        answered: Samples that could be read.
        correct: Samples that are right.
        kept: Samples that are kept as things stand.
        questions_with_kept: Questions with at least one of these.
    """

    questions: int
    questions_done: int
    samples: int
    samples_left: int
    tokens: int
    answered: int
    correct: int
    kept: int
    questions_with_kept: int


def seed_of(seed: int, question_id: str, number: int) -> int:
    """The seed of one sample, below 2**63: a function of these three alone, whatever other
    questions and samples there are.
    """
    return xxhash.xxh3_64_intdigest(f"{seed} {number} {question_id}".encode()) >> 1


class SampleDrawing:
    """The samples of all questions: what to ask next, and what came back.

    Args:
        questions: Ids differ; prompts leave room for an answer.
        rules: How many, and when a question is settled.
        seed: Seed of all samples.
        max_new_tokens: Most new tokens of an answer.
        held: Samples from before; they are not asked for again.

    Raises:
        DataError: two questions have one id.
    """

    def __init__(
        self,
        questions: Sequence[SampledPrompt],
        rules: SelectionRules,
        seed: int,
        max_new_tokens: int,
        held: Iterable[JudgedSample] = (),
    ) -> None:
        self._questions = list(questions)
        self._rules = rules
        self._seed = seed
        self._max_new_tokens = max_new_tokens
        self._place_of = {question.id: place for place, question in enumerate(self._questions)}
        if len(self._place_of) < len(self._questions):
            twice = Counter(question.id for question in self._questions).most_common(1)[0][0]
            raise DataError(
                f"two questions have the id {twice!r}. Every question needs its own: its samples"
                " are kept under it."
            )
        self._samples: list[dict[int, JudgedSample]] = [{} for _ in self._questions]
        self._paths: list[set[str]] = [set() for _ in self._questions]
        self._is_done = [False] * len(self._questions)
        self._tokens = self._answered = self._correct = 0
        for sample in held:
            self.take(sample)

    def requests(self, is_own: Callable[[int], bool] = lambda _: True) -> Iterator[Request]:
        """What is still to be drawn, longest prompts first, each request decided on when it is
        asked for. `is_own` says by the number of an open question, longest first, whether it is
        asked here; ranks that know the same samples share the questions so.

        Without `stop_early` all samples of a question follow each other. With it a question gives
        as many as it still needs to have enough kept if all are right, then it waits for its next
        turn. The iterator never waits for answers: when all others are settled, the last questions
        are asked ahead of need rather than leave the device idle.
        """
        places = sorted(
            (place for place, is_done in enumerate(self._is_done) if not is_done),
            key=lambda place: len(self._questions[place].prompt_ids),
            reverse=True,
        )
        own = (place for number, place in enumerate(places) if is_own(number))
        waiting = deque((place, self._numbers(place)) for place in own)
        while waiting:
            place, numbers = waiting.popleft()
            for _ in range(self._wave(place)):
                number = next(numbers, None)
                if number is None or not self._is_wanted(place, number):
                    break
                yield self._request(place, number)
            else:
                waiting.append((place, numbers))

    def origin(self, request: Request) -> tuple[SampledPrompt, int]:
        """The question of a request, and the number of the sample it asks for."""
        place, number = divmod(request.key, self._rules.samples_per_prompt)
        return self._questions[place], number

    def take(self, sample: JudgedSample) -> bool:
        """Note a sample; False where it is known already, or none of these questions and
        numbers.
        """
        place = self._place_of.get(sample.question)
        if (
            place is None
            or sample.number >= self._rules.samples_per_prompt
            or sample.number in self._samples[place]
        ):
            return False
        samples = self._samples[place]
        samples[sample.number] = sample
        self._tokens += sample.tokens
        self._answered += sample.status != "unparsed"
        self._correct += sample.is_correct
        known = self._questions[place].known_paths
        if obstacle(sample, self._rules) is None and sample.path not in known:
            self._paths[place].add(sample.path)
        if len(samples) == self._rules.samples_per_prompt or (
            self._rules.stop_early and not self._missing(place)
        ):
            self._is_done[place] = settled(samples.values(), self._rules, known)
        return True

    @property
    def samples(self) -> list[JudgedSample]:
        """All that were noted, by question and number, without fates."""
        return [samples[number] for samples in self._samples for number in sorted(samples)]

    @property
    def drawn(self) -> Drawn:
        """How far it is."""
        pairs = list(zip(self._samples, self._is_done, strict=True))
        return Drawn(
            questions=len(pairs),
            questions_done=sum(self._is_done),
            samples=sum(len(samples) for samples, _ in pairs),
            samples_left=sum(
                self._rules.samples_per_prompt - len(samples)
                for samples, is_done in pairs
                if not is_done
            ),
            tokens=self._tokens,
            answered=self._answered,
            correct=self._correct,
            kept=sum(
                self._rules.keep_per_prompt - self._missing(place) for place in range(len(pairs))
            ),
            questions_with_kept=sum(map(bool, self._paths)),
        )

    def _numbers(self, place: int) -> Iterator[int]:
        return (
            number
            for number in range(self._rules.samples_per_prompt)
            if number not in self._samples[place]
        )

    def _is_wanted(self, place: int, number: int) -> bool:
        """Not once the question is settled, or will be as soon as what is on its way has come
        back.
        """
        if self._is_done[place]:
            return False
        return (
            not self._rules.stop_early
            or self._missing(place) > 0
            or number < max(self._samples[place])
        )

    def _wave(self, place: int) -> int:
        """How many samples of a question follow each other."""
        if not self._rules.stop_early:
            return self._rules.samples_per_prompt + 1
        return max(1, self._missing(place))

    def _missing(self, place: int) -> int:
        """How many distinct correct samples of a question are still wanted."""
        return max(0, self._rules.keep_per_prompt - len(self._paths[place]))

    def _request(self, place: int, number: int) -> Request:
        question = self._questions[place]
        key = place * self._rules.samples_per_prompt + number
        return Request(
            key, question.prompt_ids, seed_of(self._seed, question.id, number), self._max_new_tokens
        )
