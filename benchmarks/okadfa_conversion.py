"""What conversion to kernel attention costs a published model: SmolLM2-135M-Instruct with its own
attention, converted (at several temperatures), and the converted network with fresh weights, each
tuned on the same tokens of WikiText-2.

    python benchmarks/okadfa_conversion.py --data FOLDER [--only "NAME;..."] [--steps 10]

FOLDER holds wikitext-2/train.txt.gz, wikitext-2/valid.txt.gz and gpt2_bpe/. Scores are of the first
documents of the validation text, before and after tuning, as perplexity per token of GPT-2's
tokenizer. The record is written anew after every variant. Converted models and runs lie in the runs
folder (BRIMFUL_RUNS), and finished runs are not made again.
"""

import argparse
import gzip
import json
import math
from pathlib import Path
from typing import Any

from brimful.base.env import keep_few_kernels, runs_folder, wait_politely

wait_politely()
keep_few_kernels()

import torch  # noqa: E402 - the environment comes before torch
from rich.console import Console  # noqa: E402
from tokenizers import ByteLevelBPETokenizer  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from brimful.base.rundir import read_journal, read_json, write_text_atomically  # noqa: E402
from brimful.chains import phases, pipeline  # noqa: E402
from brimful.chains.text_score import score_text  # noqa: E402
from brimful.model.okadfa.conversion import KernelSettings, convert_to_kernel  # noqa: E402
from brimful.model.tokenizer import load_tokenizer  # noqa: E402
from brimful.recipe import Recipe, load  # noqa: E402
from record import write_record  # noqa: E402

SOURCE = "smollm2-135m-instruct"
RECIPE = """
name: okadfa-conversion
method: sft
model: MODEL
sequence_length: 256
batch: {sequences: 4}
training: {steps: STEPS}
data: {path: ROWS, long_documents: drop, template: plain, validation: 0.002}
optimizer: {learning_rate: RATE, warmup: 0.1}
evaluation: {every: 1000, max_sequences: 8}
plan: {device: cpu, threads: 1}
run: {name: conversion-NAME}
"""
TEMPERATURES = (1.0, 4.0)
TUNED_RATE, FRESH_RATE = 3e-4, 1e-3
"""Learning rates of what starts from published and from fresh weights; not searched for."""
FRESH = "kernel, fresh weights"
ROW_CHARACTERS = 700
"""About 170 tokens, so that rows fit the sequences."""
SCORED_CHARACTERS = 16_000


def main() -> None:
    """Tune and score one variant after the other, and write the record after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--only", default="", help="variants, separated by semicolons; default: all"
    )
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    names = ["softmax", *(f"kernel, temperature {each:g}" for each in TEMPERATURES), FRESH]
    wanted = options.only.split(";") if options.only else names
    rows, held_out = _texts(options.data)
    tokens = _gpt2_tokens(options.data / "gpt2_bpe", held_out)
    done: dict[str, Any] = {}
    for name in names:
        recipe = _recipe(name, rows, options.steps)
        if name not in wanted and not (phases.folder_of(recipe) / "scores.json").exists():
            continue
        done[name] = _of_variant(recipe, held_out, tokens)
        values = {
            "steps": options.steps,
            "sequences_a_step": recipe.effective_batch,
            "held_out": {"characters": SCORED_CHARACTERS, "gpt2_tokens": tokens},
            "missing": [each for each in names if each not in done],
            "variants": done,
        }
        print(f"record: {write_record('okadfa_conversion', values)}")


def _texts(data: Path) -> tuple[Path, Path]:
    """Write the rows to tune on, and the text to score, into the runs folder."""
    folder = runs_folder()
    folder.mkdir(parents=True, exist_ok=True)
    train, valid = (
        gzip.decompress((data / "wikitext-2" / f"{name}.txt.gz").read_bytes()).decode()
        for name in ("train", "valid")
    )
    rows = [train[start : start + ROW_CHARACTERS] for start in range(0, len(train), ROW_CHARACTERS)]
    path, held_out = folder / "wikitext-rows.jsonl", folder / "wikitext-held-out.txt"
    write_text_atomically(path, "".join(f"{json.dumps({'text': row})}\n" for row in rows))
    write_text_atomically(held_out, valid[:SCORED_CHARACTERS])
    return path.resolve(), held_out


def _gpt2_tokens(folder: Path, held_out: Path) -> int:
    tokenizer = ByteLevelBPETokenizer(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    return len(tokenizer.encode(held_out.read_text(encoding="utf-8")).ids)


def _recipe(name: str, rows: Path, steps: int) -> Recipe:
    text = (
        RECIPE.replace("MODEL", str(_model_of(name)))
        .replace("ROWS", str(rows))
        .replace("STEPS", str(steps))
        .replace("RATE", str(FRESH_RATE if name == FRESH else TUNED_RATE))
        .replace("NAME", name.replace(", ", "-").replace(" ", "-"))
    )
    path = runs_folder() / "okadfa-conversion.yaml"
    write_text_atomically(path, text)
    return load(str(path), ())


def _model_of(name: str) -> str | Path:
    """Return the model that a variant starts from; it is made if need be."""
    if name == "softmax":
        return SOURCE
    folder = runs_folder() / f"model-{name.replace(', ', '-').replace(' ', '-')}"
    if folder.exists():
        return folder
    if name != FRESH:
        settings = KernelSettings(temperature=float(name.rsplit(" ", 1)[1]))
        return convert_to_kernel(SOURCE, folder, settings, print)
    converted = _model_of(f"kernel, temperature {TEMPERATURES[0]:g}")
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(converted)
    # A padding token gets no embedding. Here it also begins texts, whose states would stay 0 in
    # every layer, where norms have gradients without bounds.
    pad_id, config.pad_token_id = config.pad_token_id, None
    fresh = AutoModelForCausalLM.from_config(config)
    fresh.config.pad_token_id = pad_id
    fresh.save_pretrained(folder)
    load_tokenizer(converted).save_pretrained(folder)
    return folder


def _of_variant(recipe: Recipe, held_out: Path, tokens: int) -> dict[str, Any]:
    folder, console = phases.folder_of(recipe), Console(width=120)
    if not (folder / "scores.json").exists():
        pipeline.run(recipe, console)
    before, after = (
        score_text(folder, held_out, console, untuned=untuned) for untuned in (True, False)
    )
    steps = [each for each in read_journal(folder / "metrics.jsonl") if each["kind"] == "step"]
    return {
        "learning_rate": recipe.optimizer.learning_rate,
        "trained_tokens": max(step["tokens"] for step in steps),
        "training_s": sum(step["step_time_s"] for step in steps),
        "before": _score(before, held_out, tokens),
        "after": _score(after, held_out, tokens),
        "validation": read_json(folder / "scores.json")["validation"],
    }


def _score(scores: dict[str, Any], held_out: Path, tokens: int) -> dict[str, float]:
    """Return bits per byte, and the same nats per token of GPT-2's tokenizer."""
    found = next(iter(scores.values()))
    nats = found["bits_per_byte"] * math.log(2) * len(held_out.read_bytes())
    return {
        "bits_per_byte": found["bits_per_byte"],
        "perplexity_per_gpt2_token": math.exp(nats / tokens),
    }


if __name__ == "__main__":
    main()
