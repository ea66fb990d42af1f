"""Many questions to one model: their samples, cut at stop texts, in the order of the questions."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from brimful.base.types import Progress
from brimful.evaluation.task import TaskSampling
from brimful.evaluation.task_prompts import Subject
from brimful.generation.copied_weights import products_for
from brimful.generation.engine import Engine, longest_first
from brimful.generation.requests import Finish, Generation, Request, StopRules
from brimful.generation.sampler import SamplingSettings
from brimful.generation.text import first_stop, text_behind
from brimful.training.shared_work import is_own, merged
from brimful.training.world import ALONE, World


@dataclass(frozen=True)
class WrittenAnswer:
    """One text: cut at its first stop string, with the tokens it took."""

    text: str
    finish: Finish
    tokens: int


def write_answers(
    subject: Subject,
    prompts_ids: Sequence[list[int]],
    sampling: TaskSampling,
    *,
    stop: Sequence[str],
    max_new_tokens: int,
    seed: int,
    progress: Progress | None = None,
    world: World = ALONE,
) -> list[list[WrittenAnswer]]:
    """Return the samples of every prompt, in order. A sample depends on the seed, its prompt's
    place and its own number, not on its neighbours.

    Args:
        subject: Who writes. When memory runs out, the engine goes on with half the rows.
        prompts_ids: Each leaves `max_new_tokens` of the context.
        sampling: How tokens are drawn, and how many samples.
        stop: Texts that end an answer and do not belong to it.
        max_new_tokens: Most new tokens of an answer.
        seed: Seed of all samples.
        progress: Told of every answer that is finished.
        world: Ranks that share the prompts; each holds the whole model.
    """
    requests = [
        Request(
            place * sampling.samples + sample,
            tuple(ids),
            _seed_of((seed, place, sample)),
            max_new_tokens,
        )
        for place, ids in enumerate(prompts_ids)
        if is_own(world, place)
        for sample in range(sampling.samples)
    ]
    settings = SamplingSettings(sampling.temperature, sampling.top_k, sampling.top_p)
    engine = Engine(
        subject.model,
        subject.tokenizer,
        most_tokens=subject.budget_tokens,
        products=products_for(subject.model, subject.precision),
    )
    written: dict[int, WrittenAnswer] = {}
    for request, generation in engine.stream(
        longest_first(requests),
        settings,
        StopRules(subject.stop_ids, tuple(stop), loops=sampling.temperature == 0),
    ):
        written[request.key] = _written(subject, request, generation, stop)
        if progress is not None:
            progress("generate", len(written), len(requests))
    every = merged(world, {key: asdict(answer) for key, answer in written.items()})
    answers = [WrittenAnswer(**each) for each in every]
    return [
        answers[place * sampling.samples : (place + 1) * sampling.samples]
        for place in range(len(prompts_ids))
    ]


def _seed_of(parts: tuple[int, ...]) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def _written(
    subject: Subject, request: Request, generation: Generation, stop: Sequence[str]
) -> WrittenAnswer:
    text = text_behind(subject.tokenizer, request.prompt_ids, generation.token_ids)
    if generation.finish == "stop":
        text = text[: first_stop(text, stop)]
    return WrittenAnswer(text, generation.finish, len(generation.token_ids))
