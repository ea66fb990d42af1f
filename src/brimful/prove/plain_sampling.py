"""Texts written by one back end, in a process of its own: brimful's engine, transformers'
continuous batching or vLLM.

    python -m brimful.prove.plain_sampling '{"backend": "brimful", "model": "FOLDER", ...}'

Prints the result as one line of JSON. Prompts are tokens drawn at random and no text ends by
itself, so every back end writes the same number of tokens.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from brimful.generation.backends.choice import Choice, backend_for
from brimful.generation.requests import Request, StopRules
from brimful.generation.sampler import SamplingSettings
from brimful.hardware.stopwatch import synchronize

WARM_UP_PROMPTS = 2
"""Written before, so that no back end's start is timed."""


@dataclass(frozen=True)
class SamplingJob:
    """Texts to write.

    Attributes:
        backend: Backend as `plan.sampling` names it.
        model: Folder of the weights, with a tokenizer.
        device: Device as torch names it.
        dtype: Dtype of the weights, as torch names it.
        prompts: Number of prompts.
        samples: Texts for each of them.
        prompt_tokens: Length of a prompt.
        tokens: Length of a text.
        threads: Threads of the processor; None: as many as torch takes.
    """

    backend: Choice
    model: str
    device: str
    dtype: str
    prompts: int
    samples: int
    prompt_tokens: int
    tokens: int
    threads: int | None = None

    def command(self) -> list[str]:
        """Return the arguments of Python that run this job."""
        return ["-m", "brimful.prove.plain_sampling", json.dumps(asdict(self))]

    def requests(self, prompts: int) -> Iterator[Request]:
        """Yield the requests for so many prompts, samples of one prompt after another."""
        generator = torch.Generator().manual_seed(0)
        for number in range(prompts):
            ids = torch.randint(10, 200, (self.prompt_tokens,), generator=generator).tolist()
            for sample in range(self.samples):
                key = number * self.samples + sample
                yield Request(key, tuple(ids), seed=key, max_new_tokens=self.tokens)


def tokens_per_second(job: SamplingJob) -> float:
    """Write the job's texts.

    Raises:
        RequestError: the back end is not installed, or cannot run here.
        RuntimeError: another number of tokens was written than asked for.
    """
    device = torch.device(job.device)
    model: Any = AutoModelForCausalLM.from_pretrained(job.model, dtype=getattr(torch, job.dtype))
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    backend, _ = backend_for(job.backend, model.to(device).eval(), tokenizer, source=job.model)
    settings, stop = (
        SamplingSettings(temperature=1.0, top_k=None, top_p=1.0),
        StopRules(frozenset()),
    )
    for _ in backend.stream(job.requests(WARM_UP_PROMPTS), settings, stop):
        pass
    synchronize(device)
    began = time.perf_counter()
    texts = backend.stream(job.requests(job.prompts), settings, stop)
    written = sum(len(generation.token_ids) for _, generation in texts)
    synchronize(device)
    passed_s = time.perf_counter() - began
    if written != job.prompts * job.samples * job.tokens:
        raise RuntimeError(f"{written} tokens were written, which are not all that were asked for")
    return written / passed_s


def main() -> None:
    """Run the job of the command line."""
    job = SamplingJob(**json.loads(sys.argv[1]))
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    print(json.dumps({"tokens_per_s": tokens_per_second(job)}))


if __name__ == "__main__":
    main()
