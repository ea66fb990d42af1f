"""How fast two ranks on two cores train beside one rank on two threads.

    python benchmarks/ranks_speed.py [--rounds 5] [--steps 8] [--layers 10] [--width 640]

A model of 50 million parameters trains on documents, 8 sequences of 128 tokens a step in fp32, in
processes of its own: on one rank with two threads, and on two ranks with one thread each, with the
whole model on each (replicated) and with parts of it (sharded). Every round trains each once, in
another order; a figure of a round is the median over its steps but the first two. What is recorded
are the ratios of tokens per second to one rank's of the same round. Use an idle machine: the record
says how busy it was.
"""

import argparse
import os
import random
import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import several_devices
from brimful.base.rundir import read_journal, read_json
from brimful.chains import phases
from brimful.recipe import Recipe, load
from record import summary, write_record
from several_devices import on_ranks, train

RECIPE = """
name: speed
model: {architecture: llama, layers: LAYERS, heads: 10, width: WIDTH}
sequence_length: 128
tokenizer: {kind: bpe, vocabulary: 1000}
data: {path: DATA, validation: 0.1}
batch: {sequences: 8}
training: {steps: STEPS}
evaluation: {every: 1000, max_sequences: 2}
checkpoint: {every: 1000, keep: 2}
optimizer: {learning_rate: 1.0e-4, warmup: 2}
sample: {tokens: 1}
plan: {device: cpu, precision: fp32, compile: false, micro_batch: 4, loader_workers: 1}
"""
WAYS = {
    "one rank, 2 threads": (1, ["plan.threads=2"]),
    "two ranks, replicated": (2, ["plan.threads=1", "plan.spread=replicated"]),
    "two ranks, sharded": (2, ["plan.threads=1", "plan.spread=sharded"]),
}
FIRST_STEPS = 2
"""Left out: they allocate."""


def recipe_of(folder: Path, arguments: argparse.Namespace, *changes: str) -> Recipe:
    path = folder / "speed.yaml"
    text = RECIPE.replace("DATA", str(folder / "corpus.txt"))
    for name in ("layers", "width", "steps"):
        text = text.replace(name.upper(), str(getattr(arguments, name)))
    path.write_text(text)
    return load(str(path), changes)


def write_corpus(folder: Path) -> None:
    """Write 60,000 words: more tokens than any run reads twice."""
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghij", k=drawn.randint(2, 8))) for _ in range(500)]
    lines = [" ".join(drawn.choices(words, k=60)) for _ in range(1000)]
    (folder / "corpus.txt").write_text("\n\n".join(lines))


def trained(folder: Path, arguments: argparse.Namespace, way: str, name: str) -> dict[str, Any]:
    """Train once; return tokens per second and the number of parameters."""
    size, changes = WAYS[way]
    recipe = recipe_of(folder, arguments, f"run.name={name}", f"run.folder={folder}", *changes)
    assert on_ranks(size, partial(train, recipe)) == [0] * size, name
    run = phases.folder_of(recipe)
    steps = [each for each in read_journal(run / "metrics.jsonl") if each["kind"] == "step"]
    seconds = statistics.median(each["step_time_s"] for each in steps[FIRST_STEPS:])
    plan = read_json(run / "plan.json")
    shutil.rmtree(run)
    tokens = recipe.effective_batch * recipe.sequence_length
    return {"tokens_per_s": tokens / seconds, "parameters": plan["parameters"]}


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--width", type=int, default=640)
    arguments = parser.parse_args()
    several_devices.RANKS_LAST_S = 3600.0
    folder, order = Path(tempfile.mkdtemp()), list(WAYS)
    write_corpus(folder)
    rounds: list[dict[str, float]] = []
    busy = [os.getloadavg()[0]]
    for number in range(arguments.rounds):
        found = {way: trained(folder, arguments, way, f"speed-{number}") for way in order}
        rounds.append({way: found[way]["tokens_per_s"] for way in WAYS})
        busy.append(os.getloadavg()[0])
        print({way: round(value, 1) for way, value in rounds[-1].items()}, flush=True)
        order.append(order.pop(0))
    alone, *others = WAYS
    ratios = {way: summary([each[way] / each[alone] for each in rounds]) for way in others}
    values = {
        "parameters": found[alone]["parameters"],
        "steps": arguments.steps,
        "rounds": rounds,
        "ratio_to_one_rank": ratios,
        "load_average": busy,
    }
    print(ratios)
    print(write_record("ranks_speed", values))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
