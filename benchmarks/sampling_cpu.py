"""Sampling on a CPU: brimful's engine beside transformers, same weights, same prompts, same
sampling settings, useful tokens a second.

    python benchmarks/sampling_cpu.py [--rounds 3] [--only NAME ...]

Contestants:
    brimful: the engine as `brimful sample` uses it.
    transformers, one prompt at a time: `generate` as a guide to parallel sampling calls it: chunks
        of 10 sequences, no KV cache. So slow that a round gives it `SLOW_PROMPTS` prompts only,
        others each time; its tokens a second are those of these.
    transformers, batched: `generate` as a careful user calls it: prompts sorted by length and
        batched, num_return_sequences=16, KV cache; the best of `SIZES` prompts at once.
    transformers, continuous batching: `generate_batch` with its paged KV cache, samples of a prompt
        as requests of their own, the best of `SIZES` requests at once; it gets
        `CONTINUOUS_PROMPTS` prompts a round, enough to keep its batch full.

Those of transformers that keep a cache write in fp32 and in bf16, the batched ones also with
brimful's setting of the allocator ("memory kept"); brimful with the products that it chooses, and
with either. The sizes are tried before on `TRIED_PROMPTS` prompts.

The model has fresh weights and never ends a text by itself, so end-of-text gets a bias in its last
layer, which lies in the same weights for everyone: lengths are about geometric, uneven as answers
of a model that reasons. Useful tokens are those before end-of-text or the limit.

Rules: one thread each, every contestant its own process, interleaved forwards and backwards,
warm-up excluded (the slow one has none), CPU time (wall time beside it), median of paired ratios
with a bootstrap interval. Validity gate: mean length and mean log-probability of the tokens under
the model (temperature 1) are those of `transformers, batched` within `GATE_DEVIATIONS` standard
errors of the difference.
"""

import argparse
import copy
import math
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contestant import (
    OURS,
    Contestant,
    Talk,
    and_memory_kept,
    interleaved,
    left_padded,
    setting,
)

PROMPTS, SAMPLES, SLOW_PROMPTS, MOST_TOKENS = 64, 16, 1, 256
PROMPT_TOKENS = (20, 120)
TEMPERATURE = 0.7
"""The only setting that is not off: what recipes with rft have unless told otherwise."""
CHUNK = 10
END_ID, END_BIAS, HEAD_SCALE = 0, 5.85, 4.0
"""Bias found by trying, for answers of about 25 tokens; fresh logits are nearly even, so the last
layer's weights are scaled to spread them.
"""
GATED_TEXTS, GATE_DEVIATIONS = 96, 3.0
"""Log-probabilities are computed for so many texts a round."""
MODEL = """
name: sampling-cpu
sequence_length: 512
batch: {sequences: 8}
training: {steps: 1}
model: {architecture: llama, layers: 6, heads: 6, width: 384, mlp_width: 1024, tie_embeddings: false}
tokenizer: {kind: bpe, vocabulary: 8192}
data: {path: "builtin:python-code"}
optimizer: {learning_rate: 1e-3}
"""
GUIDE, BATCHED, CONTINUOUS = (
    "transformers, one prompt at a time",
    "transformers, batched",
    "transformers, continuous batching",
)
BF16 = ", bf16"
IN_EITHER = {f"{OURS}, fp32": "fp32", f"{OURS}{BF16}": "bf16"}
NAMES = [
    OURS,
    *IN_EITHER,
    GUIDE,
    *and_memory_kept([BATCHED, BATCHED + BF16]),
    CONTINUOUS,
    CONTINUOUS + BF16,
]
SIZES = {BATCHED: (1, 2, 4), CONTINUOUS: (16, 32)}
TRIED_PROMPTS, CONTINUOUS_PROMPTS = 8, 16
"""As many batches of each size as there are prompts for; fewer would decide by the luck of their
longest texts.
"""

Answers = list[list[int]]
"""Token ids of each text, end-of-text excluded."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument(
        "--only",
        action="append",
        help="contestants, by name; without it all, and a record is written",
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _Worker(options.worker, options.prompts).work()
    else:
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), options)


def _compare(folder: Path, options: argparse.Namespace) -> None:
    from record import of_this_kind_of_cpu, write_record

    command = [sys.executable, __file__, "--prompts", str(options.prompts), "--worker"]
    contestants = [Contestant(name, folder, [*command, name]) for name in options.only or NAMES]
    tuned = _tune(contestants)
    loads: list[float] = []
    runs: dict[str, list[dict[str, Any]]] = {each.name: [] for each in contestants}
    for each in interleaved(contestants, options.rounds, loads):
        runs[each.name].append(each.ask(f"run {len(runs[each.name])}"))
        print(
            each.name,
            {key: value for key, value in runs[each.name][-1].items() if isinstance(value, float)},
            flush=True,
        )
    memory = {each.name: each.ask("memory") for each in contestants}
    for each in contestants:
        each.quit()
    results = {name: _result(name, runs) | {"peak_memory_bytes": memory[name]} for name in runs}
    for name, result in results.items():
        _print(name, result)
    if options.only is None:
        about = {
            "prompts": options.prompts,
            "samples_per_prompt": SAMPLES,
            "most_tokens": MOST_TOKENS,
            "prompt_tokens": PROMPT_TOKENS,
            "temperature": TEMPERATURE,
        }
        values = {
            "rounds": options.rounds,
            "contestant_threads": 1,
            "workload": about,
            "sizes_tried": tuned,
            "loads": loads,
            "results": results,
        }
        print(write_record(of_this_kind_of_cpu("sampling_cpu"), values))


def _tune(contestants: Sequence[Contestant]) -> dict[str, dict[str, float]]:
    """Useful tokens a second of CPU time for each number of prompts or requests at once; the
    contestant keeps the best.
    """
    tried = {}
    for each in contestants:
        if sizes := SIZES.get(_way(each.name)):
            rates = {size: float(each.ask(f"try {size}")) for size in sizes}
            each.ask(f"keep {max(rates, key=rates.__getitem__)}")
            tried[each.name] = {str(size): rate for size, rate in rates.items()}
    print(tried, flush=True)
    return tried


def _way(name: str) -> str:
    """How a contestant writes, whatever its precision."""
    return OURS if name in IN_EITHER else setting(name).removesuffix(BF16)


def _result(name: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    from record import ratio_interval, summary

    rates = {each: [run["tokens"] / run["cpu_s"] for run in runs[each]] for each in runs}
    lengths, logprobs = (
        [value for run in runs[name] for value in run[key]] for key in ("lengths", "logprobs")
    )
    gates = {
        key: _deviation(runs[name], runs.get(BATCHED, runs[name]), key)
        for key in ("lengths", "logprobs")
    }
    return {
        "useful_tokens_per_cpu_s": summary(rates[name]),
        "useful_tokens_per_wall_s": summary([run["tokens"] / run["wall_s"] for run in runs[name]]),
        "texts_a_round": len(runs[name][0]["lengths"]),
        "brimful_over_it": ratio_interval(rates[OURS], rates[name]) if OURS in rates else None,
        "length": {
            "mean": statistics.mean(lengths),
            "median": statistics.median(lengths),
            "max": max(lengths),
            "share_at_limit": sum(each == MOST_TOKENS for each in lengths) / len(lengths),
        },
        "mean_logprob": statistics.mean(logprobs),
        "standard_errors_from_batched": gates,
        "valid": all(abs(each) < GATE_DEVIATIONS for each in gates.values()),
    }


def _deviation(runs: list[dict[str, Any]], reference: list[dict[str, Any]], key: str) -> float:
    """How many standard errors of the difference lie between two means over texts."""
    ours, theirs = ([value for run in each for value in run[key]] for each in (runs, reference))
    error = math.sqrt(
        statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs)
    )
    return float((statistics.mean(ours) - statistics.mean(theirs)) / error)


def _print(name: str, result: dict[str, Any]) -> None:
    over, gates = (
        result["brimful_over_it"] or {"median": 1.0, "low": 1.0, "high": 1.0},
        result["standard_errors_from_batched"],
    )
    print(
        f"{name:<36} {result['useful_tokens_per_cpu_s']['median']:7,.0f} useful tokens/s of CPU"
        f" time, {result['useful_tokens_per_wall_s']['median']:7,.0f} of wall; brimful"
        f" {over['median']:.2f}x [{over['low']:.2f}, {over['high']:.2f}]  length"
        f" {result['length']['mean']:.1f} (median {result['length']['median']:.0f}, max"
        f" {result['length']['max']})  logprob {result['mean_logprob']:.3f}  off by"
        f" {gates['lengths']:+.1f}, {gates['logprobs']:+.1f} errors"
        f" {'valid' if result['valid'] else 'NOT VALID'} "
        f" {result['peak_memory_bytes'] / 2**20:,.0f} MiB"
    )


class _Worker:
    """Runs one contestant; talks through standard input and output."""

    def __init__(self, name: str, prompts: int) -> None:
        import torch

        self._talk = Talk()
        self.name, self.way = name, _way(name)
        self.at_once = SIZES.get(self.way, (1,))[0]
        self.model = self.writer = _model()
        if BF16 in name and self.way != OURS:
            self.writer = copy.deepcopy(self.model).bfloat16()
        lengths = (
            torch.linspace(*PROMPT_TOKENS, prompts)
            .long()[torch.randperm(prompts, generator=torch.Generator().manual_seed(1))]
            .tolist()
        )
        generator = torch.Generator().manual_seed(2)
        self.prompts = [
            torch.randint(1, self.model.config.vocab_size, (length,), generator=generator).tolist()
            for length in lengths
        ]

    def work(self) -> None:
        """Warm up, then answer requests until asked to quit."""
        if self.way != GUIDE:
            self._write(self.prompts[:1], seed=0)
        self._talk.write("ready")
        self._talk.serve(
            {
                "run": lambda rest: self._measured(self._of_round(int(rest)), 1000 + int(rest)),
                "try": self._tried,
                "keep": self._set,
                "memory": lambda _: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )

    def _set(self, at_once: str) -> int:
        self.at_once = int(at_once)
        return self.at_once

    def _tried(self, at_once: str) -> float:
        self._set(at_once)
        run = self._measured(self.prompts[:TRIED_PROMPTS], seed=500)
        return float(run["tokens"] / run["cpu_s"])

    def _of_round(self, number: int) -> list[list[int]]:
        count = {GUIDE: SLOW_PROMPTS, CONTINUOUS: CONTINUOUS_PROMPTS}.get(
            self.way, len(self.prompts)
        )
        first = number * count % len(self.prompts)
        return self.prompts[first : first + count]

    def _measured(self, prompts: list[list[int]], seed: int) -> dict[str, Any]:
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        answers = self._write(prompts, seed)
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        lengths = [len(answer) for _, answer in answers]
        stride = max(1, len(answers) // GATED_TEXTS)
        logprobs = [
            _mean_logprob(self.model, prompt, answer)
            for prompt, answer in answers[::stride]
            if answer
        ]
        return {
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "tokens": sum(lengths),
            "lengths": lengths,
            "logprobs": logprobs,
        }

    def _write(self, prompts: list[list[int]], seed: int) -> list[tuple[list[int], list[int]]]:
        """`SAMPLES` answers to each prompt, with their prompts."""
        ways: dict[str, Callable[[], list[tuple[list[int], list[int]]]]] = {
            OURS: lambda: ours(self.model, prompts, seed, IN_EITHER.get(self.name, "auto")),
            GUIDE: lambda: one_at_a_time(self.writer, prompts, seed),
            BATCHED: lambda: batched(self.writer, prompts, seed, self.at_once),
            CONTINUOUS: lambda: continuous(self.writer, prompts, seed, self.at_once),
        }
        return ways[self.way]()


def _model() -> Any:
    """The same fresh weights in every process, with the bias for end-of-text."""
    import torch

    from brimful.model.build import build
    from brimful.recipe import load

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as recipe:
        recipe.write(MODEL)
        recipe.flush()
        model = build(
            load(recipe.name),
            vocabulary=8192,
            end_of_text_id=END_ID,
            attention="sdpa",
            device=torch.device("cpu"),
        ).eval()
    head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size)
    with torch.no_grad():
        head.weight.copy_(model.lm_head.weight * HEAD_SCALE)
        head.weight[END_ID] = 0
        head.bias.zero_()
        head.bias[END_ID] = END_BIAS
    model.lm_head = head
    model.generation_config.pad_token_id = END_ID
    return model


def _mean_logprob(model: Any, prompt: list[int], answer: list[int]) -> float:
    """Nats per token under the model, temperature 1."""
    import torch

    ids = torch.tensor([prompt + answer])
    with torch.inference_mode():
        logprobs = (
            model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        )
    return float(logprobs.gather(1, ids[0, len(prompt) :, None]).mean())


def ours(
    model: Any, prompts: list[list[int]], seed: int, precision: str
) -> list[tuple[list[int], list[int]]]:
    """brimful's engine, with the products that rounds of sampling use, or with those of a
    precision.
    """
    from brimful.generation.copied_weights import products_for
    from brimful.generation.engine import Engine
    from brimful.generation.requests import Request, StopRules
    from brimful.generation.sampler import SamplingSettings, sample_seeds

    seeds = sample_seeds(seed, len(prompts) * SAMPLES)
    requests = [
        Request(row, tuple(prompts[row // SAMPLES]), seeds[row], MOST_TOKENS)
        for row in range(len(seeds))
    ]
    settings = SamplingSettings(temperature=TEMPERATURE, top_k=None, top_p=1.0)
    products = "bf16" if precision == "bf16" else products_for(model, precision)
    engine = Engine(model, products=products)
    written = dict(engine.stream(requests, settings, StopRules(frozenset({END_ID}))))
    return [
        (list(request.prompt_ids), generation.token_ids) for request, generation in written.items()
    ]


def one_at_a_time(
    model: Any, prompts: list[list[int]], seed: int
) -> list[tuple[list[int], list[int]]]:
    """As the guide: a prompt after another, chunks of 10 sequences, the whole text read again for
    every token.
    """
    import torch

    torch.manual_seed(seed)
    written = []
    for prompt in prompts:
        for first in range(0, SAMPLES, CHUNK):
            rows = _generate(
                model, [prompt], use_cache=False, num_return_sequences=min(CHUNK, SAMPLES - first)
            )
            written += [(prompt, row) for row in rows]
    return written


def batched(
    model: Any, prompts: list[list[int]], seed: int, at_once: int
) -> list[tuple[list[int], list[int]]]:
    """As a careful user: sorted by length, several prompts at once, KV cache."""
    import torch

    torch.manual_seed(seed)
    ordered = sorted(prompts, key=len)
    written = []
    for first in range(0, len(ordered), at_once):
        batch = ordered[first : first + at_once]
        rows = _generate(model, batch, use_cache=True, num_return_sequences=SAMPLES)
        written += [(batch[row // SAMPLES], answer) for row, answer in enumerate(rows)]
    return written


def _generate(model: Any, prompts: list[list[int]], **options: Any) -> Answers:
    """`generate` on left-padded prompts."""
    import torch

    longest = max(map(len, prompts))
    with torch.inference_mode():
        written = model.generate(
            **left_padded(prompts, END_ID),
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
            top_p=1.0,
            max_new_tokens=MOST_TOKENS,
            **options,
        )
    return [_useful(row) for row in written[:, longest:].tolist()]


def continuous(
    model: Any, prompts: list[list[int]], seed: int, at_once: int
) -> list[tuple[list[int], list[int]]]:
    """transformers' continuous batching, its cache as large as everything needs that runs at once;
    blocks of prompts are not shared at this length.
    """
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    config = GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        top_p=1.0,
        max_new_tokens=MOST_TOKENS,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
    )
    batching = ContinuousBatchingConfig(
        page_size=32,
        num_blocks=1024,
        max_batch_tokens=1024,
        max_requests_per_batch=at_once,
        seed=seed,
    )
    requests = [prompt for prompt in sorted(prompts, key=len, reverse=True) for _ in range(SAMPLES)]
    written = model.generate_batch(
        requests, generation_config=config, continuous_batching_config=batching
    )
    return [(each.prompt_ids, _useful(each.generated_tokens)) for each in written.values()]


def _useful(ids: list[int]) -> list[int]:
    return ids[: ids.index(END_ID)] if END_ID in ids else ids


if __name__ == "__main__":
    main()
