"""What is asked for, in which order, and that order and timing never change what counts."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice

import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.generation.requests import Request
from brimful.selection.choose import SelectionRules, prefix
from brimful.selection.draw import SampleDrawing, seed_of
from brimful.selection.sample import JudgedSample, SampledPrompt

Written = Callable[[SampledPrompt, int], JudgedSample]

SEED = 7
ALL = SelectionRules(samples_per_prompt=8, keep_per_prompt=3)
EARLY = SelectionRules(samples_per_prompt=8, keep_per_prompt=3, stop_early=True)


def drawing(
    questions: Sequence[SampledPrompt], rules: SelectionRules, held: Sequence[JudgedSample] = ()
) -> SampleDrawing:
    return SampleDrawing(questions, rules, SEED, 64, held)


def results(
    drawn: SampleDrawing, write: Written, draw: random.Random, batch: int
) -> Iterator[JudgedSample]:
    """A back end with so many rows, which finish in random order."""
    requests, rows = drawn.requests(), list[Request]()
    while True:
        while len(rows) < batch and (request := next(requests, None)) is not None:
            rows.append(request)
        if not rows:
            return
        done = rows.pop(draw.randrange(len(rows)))
        yield write(*drawn.origin(done))


def finish(drawn: SampleDrawing, write: Written, seed: int = 0, batch: int = 5) -> SampleDrawing:
    for sample in results(drawn, write, random.Random(seed), batch):
        drawn.take(sample)
    return drawn


def counted(
    questions: Sequence[SampledPrompt], samples: Sequence[JudgedSample], rules: SelectionRules
) -> list[list[JudgedSample]]:
    return [
        prefix([sample for sample in samples if sample.question == question.id], rules)
        for question in questions
    ]


def test_a_seed_follows_from_its_question_and_number_alone(questions: list[SampledPrompt]) -> None:
    seeds = {
        seed_of(seed, question.id, number)
        for seed in (1, 11)
        for question in questions
        for number in range(20)
    }
    assert len(seeds) == 2 * 12 * 20
    assert all(0 <= seed < 2**63 for seed in seeds)

    few, many = drawing(questions[:3], ALL), drawing(list(reversed(questions)), EARLY)
    of_few = {
        few.origin(request)[0].id + str(few.origin(request)[1]): request.seed
        for request in few.requests()
    }
    of_many = {
        many.origin(request)[0].id + str(many.origin(request)[1]): request.seed
        for request in many.requests()
    }
    assert of_few.items() <= of_many.items()


def test_all_samples_of_a_question_follow_each_other_and_long_prompts_come_first(
    questions: list[SampledPrompt],
) -> None:
    requests = list(drawing(questions, ALL).requests())
    runs = [len(list(run)) for _, run in groupby(request.key // 8 for request in requests)]

    assert runs == [8] * 12
    assert sorted((len(request.prompt_ids) for request in requests), reverse=True) == [
        len(request.prompt_ids) for request in requests
    ]
    assert all(request.max_new_tokens == 64 for request in requests)
    assert len({request.key for request in requests}) == 96


def test_with_an_early_stop_every_question_gets_its_first_wave_before_any_gets_a_second(
    questions: list[SampledPrompt],
) -> None:
    drawn = drawing(questions, EARLY)
    first = [drawn.origin(request) for request in islice(drawn.requests(), 36)]

    assert Counter(question.id for question, _ in first) == {
        question.id: 3 for question in questions
    }
    assert [number for _, number in first] == [0, 1, 2] * 12


def test_a_second_wave_asks_for_what_is_still_missing(
    questions: list[SampledPrompt], written: Written, sample: Callable[..., JudgedSample]
) -> None:
    drawn = drawing(questions[:2], EARLY)
    requests = drawn.requests()
    for _ in range(6):
        question, number = drawn.origin(next(requests))
        status = "correct" if number < 2 and question.id == "q1" else "wrong"
        drawn.take(sample(number, question=question.id, status=status))

    waves = [drawn.origin(next(requests)) for _ in range(4)]
    assert Counter(question.id for question, _ in waves) == {"q0": 3, "q1": 1}


def test_nothing_more_is_asked_about_a_settled_question(
    questions: list[SampledPrompt], sample: Callable[..., JudgedSample]
) -> None:
    drawn = drawing(questions[:1], EARLY)
    requests = drawn.requests()
    for number in range(3):
        next(requests)
        drawn.take(sample(number, question="q0"))

    assert list(requests) == []
    assert drawn.drawn.questions_done == 1
    assert drawn.drawn.samples_left == 0


def test_nothing_is_asked_ahead_when_what_is_on_its_way_settles_the_question(
    questions: list[SampledPrompt], sample: Callable[..., JudgedSample]
) -> None:
    drawn = drawing(questions[:1], EARLY)
    requests = drawn.requests()
    assert [next(requests).key for _ in range(4)] == [0, 1, 2, 3], (
        "a device that waits is given more than the first wave"
    )
    for number in (1, 2, 3):
        drawn.take(sample(number, question="q0"))

    assert drawn.drawn.questions_done == 0
    assert list(requests) == []


def test_a_gap_left_by_a_kill_is_asked_for_again(
    questions: list[SampledPrompt], sample: Callable[..., JudgedSample]
) -> None:
    held = [sample(number, question="q0") for number in (1, 2, 3)]

    assert [request.key for request in drawing(questions[:1], EARLY, held).requests()] == [0]
    assert [request.key for request in drawing(questions[:1], ALL, held).requests()] == [
        0,
        4,
        5,
        6,
        7,
    ]


@pytest.mark.parametrize("rules", [ALL, EARLY], ids=["all", "early"])
def test_batch_size_and_timing_do_not_change_what_counts(
    questions: list[SampledPrompt], written: Written, rules: SelectionRules
) -> None:
    expected = counted(
        questions,
        [written(question, number) for question in questions for number in range(8)],
        rules,
    )

    for seed in range(12):
        drawn = finish(
            drawing(questions, rules),
            written,
            seed,
            batch=random.Random(seed).choice([1, 3, 16, 64]),
        )
        assert counted(questions, drawn.samples, rules) == expected
        assert drawn.drawn.questions_done == 12


@pytest.mark.parametrize("rules", [ALL, EARLY], ids=["all", "early"])
def test_killed_anywhere_and_resumed_the_same_samples_count(
    questions: list[SampledPrompt], written: Written, rules: SelectionRules
) -> None:
    expected = counted(questions, finish(drawing(questions, rules), written).samples, rules)

    for seed in range(12):
        draw, held = random.Random(seed), list[JudgedSample]()
        for _ in range(3):
            drawn = drawing(questions, rules, held)
            for sample in islice(
                results(drawn, written, draw, draw.randint(1, 20)), draw.randint(0, 30)
            ):
                assert drawn.take(sample)
                held.append(sample)
        drawn = finish(drawing(questions, rules, draw.sample(held, len(held))), written, seed)
        assert counted(questions, drawn.samples, rules) == expected


def test_an_early_stop_draws_less(questions: list[SampledPrompt], written: Written) -> None:
    early = finish(drawing(questions, EARLY), written, batch=1).drawn

    assert early.samples < 12 * 8
    assert early.kept == finish(drawing(questions, ALL), written).drawn.kept


def test_twins_and_strangers_are_left_out(
    questions: list[SampledPrompt], sample: Callable[..., JudgedSample]
) -> None:
    drawn = drawing(questions, ALL)

    assert drawn.take(sample(0, question="q1"))
    assert not drawn.take(sample(0, question="q1", completion="another"))
    assert not drawn.take(sample(0, question="unknown"))
    assert not drawn.take(sample(8, question="q1"))
    assert [noted.completion for noted in drawn.samples] == ["text 0"]


def test_progress_counts_what_was_noted(
    questions: list[SampledPrompt], sample: Callable[..., JudgedSample]
) -> None:
    drawn = drawing(
        questions[:2],
        SelectionRules(2, 1),
        [sample(0, question="q0", path="a"), sample(1, question="q0", path="b")],
    )
    drawn.take(sample(1, question="q1", status="unparsed", tokens=5))

    now = drawn.drawn
    assert (now.questions, now.questions_done, now.samples, now.samples_left, now.tokens) == (
        2,
        1,
        3,
        1,
        25,
    )
    assert (now.answered, now.correct, now.kept, now.questions_with_kept) == (2, 2, 1, 1)


def test_two_questions_with_one_id_are_refused(
    questions: list[SampledPrompt], refuses: Refuses
) -> None:
    with refuses(DataError, names=["'q3'"]):
        drawing([*questions, questions[3]], ALL)


def test_a_question_waits_for_paths_that_no_earlier_round_kept(
    sample: Callable[..., JudgedSample],
) -> None:
    """With an early stop, too."""
    asked = SampledPrompt("q", "What?", (1,), known_paths=frozenset({"old"}))
    drawn = drawing(
        [asked], SelectionRules(samples_per_prompt=4, keep_per_prompt=1, stop_early=True)
    )
    drawn.take(sample(0, path="old"))
    assert drawn.drawn.questions_done == 0
    drawn.take(sample(1, path="new"))
    assert (drawn.drawn.questions_done, drawn.drawn.kept) == (1, 1)
