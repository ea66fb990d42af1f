"""What the tests of this stage share: a maker of samples, and a world in which a sample follows
from its seed.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from brimful.base.types import JsonDict
from brimful.generation.requests import Finish
from brimful.selection.draw import seed_of
from brimful.selection.sample import JudgedSample, SampledPrompt
from brimful.verify.verifier import VerdictStatus

SampleMaker = Callable[..., JudgedSample]

SEED = 7


@pytest.fixture(scope="session")
def sample() -> SampleMaker:
    """`sample(number, path="a", ...)` gives a correct sample of question "q" with changes."""

    def make(number: int = 0, **changes: Any) -> JudgedSample:
        fields: JsonDict = {
            "question": "q",
            "number": number,
            "completion": f"text {number}",
            "finish": "end_of_text",
            "tokens": 10,
            "seed": 3,
        }
        fields |= {
            "value": 2.0,
            "extracted": "2",
            "status": "correct",
            "detail": "",
            "path": f"path {number}",
        }
        return JudgedSample(**fields | changes)

    return make


@pytest.fixture(scope="session")
def questions() -> list[SampledPrompt]:
    """Twelve questions of two kinds with prompts of many lengths."""
    return [
        SampledPrompt(
            f"q{number}",
            f"What is {number}?",
            tuple(range(1, 3 + number * 5 % 7)),
            "even" if number % 2 == 0 else "odd",
        )
        for number in range(12)
    ]


@pytest.fixture(scope="session")
def written() -> Callable[[SampledPrompt, int], JudgedSample]:
    """The sample a model would write: a function of its seed alone, more often right for questions
    with a high number.
    """

    def write(question: SampledPrompt, number: int) -> JudgedSample:
        seed = seed_of(SEED, question.id, number)
        drawn = random.Random(seed)
        ease = int(question.id[1:]) / 12
        statuses: list[VerdictStatus] = ["correct", "wrong", "unparsed"]
        status = drawn.choices(statuses, [ease, 0.7 * (1 - ease), 0.3 * (1 - ease)])[0]
        finish: Finish = "length" if drawn.random() < 0.1 else "end_of_text"
        path = f"path {drawn.randint(0, 5)}"
        return JudgedSample(
            question.id,
            number,
            f"{path} of {seed}",
            finish,
            drawn.randint(1, 30),
            seed,
            1.0,
            "1",
            status,
            "" if status == "correct" else "no",
            path,
        )

    return write
