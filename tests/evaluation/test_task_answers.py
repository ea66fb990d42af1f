"""Answers drawn in batches are those drawn one by one."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from brimful.base.types import JsonDict
from brimful.evaluation.task import TaskSampling
from brimful.evaluation.task_answers import WrittenAnswer, write_answers
from brimful.evaluation.task_prompts import Subject

PROMPTS = ["a", "def f(x):", "some longer prompt to read", "b", "the end"]
NEW = 70


def _write(subject: Subject, **changes: Any) -> list[list[WrittenAnswer]]:
    values: JsonDict = {
        "stop": (),
        "max_new_tokens": NEW,
        "seed": 0,
        "sampling": TaskSampling(),
    } | changes
    return write_answers(
        subject,
        [subject.template.prompt_ids(text) for text in PROMPTS],
        values.pop("sampling"),
        **values,
    )


@pytest.fixture
def subject(subjects: Any) -> Subject:
    found: Subject = subjects.of(context=512)
    return found


@pytest.mark.long_but("no stop-greedy")
@pytest.mark.parametrize(
    "sampling",
    [TaskSampling(), TaskSampling(samples=3, temperature=1.0)],
    ids=["greedy", "sampled"],
)
@pytest.mark.parametrize("stop", [(), ("\N{REPLACEMENT CHARACTER}a", "e")], ids=["no stop", "stop"])
def test_batches_of_any_size_write_the_same(
    subject: Subject, sampling: TaskSampling, stop: tuple[str, ...]
) -> None:
    """One row at a time, two, all."""
    together = _write(subject, sampling=sampling, stop=stop)
    assert [len(samples) for samples in together] == [sampling.samples] * len(PROMPTS)
    for budget in (1, 2 * (NEW + 26)):
        assert (
            _write(replace(subject, budget_tokens=budget), sampling=sampling, stop=stop) == together
        )


def test_an_answer_is_cut_at_the_first_stop_string_and_costs_the_tokens_before_it(
    subject: Subject,
) -> None:
    """The text without stop strings tells where that is."""
    [[whole], *_] = _write(subject)
    place = next(
        n for n in range(20, len(whole.text)) if whole.text.isascii() or whole.text[n].isascii()
    )
    word = whole.text[place]
    cut = whole.text[: whole.text.index(word)]
    [[written], *_] = _write(subject, stop=("never written", word))
    assert (written.text, written.finish) == (cut, "stop")
    assert written.tokens <= len(whole.text.encode())
    assert whole.finish == "length"
    assert whole.tokens == NEW


def test_stop_strings_that_do_not_come_change_nothing(subject: Subject) -> None:
    assert _write(subject, stop=("never written",)) == _write(subject)


def test_a_stop_token_ends_an_answer_and_is_no_part_of_it(subject: Subject) -> None:
    ids = subject.template.prompt_ids(PROMPTS[0])
    drawn: int = int(subject.model(torch.tensor([ids])).logits[0, -1].argmax())
    [[written], *_] = _write(replace(subject, stop_ids=frozenset({drawn})))
    assert written == WrittenAnswer("", "end_of_text", 0)


def test_samples_differ_and_the_seed_decides_them(subject: Subject) -> None:
    sampling = TaskSampling(samples=4, temperature=1.0)
    first = _write(subject, sampling=sampling)
    assert len({written.text for written in first[0]}) == 4
    assert _write(subject, sampling=sampling) == first
    assert _write(subject, sampling=sampling, seed=1) != first
    assert [samples[:2] for samples in first] == _write(
        subject, sampling=TaskSampling(samples=2, temperature=1.0)
    )


def test_running_out_of_memory_makes_smaller_batches_and_the_same_answers(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, forward = _write(subject), subject.model.forward

    def small(*arguments: Any, **options: Any) -> Any:
        if len(options["input_ids"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*arguments, **options)

    monkeypatch.setattr(subject.model, "forward", small)
    assert _write(subject) == expected


def test_answers_keep_to_the_budget_begin_with_the_longest_and_are_told_as_they_finish(
    subject: Subject,
) -> None:
    rows: list[int] = []
    subject.model.register_forward_pre_hook(
        lambda _, __, options: rows.append(len(options["input_ids"])), with_kwargs=True
    )
    told: list[tuple[str, int, int | None]] = []
    _write(
        replace(subject, budget_tokens=3 * (NEW + 26)), progress=lambda *values: told.append(values)
    )
    assert max(rows) == 3
    assert told == [("generate", done, 5) for done in range(1, 6)]
