"""A run folder as a finished quickstart leaves it, made up in numbers but whole in form."""

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import MakeRun
from safetensors.numpy import save_file

from brimful.base.types import JsonDict

STEPS = 500
START_UNIX_S = 1_790_000_000.0
STEP_TIME_S = 0.34

RECIPE = """\
name: quickstart
description: A small GPT on the Python that is already on your machine; about 3 minutes on 2 cores.
method: pretrain
seed: 1234
sequence_length: 256
batch:
  sequences: 16
  tokens: null
training:
  steps: 500
model:
  architecture: llama
  layers: 4
  heads: 4
  width: 256
tokenizer:
  kind: bpe
  vocabulary: 2048
data:
  path:
  - builtin:python-docs
  - builtin:python-code
optimizer:
  learning_rate: 0.003
  warmup: 50
run:
  name: null
"""

FRESH_MODEL = """\
model:
  architecture: llama
  layers: 4
  heads: 4
  width: 256
"""

LAYERS: JsonDict = {
    "tokens": 4096,
    "alignment": {
        "mean_cosine": 0.25,
        "segments": [
            {"name": "embedding", "cosine": 0.9, "norm_ratio": 1.0, "relative_error": 0.4},
            {"name": "block 1", "cosine": 0.2, "norm_ratio": 0.5, "relative_error": 1.1},
            {"name": "block 2", "cosine": 0.3, "norm_ratio": 2.0, "relative_error": 1.7},
            {"name": "above the blocks", "cosine": 1.0, "norm_ratio": 1.0, "relative_error": 0.0},
        ],
    },
    "attention": {
        "mean_cosine": 0.96,
        "mean_violation": 0.02,
        "dead": ["block 2"],
        "layers": [
            {
                "name": "block 1",
                "output_norm": 0.4,
                "cosine": 0.97,
                "norm_ratio": 1.01,
                "violation": 0.03,
                "worst_violation": 0.05,
                "temperatures": [1.0, 2.5],
            },
            {
                "name": "block 2",
                "output_norm": 1e-11,
                "cosine": 0.95,
                "norm_ratio": 0.99,
                "violation": 0.01,
                "worst_violation": 0.02,
                "temperatures": [1.5, 0.5],
            },
        ],
    },
}

PLAN: JsonDict = {
    "device": {"name": "AMD EPYC 9R14", "kind": "cpu", "threads": 2},
    "choices": [
        {
            "name": "precision",
            "value": "bf16",
            "reason": (
                "bf16 matrix products measured 3.1x faster than fp32 here; weights and optimizer"
                " states stay fp32."
            ),
            "alternative": "fp32",
        },
        {
            "name": "micro_batch",
            "value": 8,
            "reason": "Largest that keeps 20 % of the free memory in reserve.",
            "alternative": 4,
        },
        {
            "name": "recompute",
            "value": False,
            "reason": "Activations fit: 412 MiB of 6.1 GiB free.",
            "alternative": None,
        },
        {
            "name": "compile",
            "value": False,
            "reason": "No C++ compiler was found on this machine.",
            "alternative": True,
        },
    ],
    "micro_batch": 8,
    "accumulation": 2,
    "remainder": 0,
    "effective_batch": 16,
    "predicted": {
        "parameters": 3_672_320,
        "peak_memory_bytes": 1_310_000_000,
        "step_time_s": 0.31,
        "tokens_per_s": 13_200,
        "mfu": 0.2,
        "training_time_s": 155.0,
        "evaluation_time_s": 6.0,
        "checkpoint_time_s": 1.5,
        "start_time_s": 5.0,
        "total_time_s": 167.5,
        "energy_wh": 2.1,
        "cost_usd": 0.01,
    },
    "predicted_interval": {
        "peak_memory_bytes": [1_200_000_000, 1_450_000_000],
        "step_time_s": [0.26, 0.38],
        "training_time_s": [140.0, 168.0],
        "total_time_s": [150.0, 185.0],
        "energy_wh": [1.4, 2.8],
    },
    "basis": {
        "peak_memory_bytes": (
            "Weights, gradients, AdamW moments, saved activations of one micro-batch, interpreter."
        ),
        "step_time_s": "FLOPs over the measured bf16 matrix rate, times 1.4.",
    },
    "memory_terms": {
        "weights": 14_689_280,
        "gradients": 14_689_280,
        "optimizer_states": 29_378_560,
        "activations": 432_013_312,
        "interpreter": 819_229_568,
    },
    "time_terms": {
        "matrix": 0.19,
        "optimizer": 0.03,
        "attention": 0.05,
        "host": 0.0,
        "element-wise": 0.04,
    },
}

SCORES: JsonDict = {
    "validation": {
        "loss": 3.0312,
        "perplexity": 20.72,
        "bits_per_byte": 1.4183,
        "loss_interval": [2.9711, 3.0898],
        "bits_per_byte_interval": [1.3902, 1.4457],
        "tokens": 118_204,
        "bytes": 364_441,
        "documents": 214,
        "tokens_per_second": 41_200.0,
        "context": 256,
        "stride": 256,
        "baselines": {
            "uniform": {"loss": 7.6246, "bits_per_byte": 3.5676},
            "unigram": {"loss": 6.0127, "bits_per_byte": 2.8134},
            "bigram": {"loss": 4.4021, "bits_per_byte": 2.0598},
            "tokens": 118_204,
        },
    },
}

DATA: JsonDict = {
    "sources": [
        "python-docs: the language reference and docstrings of Python 3.11",
        "python-code: functions of the standard library with docstrings",
    ],
    "splits": {
        "validation": {
            "documents": 214,
            "bytes": 364_441,
            "characters": 363_902,
            "tokens": 118_204,
        },
        "train": {
            "documents": 4_210,
            "bytes": 7_204_101,
            "characters": 7_193_556,
            "tokens": 2_310_004,
        },
    },
    "tokenizer": {
        "kind": "bpe",
        "vocabulary": 2048,
        "characters_per_token": 3.08,
        "bytes_per_token": 3.083,
        "round_trip": True,
        "verdict": "good",
    },
    "leakage": {
        "train": {
            "documents": 4_210,
            "exact": 12,
            "exact_share": 0.00285,
            "normalised": 15,
            "normalised_share": 0.00356,
        },
        "validation": {
            "documents": 214,
            "exact": 0,
            "exact_share": 0.0,
            "normalised": 3,
            "normalised_share": 0.014,
        },
        "examples": [{"split": "validation", "kind": "normalised", "text": "def f(x): return x"}],
        "dropped": 0,
    },
    "notes": ["12 files of the standard library did not parse and were left out."],
}

ENVIRONMENT: JsonDict = {
    "brimful": "0.1.0",
    "python": "3.11.2",
    "platform": "Linux-6.18-x86_64",
    "packages": {"torch": "2.13.0+cpu", "transformers": "5.23.0", "tokenizers": "0.23.1"},
    "device": {
        "name": "AMD EPYC 9R14",
        "kind": "cpu",
        "memory_bytes": 8_000_000_000,
        "threads": 2,
        "dense_flop_per_s": {"fp32": 1.9e11, "bf16": 5.9e11},
        "abilities": {"bf16": True, "fp8": False},
    },
    "command": "brimful run quickstart",
    "git": None,
}

SAMPLES: list[JsonDict] = [
    {
        "prompt": "def ",
        "completion": (
            'get_annotations(self, name, default=None):\n    """Return the value of the named'
            " attribute.\n\n    If the attribute is not found, return the\n    default value, or"
            ' raise AttributeError.\n    """\n    if name in self._names:\n        return'
            " self._names[name]\n    for key, value in self.items():\n        if key < name and"
            " value > 0:\n            return default\n    raise AttributeError(name)\n"
        ),
        "finish": "end_of_text",
        "seed": 1234,
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 1.0,
        "tokens": 118,
        "seconds": 1.2,
    }
]


def step_record(step: int, random: np.random.Generator) -> JsonDict:
    """A step of a believable small training run."""
    loss = (
        2.95
        + 4.65 * math.exp(-step / 55)
        + 0.55 * math.exp(-step / 400)
        + float(random.normal(0, 0.06))
    )
    rate = 3e-3 * min(
        step / 50, 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1, max(0, step - 50) / 450)))
    )
    return {
        "kind": "step",
        "step": step,
        "loss": loss,
        "grad_norm": 0.4 + 2.5 * math.exp(-step / 30) + abs(float(random.normal(0, 0.08))),
        "learning_rate": rate,
        "tokens": step * 4096,
        "skipped": 0,
        "loss_scale": 1.0,
        "tokens_per_second": 4096 / STEP_TIME_S + float(random.normal(0, 260)),
        "step_time_s": STEP_TIME_S + float(random.normal(0, 0.007)),
        "memory_bytes": 1_262_000_000 + min(step, 20) * 500_000,
        "time": START_UNIX_S + step * STEP_TIME_S,
    }


def run_records(last_step: int) -> list[JsonDict]:
    """The records of metrics.jsonl up to `last_step`; ends with an end record when that is the last
    one.
    """
    random = np.random.default_rng(7)
    records: list[JsonDict] = [
        {
            "kind": "start",
            "step": 0,
            "total_steps": STEPS,
            "tokens_per_step": 4096,
            "run": "quickstart",
            "resumed": False,
        }
    ]
    for step in range(1, last_step + 1):
        records.append(step_record(step, random))
        if step % 50 == 0:
            loss = (
                3.0
                + 4.65 * math.exp(-step / 55)
                + 0.55 * math.exp(-step / 400)
                - 0.13 * (step == 450)
            )
            score = {
                "loss": loss,
                "perplexity": math.exp(loss),
                "bits_per_byte": loss * 0.4679,
                "tokens": 118_204,
                "seconds": 0.5,
                "best": True,
            }
            records.append({"kind": "evaluation", "step": step, "split": "validation", **score})
            records.append(
                {"kind": "checkpoint", "step": step, "bytes": 44_000_000, "seconds": 0.2}
            )
    if last_step == STEPS:
        records.append({"kind": "end", "step": STEPS, "seconds": 178.3, "reason": "finished"})
    return records


def write_lines(path: Path, records: list[JsonDict]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


OWN: dict[str, JsonDict] = {
    "plan": {"predicted": {}},
    "environment": {"brimful": ""},
    "data": {"fingerprints": {}},
}
"""What every such file of a run holds."""


def make_run(folder: Path, last_step: int = STEPS, **files: Any) -> Path:
    """Write a run folder. `files` replaces values by file stem (`plan={...}`); None leaves the file
    out.
    """
    folder.mkdir(parents=True)
    finished = last_step == STEPS
    values = {
        "plan": PLAN,
        "environment": ENVIRONMENT,
        "data": DATA,
        "scores": SCORES if finished else None,
    } | files
    for stem in ("plan", "environment", "data", "scores"):
        if values[stem] is not None:
            told = OWN.get(stem, {}) | values[stem]
            (folder / f"{stem}.json").write_text(json.dumps(told), encoding="utf-8")
    for name, records in (
        ("metrics", values.get("metrics", run_records(last_step))),
        ("samples", values.get("samples", SAMPLES if finished else None)),
    ):
        if records is not None:
            write_lines(folder / f"{name}.jsonl", records)
    recipe = values.get("recipe", RECIPE)
    if recipe is not None:
        (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    if finished:
        (folder / "model").mkdir()
        save_file(
            {"embedding": np.zeros((64, 8), np.float16), "head": np.zeros(100, np.float32)},
            folder / "model" / "model.safetensors",
        )
    return folder


@pytest.fixture
def new_run(tmp_path: Path) -> MakeRun:
    """A factory of run folders: `new_run(last_step=..., plan=..., ...)`."""

    def make(name: str = "quickstart", **choices: Any) -> Path:
        return make_run(tmp_path / "runs" / name, **choices)

    return make


def write_task(
    run: Path,
    task: str,
    scores: dict[str, dict[str, float]],
    *,
    version: int = 1,
    prompt: str = "template",
) -> None:
    """What an evaluation on a task leaves. `scores` are by metric, then by example."""
    folder = run / "evaluations"
    folder.mkdir(exist_ok=True)
    metrics = {}
    for metric, by_id in scores.items():
        mean, count = float(np.mean(list(by_id.values()))), len(by_id)
        metrics[metric] = {
            "value": mean,
            "interval": [mean - 0.05, mean + 0.05],
            "n": count,
            "unit": "share" if max(by_id.values()) <= 1 else "BLEU",
        }
    (folder / f"{task}.json").write_text(
        json.dumps({"task": task, "version": version, "prompt": prompt, "metrics": metrics}),
        encoding="utf-8",
    )
    ids = dict.fromkeys(number for by_id in scores.values() for number in by_id)
    write_lines(
        folder / f"{task}.jsonl",
        [
            {"id": each, "scores": {name: by_id[each] for name, by_id in scores.items()}}
            for each in ids
        ],
    )


MakeScored = Callable[..., Path]


@pytest.fixture
def scored_run(new_run: MakeRun) -> MakeScored:
    """A factory of scored runs: 200 examples of which `share` parse, 100 windows of 50 tokens at
    `loss` nats per token.

    What is hard is hard for all runs; `seed` decides which of the others' examples still differ.
    """

    def make(
        name: str,
        *,
        rank: int = 16,
        seed: int = 1,
        share: float = 0.8,
        loss: float = 2.0,
        **files: Any,
    ) -> Path:
        random, chance = np.random.default_rng(0), np.random.default_rng(seed)
        hard_N, hard_W = random.random(200), random.normal(0, 20, 100)
        passed_N = hard_N + chance.normal(0, 0.05, 200) < share
        nats_W = 50 * loss + hard_W + chance.normal(0, 1, 100)
        recipe = (
            RECIPE.replace("seed: 1234", f"seed: {seed}").replace(FRESH_MODEL, "model: org/model\n")
            + f"adapter:\n  rank: {rank}\n"
        )
        validation = SCORES["validation"] | {
            "loss": float(nats_W.sum() / 5000),
            "loss_interval": [loss - 0.08, loss + 0.08],
            "windows": 100,
        }
        data = DATA | {"fingerprints": {"data": "d1", "tokenizer": "t1"}}
        run = new_run(
            name, **({"recipe": recipe, "scores": {"validation": validation}, "data": data} | files)
        )
        write_task(
            run,
            "code-syntax",
            {"syntax": {f"ex/{number}": float(passed) for number, passed in enumerate(passed_N)}},
        )
        (run / "evaluations" / "validation-nats.json").write_text(
            json.dumps({"nats": nats_W.tolist(), "tokens": [50] * 100}), encoding="utf-8"
        )
        return run

    return make


@pytest.fixture
def on_task() -> Callable[..., None]:
    """`on_task(run, "bleu", {"bleu": {"ex/0": 31.0}}, version=2)` adds an evaluation to a run."""
    return write_task


TUNED_RECIPE = """\
name: code-lora
method: sft
seed: 7
sequence_length: 256
batch: {sequences: 16, tokens: null}
model: google/gemma-2-2b
adapter: {rank: 8, alpha: null, dropout: 0.05, targets: [q_proj, v_proj], rslora: false, dora: false}
quantize: nf4
data: {path: org/code, loss_on: completion}
optimizer: {kind: paged_adamw_8bit, learning_rate: 0.0002}
evaluation: {tasks: [code-syntax, bleu]}
"""
TUNED_DATA: JsonDict = {
    "sources": ["org/code"],
    "template": "chat",
    "splits": {
        "train": {
            "examples": 900,
            "tokens": 90_000,
            "target_tokens": 60_000,
            "longest_tokens": 257,
            "cut": 0,
            "dropped": 12,
        },
        "validation": {
            "examples": 100,
            "tokens": 10_000,
            "target_tokens": 6_500,
            "longest_tokens": 250,
            "cut": 3,
            "dropped": 0,
        },
    },
    "fingerprints": {"data": "d1", "tokenizer": "t1"},
    "base": {"source": "google/gemma-2-2b", "fingerprint": "c0ffee"},
}
TUNED_PLAN = PLAN | {"predicted": PLAN["predicted"] | {"parameters": 122_400}}


def _answer_record(number: int, completion: str, error: str = "", **more: Any) -> JsonDict:
    """A record of TASK.jsonl: an answer of code-syntax, which parses unless there is an error."""
    return {
        "id": f"ex/{number}",
        "prompt": f"Write f{number}.",
        "shots": 0,
        "reference": f"def f{number}():\n    return {number}\n",
        "scores": {"syntax": float(not error), "length": 9.0},
        "completion": completion,
        "extracted": completion,
        "finish": "end_of_text",
        "tokens": 9,
        "error": error,
    } | more


def _write_answers(folder: Path, task: str, records: list[JsonDict], **summary: Any) -> None:
    """TASK.json and TASK.jsonl as an evaluation leaves them; the metrics are the means of the
    scores.
    """
    (folder / "evaluations").mkdir(parents=True, exist_ok=True)
    metrics = {}
    for name in records[0]["scores"]:
        value = float(np.mean([record["scores"][name] for record in records]))
        unit = {"syntax": "share", "pass@1": "share", "length": "tokens"}.get(name, "BLEU")
        metrics[name] = {
            "value": value,
            "interval": [value * 0.9, value * 1.1],
            "n": len(records),
            "unit": unit,
        }
    kinds = [record["error"] for record in records if record["error"]]
    told = {
        "task": task,
        "version": 1,
        "prompt": "template",
        "n": len(records),
        "metrics": metrics,
        "temperature": 0.0,
        "samples": 1,
        "max_new_tokens": 128,
    }
    told |= {
        "errors": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "data": "the run's validation examples",
        "notes": ["10 of 100"],
    } | summary
    (folder / "evaluations" / f"{task}.json").write_text(json.dumps(told), encoding="utf-8")
    write_lines(folder / "evaluations" / f"{task}.jsonl", records)


def _write_untuned(folder: Path, loss: float = 2.5, **data: Any) -> None:
    """What `brimful evaluate RUN --untuned` leaves."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(
        "name: untuned\nmodel: google/gemma-2-2b\nuntuned: true\n", encoding="utf-8"
    )
    (folder / "data.json").write_text(json.dumps(OWN["data"] | TUNED_DATA | data), encoding="utf-8")
    (folder / "scores.json").write_text(
        json.dumps({"validation": SCORES["validation"] | {"loss": loss, "baselines": {}}}),
        encoding="utf-8",
    )


@pytest.fixture
def tuned_run(new_run: MakeRun) -> MakeRun:
    """A factory of runs that tuned a published model with adapters on a 4-bit base."""

    def make(name: str = "code-lora", **files: Any) -> Path:
        validation = {
            key: value for key, value in SCORES["validation"].items() if key != "baselines"
        } | {"loss": 1.5, "loss_interval": [1.4, 1.6]}
        told: JsonDict = {
            "recipe": TUNED_RECIPE,
            "data": TUNED_DATA,
            "plan": TUNED_PLAN,
            "scores": {"validation": validation},
        } | files
        run = new_run(name, **told)
        (run / "model" / "adapter_config.json").write_text("{}", encoding="utf-8")
        (run / "model" / "model.safetensors").rename(run / "model" / "adapter_model.safetensors")
        return run

    return make


@pytest.fixture
def untuned() -> Callable[..., None]:
    """`untuned(folder, loss=2.5)` leaves there what `brimful evaluate RUN --untuned` does."""
    return _write_untuned


@pytest.fixture
def answer_of() -> Callable[..., JsonDict]:
    """`answer_of(3, "def f(): ...", error="")` is a record of TASK.jsonl."""
    return _answer_record


@pytest.fixture
def answered() -> Callable[..., None]:
    """`answered(run, "code-syntax", records, **summary)` adds an evaluation with its answers to a
    run.
    """
    return _write_answers


@functools.cache
def _label_score(
    names: tuple[str, ...],
    positive: str | None,
    multiple: bool,
    seed: int,
    floor: bool,
    repeated: int,
    sharpness: float,
) -> str:
    """The record of scores.json, as JSON, of a classifier whose logits are near the truth, beside a
    floor whose logits are those and noise.
    """
    from brimful.classification.calibration import choose_calibration
    from brimful.data.labelled import LabelledSplit
    from brimful.data.labels import Labels
    from brimful.evaluation.label_scores import Rival, score_labels

    random, count, size = np.random.default_rng(seed), 240, len(names)
    noise_EC = random.normal(0, 1.2, (count, size))
    if multiple:
        targets = (random.random((count, size)) < 0.3).astype(np.float32)
        logits_EC = noise_EC + 2 * sharpness * targets - sharpness
    else:
        targets = random.choice(size, count, p=[0.8, 0.2] if size == 2 else None)
        logits_EC = noise_EC + sharpness * np.eye(size)[targets]
    floor_EC = logits_EC + random.normal(0, 1.5, (count, size))
    labels = Labels(names, multiple, None if positive is None else names.index(positive))
    texts, wheres = (
        tuple(f"message <{number}>" for number in range(count)),
        tuple(f"messages.tsv:{number + 1}" for number in range(count)),
    )
    split = LabelledSplit(texts, targets, wheres, np.arange(count) < repeated)
    own, others = (
        choose_calibration(each, targets, labels, "best_f1") for each in (logits_EC, floor_EC)
    )
    rival = (
        Rival("bag of words", floor_EC, others, {"C": 10.0, "ngrams": [1, 2]}) if floor else None
    )
    record, _ = score_labels(
        logits_EC, split, labels=labels, calibration=own, seconds=1.25, floor=rival
    )
    return json.dumps(record)


LabelScore = Callable[..., JsonDict]


@pytest.fixture(scope="session")
def label_score() -> LabelScore:
    """`label_score("ham", "spam", positive="spam", multiple=False, seed=0, floor=True, repeated=20,
    sharpness=2.5)`: a split's record of scores.json.
    """

    def make(
        *names: str,
        positive: str | None = None,
        multiple: bool = False,
        seed: int = 0,
        floor: bool = True,
        repeated: int = 20,
        sharpness: float = 2.5,
    ) -> JsonDict:
        made: JsonDict = json.loads(
            _label_score(names, positive, multiple, seed, floor, repeated, sharpness)
        )
        return made

    return make


CLASSIFY_RECIPE = """\
name: spam
method: classify
seed: 7
sequence_length: 128
batch: {sequences: 32, tokens: null}
model: /runs/tiny-encoder/model
data: {path: messages.tsv, loss_on: completion}
labels: {class_weights: balanced, loss: focal}
optimizer: {learning_rate: 0.0005}
"""


def _label_data() -> JsonDict:
    """data.json of labelled texts."""
    other = {"split": "train", "where": "messages.tsv:3", "label": "ham", "text": "see you at five"}
    return {
        "sources": ["messages.tsv"],
        "splits": {
            name: {
                "texts": count,
                "labels": {"ham": count * 4 // 5, "spam": count // 5},
                "words": {"median": 8.0, "p99": 60.0, "most": 171},
            }
            for name, count in (("train", 1000), ("validation", 120), ("test", 240))
        },
        "labels": {"names": ["ham", "spam"], "multiple": False, "positive": "spam"},
        "duplicates": {
            "train": {
                "texts": 1000,
                "exact": 31,
                "normalised": 44,
                "near": 12,
                "repeated": 56,
                "conflicts": 2,
            },
            "test": {
                "texts": 240,
                "exact": 9,
                "normalised": 12,
                "near": 8,
                "repeated": 20,
                "conflicts": 1,
            },
            "near_threshold": 0.8,
            "examples": [
                {
                    "split": "test",
                    "kind": "near",
                    "where": "messages.tsv:9",
                    "label": "spam",
                    "text": "see you at 5",
                    "of": other,
                }
            ],
            "conflict_examples": [
                {
                    "text": "call me",
                    "rows": [other, {"split": "test", "where": "messages.tsv:12", "label": "spam"}],
                }
            ],
        },
        "notes": [],
        "base": {"source": "/runs/tiny-encoder/model", "fingerprint": "c0ffee"},
        "fingerprints": {"data": "d1", "tokenizer": "t1"},
    }


def _label_records() -> list[JsonDict]:
    """metrics.jsonl of a classifier: the evaluation with the least objective is not that with the
    least loss.
    """
    records = run_records(STEPS)
    for number, record in enumerate(record for record in records if record["kind"] == "evaluation"):
        f1 = 0.5 + 0.04 * number
        record |= {
            "f1": f1,
            "macro_f1": f1 + 0.02,
            "pr_auc": f1 + 0.03,
            "accuracy": 0.9,
            "objective": -f1,
        }
        del record["perplexity"], record["bits_per_byte"]
    return records


@pytest.fixture
def labelled_run(new_run: MakeRun, label_score: LabelScore) -> MakeRun:
    """A factory of runs that classify texts, scored on validation and test."""

    def make(name: str = "spam", **files: Any) -> Path:
        scores = {
            split: label_score("ham", "spam", positive="spam", seed=seed)
            for seed, split in enumerate(("validation", "test"))
        }
        told: JsonDict = {
            "recipe": CLASSIFY_RECIPE,
            "data": _label_data(),
            "scores": scores,
            "metrics": _label_records(),
            "samples": None,
        }
        return new_run(name, **told | files)

    return make


MakeFresh = Callable[..., Path]


@pytest.fixture
def fresh_text_run(new_run: MakeRun) -> MakeFresh:
    """A factory of scored language models that were trained from nothing, with the record of their
    layers: 500 steps of `step_time_s`.
    """

    def make(
        name: str,
        *,
        seed: int = 1,
        heads: int = 4,
        loss: float = 3.0,
        step_time_s: float = 0.25,
        layers: Any = LAYERS,
    ) -> Path:
        evaluations = {step: loss + 100 / step for step in range(50, STEPS + 1, 50)}
        records: list[JsonDict] = [
            {"kind": "start", "step": 0, "total_steps": STEPS, "tokens_per_step": 4096}
        ]
        for step in range(1, STEPS + 1):
            records.append(
                {
                    "kind": "step",
                    "step": step,
                    "loss": loss,
                    "step_time_s": 9.0 if step == 1 else step_time_s,
                    "memory_bytes": 10**9,
                }
            )
            records += (
                [{"kind": "evaluation", "step": step, "loss": evaluations[step], "seconds": 5.0}]
                if step in evaluations
                else []
            )
        records.append({"kind": "end", "step": STEPS, "seconds": 200.0, "reason": "finished"})
        validation = SCORES["validation"] | {
            "loss": loss,
            "loss_interval": [loss - 0.1, loss + 0.1],
            "words": 59_102,
            "windows": 100,
        }
        scores = {"validation": validation} | ({} if layers is None else {"layers": layers})
        recipe = RECIPE.replace("seed: 1234", f"seed: {seed}").replace(
            "heads: 4", f"heads: {heads}"
        )
        return new_run(name, recipe=recipe, metrics=records, scores=scores)

    return make
