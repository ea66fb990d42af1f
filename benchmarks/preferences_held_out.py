"""Held-out accuracy of pairs of a public data set, learned by brimful and by TRL's DPOTrainer.

    python benchmarks/preferences_held_out.py --data FOLDER/sst2 [--seeds 1 2 3] [--steps 40]

The pairs are made of SST-2, sentences of film reviews that people judged: to the prompt "A positive
film review:" (or "A negative film review:") the chosen answer is a sentence so judged, the rejected
one another, judged the other way. No sentence is in two pairs. Held out are pairs of its dev.tsv.

Both begin with the same adapters on SmolLM2-135M-Instruct, in fp32, and learn the same token ids in
the same order by the same settings: brimful as `preferences_cpu.py` runs it, TRL without
recomputation, its reference in every pass. Then one function scores both models, answer by answer:
a pair is told if the log-ratio of its chosen answer to the model before training is higher. Beside
it the share whose chosen answer is likelier to that model, without any reference. Losses of all
steps are in the record.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contestant import Contestant
from preferences_cpu import MODEL, PairWorker, prepare, token_ids, work

OURS, THEIRS = "brimful, fp32", "TRL, no recomputation, fp32"
PER_STEP, LEARNING_RATE = 8, 3e-4
JUDGED = {"1": "positive", "0": "negative"}
HELD_OUT, BEFORE = "held_out.json", "before.json"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="holds train.tsv and dev.tsv")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=40, help=f"of {PER_STEP} pairs")
    parser.add_argument("--held-out", type=int, default=150, help="pairs")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(_Worker(options.worker, options.folder, 1, PER_STEP), learning_rate=LEARNING_RATE)
        return
    from record import write_record

    results = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            results.append({"seed": seed, **_compare(Path(folder), options, seed)})
            print(json.dumps(results[-1]), flush=True)
    values = {
        "model": MODEL,
        "pairs_per_step": PER_STEP,
        "learning_rate": LEARNING_RATE,
        "pairs": "SST-2: a sentence judged as the prompt asks, and one judged the other way",
        "results": results,
    }
    print(write_record("preferences_held_out", values))


def _compare(folder: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    settings = [
        f"seed={seed}",
        f"optimizer.learning_rate={LEARNING_RATE}",
        "data.template=plain",
        "plan.compile=false",
    ]
    learned = _pairs(options.data / "train.tsv", PER_STEP * (options.steps + 2), seed)
    others = _pairs(options.data / "dev.tsv", options.held_out, 0)
    held_out = folder / "others"
    held_out.mkdir()
    split = prepare(held_out, others, PER_STEP, [*settings, "data.validation=0.01"]).splits["train"]
    rows = token_ids(split, range(split.num_examples))
    (folder / HELD_OUT).write_text(json.dumps(rows))
    prepare(folder, learned, PER_STEP, [*settings, "data.validation=0.01"])
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    before = log_probs(base.eval(), rows)
    (folder / BEFORE).write_text(json.dumps(before))
    del base
    found: dict[str, Any] = {
        "held_out_pairs": len(rows),
        "likelier_before": sum(chosen > rejected for chosen, rejected in before) / len(rows),
    }
    command = [sys.executable, *sys.argv, "--folder", str(folder), "--worker"]
    for name in (OURS, THEIRS):
        contestant = Contestant(name, folder, [*command, name])
        losses = contestant.ask(f"losses {options.steps}")
        found[name] = {"losses": losses, **contestant.ask("held_out")}
        contestant.quit()
        print(name, found[name], file=sys.stderr, flush=True)
    return found


def _pairs(path: Path, count: int, seed: int) -> list[dict[str, str]]:
    """Return so many pairs; each is a document of its own, as prompts repeat."""
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    drawn = random.Random(seed)
    by_label = {label: [text for text, judged in lines if judged == label] for label in JUDGED}
    for texts in by_label.values():
        drawn.shuffle(texts)
    pairs = []
    for number in range(count):
        label, other = drawn.sample([*JUDGED], 2)
        pairs.append(
            {
                "prompt": f"A {JUDGED[label]} film review:",
                "chosen": f" {by_label[label].pop()}",
                "rejected": f" {by_label[other].pop()}",
                "document": f"{path.stem} {number}",
            }
        )
    return pairs


def log_probs(model: Any, rows: Sequence[dict[str, list[int]]]) -> list[list[float]]:
    """Return the log-probabilities of the chosen and the rejected answer of each pair."""
    import torch

    def of_answer(prompt: list[int], answer: list[int]) -> float:
        ids = torch.tensor([prompt + answer])
        logits_TV = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        found = logits_TV.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])
        return float(found.double().sum())

    with torch.no_grad():
        return [
            [of_answer(row["prompt_ids"], row[f"{name}_ids"]) for name in ("chosen", "rejected")]
            for row in rows
        ]


class _Worker(PairWorker):
    """Scores its model when asked."""

    def asked(self, word: str) -> Any:
        if word != "held_out":
            return super().asked(word)
        rows, before = (json.loads((self.folder / name).read_text()) for name in (HELD_OUT, BEFORE))
        model = self.model().eval()
        found = log_probs(model, rows)
        model.train()
        rewards = [
            [after - first for after, first in zip(*each, strict=True)]
            for each in zip(found, before, strict=True)
        ]
        return {
            "accuracy": sum(chosen > rejected for chosen, rejected in rewards) / len(rows),
            "likelier": sum(chosen > rejected for chosen, rejected in found) / len(rows),
            "mean_log_ratio_chosen": sum(chosen for chosen, _ in rewards) / len(rows),
            "mean_log_ratio_rejected": sum(rejected for _, rejected in rewards) / len(rows),
        }


if __name__ == "__main__":
    main()
