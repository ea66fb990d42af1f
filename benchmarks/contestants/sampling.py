"""Sampling of a published model: brimful's engine beside transformers and llama.cpp's server.

Contestants: brimful as rounds of sampling and tasks use it, with products in bf16 where the processor
has instructions for it, and in fp32; transformers' `generate` with num_return_sequences and a KV cache
(continuous batching was slower, docs/log, 26 November); llama.cpp's server (--llama-server), built for
this processor, the matrices as Q8_0, a prompt with all its samples one request; counted is the
server's CPU time alone. Settings of others (`TRIED`) are the quickest of those tried.

Questions are those of builtin:unit-conversion in the model's chat template, another part of 64 each
round. End-of-text is ignored, so every text has the same number of tokens for everyone, and all
tokens count. Slower contestants get a part of a round's prompts (`SHARE`), enough to keep their
batches full. A result counts whose mean log-probability of texts under the model in fp32 is that of
`brimful, fp32` within `GATE_DEVIATIONS` standard errors of the difference.
"""

import argparse
import concurrent.futures
import contextlib
import json
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contestants.rounds import Comparison, Found
from contestants.worker import Worker

ALL_PROMPTS, SAMPLES, GATED_TEXTS = 64, 16, 8
TEMPERATURE, GATE_DEVIATIONS = 0.7, 3.0
END_ID = 2
"""SmolLM2's end-of-text, for padding."""
OURS = {"brimful": "auto", "brimful, fp32": "fp32"}
BATCHED = "transformers, batched"
LLAMA = "llama.cpp server, Q8_0"
"""In bf16 it wrote 140 tokens/s where Q8_0 wrote 310 and 352 (n = 2, docs/log)."""
TRIED = {BATCHED: ("bfloat16", 2), LLAMA: ("q8_0", 32)}
"""Type of the weights; and prompts or slots at once."""
SHARE = {"brimful, fp32": 4, BATCHED: 8, LLAMA: 4}
"""One prompt in so many."""
Written = list[tuple[list[int], list[int]]]
"""Prompts and what was written behind them."""


class Sampling(Comparison):
    """Of tokens."""

    record, unit, rounds, warm_up = "sampling_published", "tokens", 5, 1
    names, judged_by = (BATCHED, LLAMA, *OURS), tuple(OURS)
    options = (
        ("model", "smollm2-135m-instruct", "short name or folder"),
        ("llama-server", "", "program of llama.cpp's server; without it, it is left out"),
        ("prompts", 16, "of a round"),
        ("tokens", 48, "of every text"),
    )

    def prepare(self, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
        """Write the questions as a user would ask them."""
        from brimful.data.chat import Template
        from brimful.data.conversion import short_conversion_rows
        from brimful.data.formats import Message
        from brimful.model.tokenizer import load_tokenizer

        if options.llama_server and shutil.which(options.llama_server) is None:
            sys.exit(f"--llama-server: {options.llama_server} is no program")
        if not options.llama_server:
            options.only = [name for name in options.only if name != LLAMA]
        (folder / "base").symlink_to(folder_of(options.model))
        template = Template.of(load_tokenizer(folder / "base"), "auto")
        asked = [row.columns["question"] for row in short_conversion_rows()][:ALL_PROMPTS]
        ids = [template.prompt_ids((Message("user", str(each)),)) for each in asked]
        (folder / "prompts.json").write_text(json.dumps(ids))
        return {
            "prompts_a_round": options.prompts,
            "prompts_in_all": ALL_PROMPTS,
            "samples_per_prompt": SAMPLES,
            "tokens_of_every_text": options.tokens,
            "temperature": TEMPERATURE,
        }

    def work(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        worker = _Worker(name, folder, options)
        worker.write(worker.prompts[:1], 0)
        worker.serve(worker.work)

    def judge(self, name: str, found: Found) -> dict[str, Any]:
        from record import ratio_interval

        off = _deviation(*(found.told[each]["logprobs"] for each in (name, "brimful, fp32")))
        return {
            "brimful_over_it": ratio_interval(found.seconds[name], found.seconds["brimful"]),
            "setting": " ".join(map(str, TRIED.get(name, ()))),
            "standard_errors_from_fp32": off,
            "valid": abs(off) < GATE_DEVIATIONS,
        }

    def values(self, found: Found, results: Any, options: argparse.Namespace) -> dict[str, Any]:
        return {"model": Path(options.model).name, "workload": found.about}


def folder_of(model: str) -> Path:
    """Return the folder of a model by its short name or its path."""
    from brimful.model.obtained import folder_of_model

    return (Path(model) if Path(model).is_dir() else folder_of_model(model)).resolve()


def _deviation(own: Sequence[float], reference: Sequence[float]) -> float:
    """How many standard errors of the difference lie between two means over texts."""
    errors = [statistics.variance(each) / len(each) for each in (own, reference)]
    return (statistics.mean(own) - statistics.mean(reference)) / math.sqrt(sum(errors))


class _Worker(Worker):
    """Writes texts, of another part of the prompts each time."""

    _server: "LlamaServer | None" = None

    def __init__(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        super().__init__(name, folder)
        self.prompts: list[list[int]] = json.loads((folder / "prompts.json").read_text())
        self.tokens, self._asked = options.tokens, options.prompts
        self._logprobs: list[float] = []
        self._models: dict[str, Any] = {}
        if name == LLAMA:
            longest = max(map(len, self.prompts)) + self.tokens + 8
            self._server = LlamaServer(options.llama_server, folder / "base", longest)

    def work(self, _: int) -> tuple[float, float]:
        """Write the texts of a round."""
        count = max(1, self._asked // SHARE.get(self.name, 1))
        first = self.steps * self._asked % len(self.prompts)
        prompts = self.prompts[first : first + count]
        self.steps += 1
        began_s = self.cpu_s()
        written = self.write(prompts, 1000 + self.steps)
        cpu_s = self.cpu_s() - began_s
        lengths = {len(answer) for _, answer in written}
        if lengths != {self.tokens} or len(written) != len(prompts) * SAMPLES:
            raise SystemExit(f"{len(written)} texts of {sorted(lengths)} tokens were written")
        chosen = written[:: max(1, len(written) // GATED_TEXTS)]
        self._logprobs += [_mean_logprob(self.model_in("float32"), *each) for each in chosen]
        return cpu_s, len(written) * self.tokens

    def write(self, prompts: list[list[int]], seed: int) -> Written:
        """Write all samples of prompts."""
        if self._server is not None:
            return self._server.write(prompts, seed, self.tokens)
        if self.name in OURS:
            model = self.model_in("float32")
            return ours(model, prompts, seed, self.tokens, OURS[self.name])
        dtype, at_once = TRIED[self.name]
        return batched(self.model_in(dtype), at_once, prompts, seed, self.tokens)

    def model_in(self, dtype: str) -> Any:
        """The model in a type, as the contestant loads it."""
        from transformers import AutoModelForCausalLM

        if dtype not in self._models:
            loaded = AutoModelForCausalLM.from_pretrained(self.folder / "base", dtype=dtype)
            self._models[dtype] = loaded.eval()
        return self._models[dtype]

    def tell(self) -> dict[str, Any]:
        return {"logprobs": self._logprobs}

    def cpu_s(self) -> float:
        return super().cpu_s() if self._server is None else self._server.cpu_s()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def _mean_logprob(model: Any, prompt: list[int], answer: list[int]) -> float:
    """Nats per token under the model, temperature 1."""
    import torch

    ids = torch.tensor([prompt + answer])
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    logprobs = logits.log_softmax(-1)
    return float(logprobs.gather(1, ids[0, len(prompt) :, None]).mean())


def ours(model: Any, prompts: list[list[int]], seed: int, tokens: int, precision: str) -> Written:
    """brimful's engine."""
    from brimful.generation.copied_weights import products_for
    from brimful.generation.engine import Engine, longest_first
    from brimful.generation.requests import Request, StopRules
    from brimful.generation.sampler import SamplingSettings, sample_seeds

    seeds = sample_seeds(seed, len(prompts) * SAMPLES)
    requests = [
        Request(row, tuple(prompts[row // SAMPLES]), seeds[row], tokens)
        for row in range(len(seeds))
    ]
    settings = SamplingSettings(temperature=TEMPERATURE, top_k=None, top_p=1.0)
    engine = Engine(model, products=products_for(model, precision))
    stream = engine.stream(longest_first(requests), settings, StopRules(frozenset()))
    return [(list(request.prompt_ids), generation.token_ids) for request, generation in stream]


def batched(model: Any, at_once: int, prompts: list[list[int]], seed: int, tokens: int) -> Written:
    """`generate` on left-padded prompts of similar length, all samples of each."""
    import torch

    torch.manual_seed(seed)
    ordered, written = sorted(prompts, key=len), []
    for first in range(0, len(ordered), at_once):
        batch = ordered[first : first + at_once]
        longest = max(map(len, batch))
        padding = [longest - len(prompt) for prompt in batch]
        ids = [[END_ID] * n + prompt for n, prompt in zip(padding, batch, strict=True)]
        mask = [[0] * n + [1] * (longest - n) for n in padding]
        with torch.inference_mode():
            rows = model.generate(
                input_ids=torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                max_new_tokens=tokens,
                eos_token_id=None,
                pad_token_id=END_ID,
                num_return_sequences=SAMPLES,
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                top_p=1.0,
            )
        answers = rows[:, longest:].tolist()
        written += [(batch[row // SAMPLES], answer) for row, answer in enumerate(answers)]
    return written


class LlamaServer:
    """llama.cpp's server on one thread.

    Args:
        longest: Tokens that a prompt and its answer take at most.
    """

    def __init__(self, program: str, model: Path, longest: int) -> None:
        from brimful.model.gguf_writing import write_gguf

        kind, self._slots = TRIED[LLAMA]
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "model.gguf"
        write_gguf(model, file, kind, "model")  # type: ignore[arg-type]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [program, "-m", str(file), "--port", str(port), "-t", "1", "-tb", "1"]
        command += [
            "--threads-http",
            "2",
            "-np",
            f"{self._slots}",
            "-c",
            f"{self._slots * longest}",
        ]
        self._process = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)
        self._url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            if self._process.poll() is not None:
                raise SystemExit(f"llama.cpp's server ended with {self._process.returncode}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{self._url}/health").close()  # noqa: S310
                return
            time.sleep(0.5)
        raise SystemExit("llama.cpp's server did not start")

    def write(self, prompts: list[list[int]], seed: int, tokens: int) -> Written:
        """Every prompt is one request for all its samples, as many at once as there are slots."""

        def ask(number: int) -> Written:
            body = {
                "prompt": prompts[number],
                "n_predict": tokens,
                "n_cmpl": SAMPLES,
                "seed": seed * 1000 + number,
                "temperature": TEMPERATURE,
                "samplers": ["temperature"],
                "ignore_eos": True,
                "return_tokens": True,
            }
            request = urllib.request.Request(  # noqa: S310 - this machine's own server
                f"{self._url}/completion",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as answer:  # noqa: S310
                return [(prompts[number], each["tokens"]) for each in json.load(answer)]

        with concurrent.futures.ThreadPoolExecutor(self._slots // SAMPLES) as pool:
            answers = pool.map(ask, range(len(prompts)))
            return [pair for several in answers for pair in several]

    def cpu_s(self) -> float:
        """CPU seconds of the server so far."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()


COMPARISON = Sampling()
