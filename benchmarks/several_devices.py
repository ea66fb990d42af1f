"""One run on several ranks beside the same run in one process.

    python benchmarks/several_devices.py [--kinds documents pairs ...] [--folder FOLDER]

Ranks are processes of this machine that meet over gloo, each with one thread. Models are tiny, with
ragged data, accumulation and an uneven remainder: 7 sequences a step in micro-batches of 2. 20 steps of
documents, masked documents, LoRA, QLoRA (NF4) and full tuning of examples, pairs (whole models only) and
labels run in 1 process, and on 2 and 4 ranks with the whole model (replicated) and with parts of it
(sharded). Losses, gradient norms and final weights are compared. With a folder, what was done in it is
not done again. `kill.py --kinds ranks` kills such runs.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console

from brimful.base.rundir import read_journal
from brimful.chains import phases, pipeline
from brimful.recipe import Recipe, load
from brimful.training import checkpoint
from brimful.training.checkpoint import CheckpointStore
from brimful.training.world import ALONE, World, join
from record import RECORDS, write_record

COMMON = """
batch: {sequences: 7}
training: {steps: 20}
evaluation: {every: 10, max_sequences: 6}
checkpoint: {every: 4}
optimizer: {learning_rate: 5.0e-3, warmup: 3}
sample: {tokens: 4}
plan: {device: cpu, precision: fp32, threads: 1, compile: false, micro_batch: 2}
"""
FRESH = """
sequence_length: 32
tokenizer: {kind: bpe, vocabulary: 280}
data: {path: DATA/corpus.txt, document_start: "^# ", validation: 0.2, layout: document, long_documents: split}
"""
TUNED = """
method: sft
model: DATA/base
sequence_length: 64
data: {path: DATA/examples.jsonl, validation: 0.2, long_documents: drop, duplicates: drop}
"""
PAIRS = """
method: dpo
model: DATA/base
sequence_length: 64
data: {path: DATA/pairs.jsonl, validation: 0.2}
"""
KINDS = {
    "documents": f"name: documents\nmodel: {{architecture: llama, layers: 2, heads: 2, width: 32}}{FRESH}",
    "masked": f"name: masked\nmethod: mlm\nmodel: {{architecture: modernbert, layers: 2, heads: 2, width: 32}}{FRESH}",
    "lora": f"name: lora\nadapter: {{rank: 4}}{TUNED}",
    "qlora": f"name: qlora\nadapter: {{rank: 4}}\nquantize: nf4{TUNED}",
    "full": f"name: full{TUNED}",
    "pairs": f"name: pairs\nadapter: {{rank: 4}}{PAIRS}",
    "pairs-kept": f"name: pairs-kept\npreference: {{sft_weight: 0.5}}{PAIRS}",
    "labels": "name: labels\nmethod: classify\nmodel: DATA/base\nsequence_length: 24\n"
    "data: {path: DATA/texts.csv, validation: 0.2, long_documents: truncate}\nlabels: {class_weights: balanced}",
}
SPREADS = ("replicated", "sharded")
REPLICATED_ONLY = {"pairs", "pairs-kept"}
"""Their reference is not computed where the model lies in parts."""
TIMED = {
    *("step_time_s", "loader_wait_s", "core_wait_s", "tokens_per_second"),
    *("memory_bytes", "time", "seconds"),
}


def make_data(folder: Path) -> None:
    """Write texts, examples, labelled texts, and a published model of two blocks."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from brimful.data.tokenizer import as_transformers, train_backend
    from brimful.recipe.data import TokenizerRecipe

    drawn, words = random.Random(0), ["red", "green", "blue", "cat", "dog", "sees", "tree"]
    texts = [" ".join(drawn.choices(words, k=drawn.randint(2, 60))) for _ in range(60)]
    (folder / "corpus.txt").write_text("".join(f"# {n}\n{text}\n" for n, text in enumerate(texts)))
    rows = [(drawn.choice(words[:3]), drawn.randint(1, 8), number) for number in range(80)]
    (folder / "examples.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "instruction": f"Say {word} {count} times, number {number}.",
                    "output": f"{word} " * count,
                }
            )
            + "\n"
            for word, count, number in rows
        )
    )
    pairs = [
        {"prompt": f"Say {word}, {number}: ", "chosen": f"{word} " * count, "rejected": "tree sees"}
        for word, count, number in rows
    ]
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    labelled = [" ".join(drawn.choices(words[:5], k=drawn.randint(2, 12))) for _ in range(120)]
    (folder / "texts.csv").write_text(
        "text,label\n"
        + "".join(
            f"{text} {number},{'ab'['red' in text]}\n" for number, text in enumerate(labelled)
        )
    )
    texts = ["say red twice green blue three times number tree\n" * 20]
    tokenizer = as_transformers(train_backend(TokenizerRecipe(vocabulary=280), texts))
    end = tokenizer.eos_token_id
    tokenizer.pad_token = tokenizer.eos_token
    shape = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_key_value_heads=1, max_position_embeddings=128,
        bos_token_id=end, eos_token_id=end, pad_token_id=end, **shape,
    )  # fmt: skip
    torch.manual_seed(7)
    LlamaForCausalLM(config).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")


def recipe_of(kind: str, folder: Path, *changes: str) -> Recipe:
    path = folder / f"{kind}.yaml"
    path.write_text(f"{KINDS[kind]}{COMMON}".replace("DATA", str(folder)))
    return load(str(path), changes)


def train(recipe: Recipe, world: World = ALONE) -> None:
    pipeline.train(recipe, Console(file=StringIO()), world=world)


def on_ranks(size: int, act: Callable[[World], None]) -> list[int]:
    """Run `act` in forked processes; return how each ended: 0, 1, or the signal's number."""
    store = Path(tempfile.mkdtemp()) / "store"
    children: list[int] = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            _in_rank(rank, size, store, act)
        children.append(child)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    shutil.rmtree(store.parent)
    return [abs(end) for end in ends]


def _in_rank(rank: int, size: int, store: Path, act: Callable[[World], None]) -> None:
    code = 1
    try:
        torch.set_num_threads(1)
        if size == 1:
            act(ALONE)
        else:
            meeting = dist.FileStore(str(store), size)  # type: ignore[attr-defined]
            act(join(rank, size, local=(rank, size), store=meeting))
        code = 0
    except BaseException as error:
        if os.environ.get("VERBOSE"):
            print(f"rank {rank}: {type(error).__name__}: {error}", flush=True)
    os._exit(code)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    records = (each for each in read_journal(folder / "metrics.jsonl") if each["kind"] == "step")
    return [{key: value for key, value in each.items() if key not in TIMED} for each in records]


def final_of(folder: Path) -> Any:
    store = CheckpointStore(folder / "checkpoints", keep=2)
    return checkpoint.load(store.path_of(store.steps()[-1]))


def run_folder(recipe: Recipe) -> Path:
    return phases.folder_of(recipe)


def run_once(size: int, recipe: Recipe) -> Path:
    """Train a recipe on so many ranks, unless it was."""
    folder = run_folder(recipe)
    if not (folder / "model").is_dir():
        ends = on_ranks(size, partial(train, recipe))
        assert ends == [0] * size, (recipe.run_name, ends)
    return folder


def compare(folder: Path, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return the largest relative differences from one process, for each kind, spread and number."""
    results = []
    for kind in kinds:
        alone = run_once(1, recipe_of(kind, folder, f"run.name={kind}-1"))
        spreads = SPREADS[:1] if kind in REPLICATED_ONLY else SPREADS
        for spread, size in itertools.product(spreads, (2, 4)):
            name = f"{kind}-{spread}-{size}"
            ours = run_once(
                size, recipe_of(kind, folder, f"run.name={name}", f"plan.spread={spread}")
            )
            results.append(
                {"kind": kind, "spread": spread, "ranks": size, **differing(ours, alone)}
            )
            print(results[-1], flush=True)
    return results


def differing(ours: Path, alone: Path) -> dict[str, Any]:
    steps = list(zip(steps_of(ours), steps_of(alone), strict=True))
    weights, expected = final_of(ours).tensors["model"], final_of(alone).tensors["model"]
    return {
        "steps": len(steps),
        **{
            name: max(abs(one[name] - other[name]) / abs(other[name]) for one, other in steps)
            for name in ("loss", "grad_norm")
        },
        "same_tokens": all(one["tokens"] == other["tokens"] for one, other in steps),
        "weights": max(float((weights[name] - expected[name]).abs().max()) for name in expected),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="compare these, keep others"
    )
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = (arguments.folder or Path(tempfile.mkdtemp())).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"BRIMFUL_CACHE": str(folder / "cache"), "BRIMFUL_RUNS": str(folder / "runs")}
    if not (folder / "base").is_dir():
        make_data(folder)
    compared = compare(folder, arguments.kinds)
    if arguments.kinds != list(KINDS):
        before = json.loads((RECORDS / "ranks_equal.json").read_text())["compared"]
        compared = [each for each in before if each["kind"] not in arguments.kinds] + compared
    largest = {name: max(each[name] for each in compared) for name in ("loss", "grad_norm")}
    values = {"compared_now": arguments.kinds, "compared": compared, "largest": largest}
    print(write_record("ranks_equal", values))


if __name__ == "__main__":
    main()
