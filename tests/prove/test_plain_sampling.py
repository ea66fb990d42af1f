"""Texts that back ends write beside each other."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from trained_tokenizers import train_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from brimful.base.errors import RequestError
from brimful.prove.plain_sampling import SamplingJob, main, tokens_per_second


@pytest.fixture
def job(tmp_path: Path) -> SamplingJob:
    """Four texts of eight tokens by a model of one block."""
    shape = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(shape).save_pretrained(tmp_path)
    train_tokenizer("bpe", 300, 2, ["a few words"] * 9, fewer="accept").save_pretrained(tmp_path)
    return SamplingJob(
        backend="brimful",
        model=str(tmp_path),
        device="cpu",
        dtype="float32",
        prompts=2,
        samples=2,
        prompt_tokens=5,
        tokens=8,
        threads=1,
    )


@pytest.mark.parametrize("backend", ["brimful", "transformers"])
def test_every_text_is_written_whole(
    job: SamplingJob,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = json.dumps(asdict(job) | {"backend": backend})
    monkeypatch.setattr(sys, "argv", ["plain_sampling", chosen])
    main()
    assert json.loads(capsys.readouterr().out)["tokens_per_s"] > 0


def test_prompts_differ_and_their_samples_have_seeds_of_their_own(job: SamplingJob) -> None:
    first, second, other, _ = job.requests(2)
    assert first.prompt_ids == second.prompt_ids != other.prompt_ids
    assert len({each.seed for each in job.requests(2)}) == 4


def test_a_back_end_that_cannot_run_here_is_refused(job: SamplingJob) -> None:
    with pytest.raises(RequestError, match="vLLM"):
        tokens_per_second(replace(job, backend="vllm"))


def test_a_text_that_ends_early_is_an_error(
    job: SamplingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list(job.requests(2))
    monkeypatch.setattr(SamplingJob, "requests", lambda _, prompts: asked[: 2 * prompts - 1])
    with pytest.raises(RuntimeError, match="24 tokens were written"):
        tokens_per_second(job)
