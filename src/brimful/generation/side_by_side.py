"""The same prompts continued by a tuned model and by its base, greedily."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from brimful.base.rundir import write_journal_atomically
from brimful.data.formats import Example, text_of_prompt
from brimful.generation.answers import before_and_after
from brimful.generation.engine import generate
from brimful.generation.load import LoadedRun
from brimful.generation.requests import ShownPrompt
from brimful.generation.sampler import SamplingSettings
from brimful.generation.text import text_behind
from brimful.planning.base_scoring import SAMPLE_TOKENS
from brimful.runs.files import SIDE_BY_SIDE_FILE
from brimful.runs.side_by_side import AnswerPair

SHOWN = 3
"""Prompts that both models continue."""


def shown_prompts(own: str, examples: Sequence[Example]) -> list[ShownPrompt]:
    """Return the recipe's own prompt if it has one, and held-out prompts, spread evenly."""
    shown = [ShownPrompt(own, own)] if own else []
    asked = [example for example in examples if example.prompt]
    count = min(SHOWN - len(shown), len(asked))
    for number in range(count):
        example = asked[number * len(asked) // count]
        prompt = example.prompt or ""
        text = prompt[-1].content if isinstance(prompt, tuple) else text_of_prompt(example)
        shown.append(ShownPrompt(prompt, text, example.completion))
    return shown


def write_side_by_side(
    run_folder: Path, device: torch.device, prompts: Sequence[ShownPrompt], tokens: int
) -> None:
    """Let the tuned model and its base continue prompts, and write both answers to each.

    Args:
        run_folder: Folder of the finished run; gets the file.
        device: Where the models go.
        prompts: The same for both. One that is too long for the model is left out.
        tokens: New tokens at most, if fewer than SAMPLE_TOKENS.

    Raises:
        BrimfulError: as `before_and_after`.
    """
    base, tuned = before_and_after(
        run_folder, device, lambda loaded: _answers(loaded, prompts, min(tokens, SAMPLE_TOKENS))
    )
    pairs = [
        AnswerPair(
            prompt=shown.text,
            reference=shown.reference,
            base=before.text,
            tuned=after.text,
            base_finish=before.finish,
            tuned_finish=after.finish,
            seconds=before.seconds,
        )
        for shown, before, after in zip(prompts, base, tuned, strict=True)
        if before is not None and after is not None
    ]
    write_journal_atomically(run_folder / SIDE_BY_SIDE_FILE, map(asdict, pairs))


@dataclass(frozen=True)
class _Greedy:
    """An answer, how it ended, and the seconds for all answers of its model."""

    text: str
    finish: str
    seconds: float


def _answers(
    loaded: LoadedRun, prompts: Sequence[ShownPrompt], tokens: int
) -> list[_Greedy | None]:
    """Return a model's answers, None where the prompt leaves no room for one."""
    started_s = time.perf_counter()
    ids = [loaded.prompt_ids(shown.prompt) for shown in prompts]
    fitting = [number for number, each in enumerate(ids) if len(each) + tokens <= loaded.context]
    if not fitting:
        return [None] * len(ids)
    made = generate(
        loaded.model,
        [ids[number] for number in fitting],
        SamplingSettings(temperature=0.0, top_k=None, top_p=1.0),
        max_new_tokens=tokens,
        stop_ids=loaded.stop_ids,
        seeds=[0] * len(fitting),
    )
    seconds = time.perf_counter() - started_s
    found: list[_Greedy | None] = [None] * len(ids)
    for number, generation in zip(fitting, made, strict=True):
        text = text_behind(loaded.tokenizer, ids[number], generation.token_ids)
        found[number] = _Greedy(text, generation.finish, seconds)
    return found
