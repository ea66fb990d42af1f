"""Samples of a run: drawn, shown as they come, and kept as records."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from brimful.base.rundir import read_journal
from brimful.data.formats import Message
from brimful.generation.load import LoadedRun, load_run
from brimful.generation.sampler import SamplingSettings
from brimful.generation.samples import draw_samples, write_samples

SETTINGS = SamplingSettings(temperature=1.0, top_k=20, top_p=0.9)


@pytest.fixture
def loaded(make_run: Callable[..., Path]) -> LoadedRun:
    return load_run(make_run(), torch.device("cpu"), torch.float32)


def test_what_is_shown_is_the_completion(loaded: LoadedRun) -> None:
    shown: list[str] = []
    (sample,) = draw_samples(
        loaded, "the cat", SETTINGS, max_new_tokens=12, count=1, seed=3, show=shown.append
    )

    assert "".join(shown) == sample.completion
    assert sample.completion
    assert (sample.prompt, sample.temperature, sample.top_k, sample.top_p) == (
        "the cat",
        1.0,
        20,
        0.9,
    )
    assert 0 < sample.tokens <= 12
    assert sample.finish in {"length", "end_of_text"}
    assert sample.seconds > 0


def test_several_samples_differ_are_not_shown_and_each_can_be_drawn_again_alone(
    loaded: LoadedRun,
) -> None:
    shown: list[str] = []
    samples = draw_samples(
        loaded, "the", SETTINGS, max_new_tokens=8, count=3, seed=3, show=shown.append
    )
    again = draw_samples(loaded, "the", SETTINGS, max_new_tokens=8, count=3, seed=3)

    assert shown == []
    assert len({sample.seed for sample in samples}) == 3
    assert len({sample.completion for sample in samples}) > 1
    assert [sample.completion for sample in samples] == [sample.completion for sample in again]


def test_an_empty_prompt_starts_a_document(loaded: LoadedRun) -> None:
    (sample,) = draw_samples(loaded, "", SETTINGS, max_new_tokens=4, count=1, seed=0)

    assert sample.prompt == ""
    assert sample.tokens > 0


def test_records_replace_the_older_ones_one_a_line(loaded: LoadedRun, tmp_path: Path) -> None:
    samples = draw_samples(loaded, "ä", SETTINGS, max_new_tokens=4, count=2, seed=0)
    (tmp_path / "samples.jsonl").write_text("old")
    write_samples(tmp_path, samples)

    records = list(read_journal(tmp_path / "samples.jsonl"))
    assert [record["completion"] for record in records] == [sample.completion for sample in samples]
    assert records[0].keys() == {
        "prompt",
        "completion",
        "finish",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "tokens",
        "seconds",
    }


def test_a_tuned_run_answers_a_conversation_and_keeps_its_last_message(
    make_tuned: Callable[..., Path],
) -> None:
    tuned = load_run(make_tuned(), torch.device("cpu"), torch.float32)
    asked = (Message("user", "the cat"), Message("assistant", "sat"), Message("user", "on"))
    alone, text, later = (
        draw_samples(tuned, prompt, SETTINGS, max_new_tokens=6, count=1, seed=3)[0]
        for prompt in (asked[-1:], "on", asked)
    )

    assert (alone.prompt, text.prompt, later.prompt) == ("on", "on", "on")
    assert alone.completion == text.completion != later.completion
