"""Samples of a run: text drawn from its model, shown as it comes, kept in samples.jsonl."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from brimful.base.rundir import write_journal_atomically
from brimful.data.formats import Prompt
from brimful.generation.engine import generate
from brimful.generation.load import LoadedRun
from brimful.generation.sampler import SamplingSettings, sample_seeds
from brimful.generation.text import TextStream, text_behind
from brimful.runs.files import SAMPLES_FILE


@dataclass(frozen=True)
class TextSample:
    """One continuation and how it was drawn; the record of samples.jsonl."""

    prompt: str
    completion: str
    finish: str
    seed: int
    temperature: float
    top_k: int | None
    top_p: float
    tokens: int
    seconds: float


def draw_samples(
    loaded: LoadedRun,
    prompt: Prompt,
    settings: SamplingSettings,
    *,
    max_new_tokens: int,
    count: int,
    seed: int,
    show: Callable[[str], None] | None = None,
) -> list[TextSample]:
    """Continue `prompt`, or answer it where the run was trained on messages, `count` times.

    Args:
        prompt: Text, or the messages of a conversation; the samples keep the last one.
        show: Receives the text of the only sample as it comes; with several nothing is streamed.

    Raises:
        RequestError: the prompt is longer than the model's context, or a setting is out of range.
    """
    started_s = time.perf_counter()
    seeds = sample_seeds(seed, count)
    prompt_ids = loaded.prompt_ids(prompt)
    stream = TextStream(loaded.tokenizer, prompt_ids)

    def on_token(row: int, token: int, logprob: float | None) -> None:
        if show is not None and count == 1:
            show(stream.push(token))

    generations = generate(
        loaded.model,
        [prompt_ids] * count,
        settings,
        max_new_tokens=max_new_tokens,
        stop_ids=loaded.stop_ids,
        seeds=seeds,
        on_token=on_token,
    )
    if show is not None and count == 1:
        show(stream.flush())
    seconds = time.perf_counter() - started_s
    asked = prompt if isinstance(prompt, str) else prompt[-1].content
    return [
        TextSample(
            asked,
            text_behind(loaded.tokenizer, prompt_ids, generation.token_ids),
            generation.finish,
            seed_i,
            settings.temperature,
            settings.top_k,
            settings.top_p,
            len(generation.token_ids),
            seconds,
        )
        for generation, seed_i in zip(generations, seeds, strict=True)
    ]


def write_samples(run_folder: Path, samples: list[TextSample]) -> None:
    """Replace the run's samples.jsonl."""
    write_journal_atomically(run_folder / SAMPLES_FILE, map(asdict, samples))
