"""Sampling of a published model on one core: brimful beside transformers and llama.cpp's server,
same weights, questions and settings, tokens a second of CPU time.

    python benchmarks/sampling_published.py [--model smollm2-135m-instruct] [--rounds 5]
    [--llama-server FILE] [--prompts 16] [--tokens 48] [--only NAME ...] [--minutes 25]

Contestants:
    brimful: its engine as rounds of sampling and tasks use it: products in bf16 where the processor
        has instructions for it; and the same in fp32.
    transformers, continuous batching: `generate_batch`, samples of a prompt as requests of their
        own.
    transformers, batched: `generate` with num_return_sequences and a KV cache.
    llama.cpp: its server, built for this processor, the matrices as Q8_0; a prompt with all its
        samples is one request (`n_cmpl`). Counted is the server's CPU time alone.

With --try-settings every setting in `TRIED` is tried on `TRIED_PROMPTS` prompts first, and the best
one is measured; else the first one, which was the best in such a run.

Questions are those of builtin:unit-conversion in the model's chat template, another part of 64 each
round. End-of-text is ignored, so every text has the same number of tokens for everyone, and all
tokens count. Slower contestants get a part of a round's prompts (`SHARE`), enough to keep their
batches full.

Rules: one thread each, every contestant its own process, interleaved forwards and backwards,
warm-up excluded, CPU time, median of paired ratios with a bootstrap interval. Validity gate: the
mean log-probability of texts under the model in fp32 is that of `brimful, fp32` within
`GATE_DEVIATIONS` standard errors of the difference.
"""

import argparse
import concurrent.futures
import contextlib
import json
import math
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contestant import Contestant, Talk, interleaved, left_padded

ALL_PROMPTS, SAMPLES, GATED_TEXTS, WARM_UP_TOKENS = 64, 16, 8, 4
TRIED_PROMPTS = 2
"""Of llama.cpp, which is quicker, twice as many, so that all its slots are used."""
TEMPERATURE, GATE_DEVIATIONS = 0.7, 3.0
END_ID = 2
"""SmolLM2's end-of-text, for padding."""
OURS, OURS_FP32 = "brimful", "brimful, fp32"
CONTINUOUS, BATCHED = "transformers, continuous batching", "transformers, batched"
LLAMA = {"llama.cpp server, Q8_0": "q8_0"}
"""In bf16 it wrote 140 tokens/s where Q8_0 wrote 310 and 352 (n = 2, docs/log)."""
TRIED = {
    CONTINUOUS: ("bf16 32", "bf16 16", "fp32 32", "fp32 16"),
    BATCHED: ("bf16 2", "bf16 1", "fp32 2", "fp32 1"),
    **dict.fromkeys(LLAMA, ("32", "16")),
}
"""Type of the weights and requests at once; prompts at once; slots."""
SHARE = {OURS_FP32: 4, CONTINUOUS: 8, BATCHED: 8, **dict.fromkeys(LLAMA, 4)}
"""One prompt in so many."""
Written = list[tuple[list[int], list[int]]]
"""Prompts and what was written behind them."""


def main() -> None:
    """Compare all contestants and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m-instruct", help="short name or folder")
    parser.add_argument("--llama-server", default="", help="llama.cpp's server; without it, none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=16, help="of a round")
    parser.add_argument("--tokens", type=int, default=48, help="of every text")
    parser.add_argument("--only", action="append", help="contestants; no record is written then")
    parser.add_argument("--try-settings", action="store_true")
    parser.add_argument(
        "--minutes", type=float, default=600, help="after which no further round begins"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _Worker(options).work()
    else:
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), options)


def _compare(folder: Path, options: argparse.Namespace) -> None:
    from record import write_record

    end_s = time.monotonic() + 60 * options.minutes
    every = [OURS, OURS_FP32, CONTINUOUS, BATCHED, *(LLAMA if options.llama_server else ())]
    contestants = [_contestant(name, folder, options) for name in options.only or every]
    tuned = _tune(contestants) if options.try_settings else {}
    loads: list[float] = []
    runs: dict[str, list[dict[str, Any]]] = {each.name: [] for each in contestants}
    for each in interleaved(contestants, options.rounds, loads):
        number = len(loads) - 1
        if not any(len(found) > number for found in runs.values()) and time.monotonic() > end_s:
            break
        runs[each.name].append(each.ask(f"run {number}"))
        last = runs[each.name][-1]
        print(f"{each.name}: {last['tokens'] / last['cpu_s']:,.0f} tokens/s", flush=True)
    memory = {each.name: each.ask("memory") for each in contestants}
    for each in contestants:
        each.quit()
    results = {
        name: _result(name, runs)
        | {"setting": tuned[name]["kept"] if name in tuned else TRIED.get(name, ("",))[0]}
        for name in runs
    }
    for name, result in results.items():
        result["peak_memory_bytes"] = memory[name]
        _print(name, result)
    if options.only is None:
        values = {
            "model": Path(options.model).name,
            "rounds": min(map(len, runs.values())),
            "contestant_threads": 1,
            "workload": {
                "prompts_a_round": options.prompts,
                "prompts_in_all": ALL_PROMPTS,
                "samples_per_prompt": SAMPLES,
                "tokens_of_every_text": options.tokens,
                "temperature": TEMPERATURE,
            },
            "settings_tried": tuned or "in an earlier run: see TRIED in the script",
            "llama_cpp": _version(options.llama_server),
            "loads": loads,
            "results": results,
        }
        print(write_record("sampling_published", values))


def _contestant(name: str, folder: Path, options: argparse.Namespace) -> Contestant:
    command = [sys.executable, __file__, "--worker", name, "--model", options.model]
    command += ["--prompts", str(options.prompts), "--tokens", str(options.tokens)]
    return Contestant(name, folder, [*command, "--llama-server", options.llama_server])


def _version(server: str) -> str | None:
    if not server:
        return None
    told = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    return " ".join((told.stdout + told.stderr).split())[-200:]


def _tune(contestants: list[Contestant]) -> dict[str, dict[str, Any]]:
    """Tokens a second of every setting; the contestant keeps the best."""
    tried: dict[str, dict[str, Any]] = {}
    for each in contestants:
        if each.name in TRIED:
            rates = {setting: float(each.ask(f"try {setting}")) for setting in TRIED[each.name]}
            best = max(rates, key=rates.__getitem__)
            each.ask(f"keep {best}")
            tried[each.name] = {"kept": best, "tokens_per_cpu_s": rates}
            print(each.name, tried[each.name], flush=True)
    return tried


def _result(name: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    from record import ratio_interval, summary

    rounds = min(map(len, runs.values()))
    rates = {each: [run["tokens"] / run["cpu_s"] for run in runs[each][:rounds]] for each in runs}
    reference = OURS_FP32 if OURS_FP32 in runs else name
    off = _deviation(runs[name], runs[reference])
    return {
        "tokens_per_cpu_s": summary(rates[name]),
        "texts_a_round": runs[name][0]["texts"],
        "brimful_over_it": ratio_interval(rates[OURS], rates[name]) if OURS in rates else None,
        "mean_logprob": statistics.mean(_logprobs(runs[name])),
        "standard_errors_from_fp32": off,
        "valid": abs(off) < GATE_DEVIATIONS,
    }


def _logprobs(runs: list[dict[str, Any]]) -> list[float]:
    return [value for run in runs for value in run["logprobs"]]


def _deviation(runs: list[dict[str, Any]], reference: list[dict[str, Any]]) -> float:
    """How many standard errors of the difference lie between two means over texts."""
    ours, theirs = _logprobs(runs), _logprobs(reference)
    error = math.sqrt(
        statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs)
    )
    return float((statistics.mean(ours) - statistics.mean(theirs)) / error)


def _print(name: str, result: dict[str, Any]) -> None:
    over = result["brimful_over_it"] or {"median": 1.0, "low": 1.0, "high": 1.0}
    print(
        f"{name:<34} {result['tokens_per_cpu_s']['median']:6,.0f} tokens/s of CPU time; brimful"
        f" {over['median']:.2f}x [{over['low']:.2f}, {over['high']:.2f}]  logprob"
        f" {result['mean_logprob']:.3f}, off by {result['standard_errors_from_fp32']:+.1f} errors"
        f" {'valid' if result['valid'] else 'NOT VALID'} "
        f" {result['peak_memory_bytes'] / 2**20:,.0f} MiB  {result['setting'] or ''}"
    )


class _Worker:
    """Runs one contestant; talks through standard input and output."""

    def __init__(self, options: argparse.Namespace) -> None:
        from brimful.model.obtained import folder_of_model

        self._talk = Talk()
        self.name, self.tokens, self._round = options.worker, options.tokens, options.prompts
        self.folder = Path(options.model)
        if not self.folder.is_dir():
            self.folder = folder_of_model(options.model)
        self.setting = TRIED.get(self.name, ("",))[0]
        self.prompts = _questions(self.folder)
        self._models: dict[str, Any] = {}
        self._server = _LlamaServer(options.llama_server, self) if self.name in LLAMA else None

    def work(self) -> None:
        """Warm up, then answer requests until asked to quit."""
        self._warm_up()
        self._talk.write("ready")
        self._talk.serve(
            {
                "run": lambda rest: self._measured(self._of_round(int(rest)), 1000 + int(rest)),
                "try": self._tried,
                "keep": self._set,
                "memory": lambda _: self._peak_bytes(),
            }
        )
        if self._server is not None:
            self._server.stop()

    def _tried(self, setting: str) -> float:
        """Tokens a second with a setting."""
        self._set(setting)
        count = TRIED_PROMPTS * (2 if self._server else 1)
        run = self._measured(self.prompts[:count], 500)
        return float(run["tokens"] / run["cpu_s"])

    def model(self, dtype: str) -> Any:
        """The published model in a type, as the contestant loads it."""
        import torch
        from transformers import AutoModelForCausalLM

        types = {"fp32": torch.float32, "bf16": torch.bfloat16}
        if dtype not in self._models:
            self._models[dtype] = AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=types[dtype]
            ).eval()
        return self._models[dtype]

    def _set(self, setting: str) -> str:
        """Change the setting, and warm up."""
        if setting != self.setting:
            self.setting = setting
            self._warm_up()
        return "kept"

    def _warm_up(self) -> None:
        self.tokens, tokens = WARM_UP_TOKENS, self.tokens
        self._write(self.prompts[:1], 0)
        self.tokens = tokens

    def _of_round(self, number: int) -> list[list[int]]:
        count = max(1, self._round // SHARE.get(self.name, 1))
        first = number * self._round % len(self.prompts)
        return self.prompts[first : first + count]

    def _measured(self, prompts: list[list[int]], seed: int) -> dict[str, Any]:
        cpu_s = self._cpu_s()
        written = self._write(prompts, seed)
        cpu_s = self._cpu_s() - cpu_s
        lengths = {len(answer) for _, answer in written}
        if lengths != {self.tokens} or len(written) != len(prompts) * SAMPLES:
            raise SystemExit(f"{len(written)} texts of {sorted(lengths)} tokens were written")
        chosen = written[:: max(1, len(written) // GATED_TEXTS)]
        return {
            "cpu_s": cpu_s,
            "tokens": len(written) * self.tokens,
            "texts": len(written),
            "logprobs": [_mean_logprob(self.model("fp32"), *each) for each in chosen],
        }

    def _write(self, prompts: list[list[int]], seed: int) -> Written:
        if self._server is not None:
            return self._server.write(prompts, seed, int(self.setting))
        ways: dict[str, Callable[[], Written]] = {
            OURS: lambda: ours(self.model("fp32"), prompts, seed, self.tokens, "auto"),
            OURS_FP32: lambda: ours(self.model("fp32"), prompts, seed, self.tokens, "fp32"),
            CONTINUOUS: lambda: continuous(*self._sized(), prompts, seed, self.tokens),
            BATCHED: lambda: batched(*self._sized(), prompts, seed, self.tokens),
        }
        return ways[self.name]()

    def _sized(self) -> tuple[Any, int]:
        dtype, at_once = self.setting.split()
        return self.model(dtype), int(at_once)

    def _cpu_s(self) -> float:
        return time.process_time() if self._server is None else self._server.cpu_s()

    def _peak_bytes(self) -> int:
        if self._server is not None:
            return self._server.peak_bytes()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _questions(folder: Path) -> list[list[int]]:
    """Token ids of the questions, as a user would ask them."""
    from brimful.data.chat import Template
    from brimful.data.conversion import short_conversion_rows
    from brimful.data.formats import Message
    from brimful.model.tokenizer import load_tokenizer

    template = Template.of(load_tokenizer(folder), "auto")
    rows = [row.columns["question"] for row in short_conversion_rows()][:ALL_PROMPTS]
    return [template.prompt_ids((Message("user", str(each)),)) for each in rows]


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


def continuous(
    model: Any, at_once: int, prompts: list[list[int]], seed: int, tokens: int
) -> Written:
    """transformers' continuous batching; its cache is as large as everything that runs at once."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    config = GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        top_p=1.0,
        max_new_tokens=tokens,
        eos_token_id=-1,
        pad_token_id=END_ID,
    )
    longest = max(map(len, prompts)) + tokens
    page = 32
    batching = ContinuousBatchingConfig(
        page_size=page,
        num_blocks=at_once * (longest // page + 2),
        max_batch_tokens=1024,
        max_requests_per_batch=at_once,
        seed=seed,
    )
    requests = [prompt for prompt in prompts for _ in range(SAMPLES)]
    written = model.generate_batch(
        requests, generation_config=config, continuous_batching_config=batching
    )
    return [(list(each.prompt_ids), list(each.generated_tokens)) for each in written.values()]


def batched(model: Any, at_once: int, prompts: list[list[int]], seed: int, tokens: int) -> Written:
    """`generate` on left-padded prompts of similar length, all samples of each."""
    import torch

    torch.manual_seed(seed)
    ordered, written = sorted(prompts, key=len), []
    for first in range(0, len(ordered), at_once):
        batch = ordered[first : first + at_once]
        with torch.inference_mode():
            rows = model.generate(
                **left_padded(batch, END_ID),
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                top_p=1.0,
                max_new_tokens=tokens,
                eos_token_id=None,
                pad_token_id=END_ID,
                num_return_sequences=SAMPLES,
            )
        answers = rows[:, max(map(len, batch)) :].tolist()
        written += [(batch[row // SAMPLES], answer) for row, answer in enumerate(answers)]
    return written


class _LlamaServer:
    """llama.cpp's server on one thread, started anew for another number of slots."""

    def __init__(self, program: str, worker: _Worker) -> None:
        from brimful.model.gguf_writing import write_gguf

        self._program, self._worker, self._slots = program, worker, 0
        kind = LLAMA[worker.name]
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / f"model-{kind}.gguf"
        write_gguf(worker.folder, self._file, kind, "model")  # type: ignore[arg-type]
        self._longest = max(map(len, worker.prompts)) + worker.tokens + 8
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def write(self, prompts: list[list[int]], seed: int, slots: int) -> Written:
        """Every prompt is one request for all its samples, as many at once as there are slots."""
        if slots != self._slots:
            self._start(slots)
        at_once = max(1, slots // SAMPLES)
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            answers = pool.map(self._ask, prompts, range(seed * 1000, seed * 1000 + len(prompts)))
            return [pair for several in answers for pair in several]

    def cpu_s(self) -> float:
        """CPU seconds of the server so far."""
        assert self._process is not None
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> int:
        """Of the server."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def stop(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self, slots: int) -> None:
        self.stop()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [self._program, "-m", str(self._file), "--port", str(port), "-t", "1", "-tb", "1"]
        command += ["--threads-http", "2", "-np", str(slots), "-c", str(slots * self._longest)]
        self._process = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)
        self._url, self._slots = f"http://127.0.0.1:{port}", slots
        for _ in range(600):
            if self._process.poll() is not None:
                raise SystemExit(f"llama.cpp's server ended with {self._process.returncode}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{self._url}/health").close()  # noqa: S310
                return
            time.sleep(0.5)
        raise SystemExit("llama.cpp's server did not start")

    def _ask(self, prompt: list[int], seed: int) -> Written:
        body = {
            "prompt": prompt,
            "n_predict": self._worker.tokens,
            "n_cmpl": SAMPLES,
            "seed": seed,
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
            found = json.load(answer)
        return [(prompt, each["tokens"]) for each in found]


if __name__ == "__main__":
    main()
