"""Classification on a CPU: brimful beside transformers' Trainer and pipeline, same weights, texts,
batch and optimizer settings.

    python benchmarks/classify_cpu.py [--rounds 7] [--steps 20] [--only "Trainer, default"]

Texts have the lengths of real comments: lognormal with median 8 and 99th percentile 60 words
(ViHSD: 8 and 60; mean 11.5, here 11.6), of words drawn from Python's documentation. Rules: one
thread each, CPU time, every contestant its own process, interleaved forwards and backwards, warm-up
excluded, median of paired ratios with a bootstrap interval.

Validity gates: contestants that see the texts in the same order have the same loss
(`LOSS_TOLERANCE`, relative) over the last 10 of 43 training steps; all give the same probabilities
(`PROBABILITY_TOLERANCE`, absolute) where they predict in fp32.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contestant import Contestant, Worker, interleaved, step_by_step, train_ours

LOSS_TOLERANCE, PROBABILITY_TOLERANCE = 0.005, 1e-4
WARM_UP_STEPS, GATE_STEPS = 3, 40
TEXTS, BATCH, PREDICTED = 12_000, 32, 512
MEDIAN_WORDS, SPREAD = 8, 0.866
"""Of the lognormal: exp(ln 8 + 0.866 z) is 60 at the 99th percentile."""
MODEL = """
name: classify-cpu-base
method: mlm
sequence_length: 192
batch: {sequences: 8}
training: {steps: 1}
model: {architecture: modernbert, layers: 4, heads: 4, width: 256}
tokenizer: {kind: bpe, vocabulary: 8192}
data: {path: "builtin:python-docs"}
optimizer: {learning_rate: 1.0e-3}
"""
RECIPE = """
name: classify-cpu
method: classify
model: BASE
sequence_length: 192
batch: {sequences: 32}
training: {steps: 100000}
data: {path: DATA, validation: 0.01, long_documents: truncate}
labels: {near_duplicates: null, preprocess: []}
optimizer: {learning_rate: 5.0e-5, schedule: constant, warmup: 0, weight_decay: 0.0, beta2: 0.999}
plan: {device: cpu, threads: 1}
"""
OPTIMIZER = {
    "learning_rate": 5e-5,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
}
GROUPED = {"train_sampling_strategy": "group_by_length"}
TRAINERS: dict[str, dict[str, Any]] = {
    "Trainer, default": {},
    "Trainer, bf16": {"bf16": True},
    "Trainer, grouped by length": GROUPED,
    "Trainer, grouped by length, bf16": GROUPED | {"bf16": True},
}
PIPELINES: dict[str, dict[str, Any]] = {
    "pipeline, default": {},
    f"pipeline, batches of {BATCH}": {"batch_size": BATCH},
}
OURS = "brimful"
PREDICTS = "brimful predict"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--only",
        action="append",
        help="contestants, by name; without it all, and a record is written",
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _Worker(options.worker, Path(options.folder), WARM_UP_STEPS).work()
    else:
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), options)


def _compare(folder: Path, options: argparse.Namespace) -> None:
    from record import write_record

    about = _prepare(folder)
    training = [name for name in [*TRAINERS, OURS] if options.only is None or name in options.only]
    predicting = [
        name for name in [*PIPELINES, PREDICTS] if options.only is None or name in options.only
    ]
    loads: list[float] = []
    results = _trained(folder, training, options, loads) | _predicted(
        folder, predicting, options.rounds, loads
    )
    if options.only is None:
        values = {
            "rounds": options.rounds,
            "steps": options.steps,
            "batch": BATCH,
            "contestant_threads": 1,
            "data": about,
        }
        print(write_record("classify_cpu", values | {"loads": loads, "results": results}))


def _contestants(folder: Path, names: list[str]) -> list[Contestant]:
    return [
        Contestant(
            name, folder, [sys.executable, __file__, "--worker", name, "--folder", str(folder)]
        )
        for name in names
    ]


def _trained(
    folder: Path, names: list[str], options: argparse.Namespace, loads: list[float]
) -> dict[str, Any]:
    contestants = _contestants(folder, names)
    losses = {
        each.name: statistics.mean(each.ask(f"losses {GATE_STEPS}")[-10:]) for each in contestants
    }
    rates: dict[str, list[float]] = {each.name: [] for each in contestants}
    for each in interleaved(contestants, options.rounds, loads):
        cpu_s, steps = each.ask(f"run {options.steps}")
        rates[each.name].append(steps * BATCH / cpu_s)
    for each in contestants:
        each.quit()
    results = _ratios(rates, next(iter(rates)))
    for name, result in results.items():
        is_reordered = "grouped" in name
        off = losses[name] / losses[names[0]] - 1
        valid = None if is_reordered else abs(off) < LOSS_TOLERANCE
        result |= {
            "loss_of_the_last_10_of_43_steps": losses[name],
            "order_of_texts": "its own" if is_reordered else "the same",
            "valid": valid,
        }
        _print(
            name,
            result,
            f"loss {losses[name]:.4f} {'' if valid is None else 'valid' if valid else 'NOT VALID'}",
        )
    return results


def _predicted(folder: Path, names: list[str], rounds: int, loads: list[float]) -> dict[str, Any]:
    contestants = _contestants(folder, names)
    probabilities = {each.name: each.ask("probabilities") for each in contestants}
    rates: dict[str, list[float]] = {each.name: [] for each in contestants}
    for each in interleaved(contestants, rounds, loads):
        rates[each.name].append(PREDICTED / each.ask("run"))
    for each in contestants:
        each.quit()
    results = _ratios(rates, next(iter(rates)))
    for name, result in results.items():
        off = max(
            abs(one - other)
            for one, other in zip(probabilities[name], probabilities[names[0]], strict=True)
        )
        result |= {"probability_off_by_at_most": off, "valid": off < PROBABILITY_TOLERANCE}
        _print(
            name, result, f"off by at most {off:.1e} {'valid' if result['valid'] else 'NOT VALID'}"
        )
    return results


def _ratios(rates: dict[str, list[float]], reference: str) -> dict[str, Any]:
    """Beside the first contestant, and the best of those that are not brimful."""
    from record import ratio_interval, summary

    best = max(
        (name for name in rates if not name.startswith(OURS)),
        key=lambda name: statistics.median(rates[name]),
        default=reference,
    )
    return {
        name: {
            "texts_per_cpu_s": summary(found),
            "speed_over_default": ratio_interval(found, rates[reference]),
            "best_of_others": best,
            "speed_over_best": ratio_interval(found, rates[best]),
        }
        for name, found in rates.items()
    }


def _print(name: str, result: dict[str, Any], more: str) -> None:
    default, best = result["speed_over_default"], result["speed_over_best"]
    print(
        f"{name:<34} {result['texts_per_cpu_s']['median']:7,.1f} texts/s  {default['median']:.2f}x"
        f" default [{default['low']:.2f}, {default['high']:.2f}]  {best['median']:.2f}x best"
        f" [{best['low']:.2f}, {best['high']:.2f}]  {more}",
        flush=True,
    )


def _prepare(folder: Path) -> dict[str, Any]:
    """Encoder, tokenizer, recipe and texts as files; the texts in the order in which training reads
    them, too.
    """
    import numpy as np
    import torch
    from transformers import AutoModelForSequenceClassification

    from brimful.data.builtin import CORPORA
    from brimful.data.sequences import Shuffle
    from brimful.data.tokenizer import train_tokenizer
    from brimful.kinds.run_data import gather
    from brimful.model.build import build
    from brimful.recipe import load

    documents = list(CORPORA["python-docs"]())
    words = np.array(
        [word for document in documents for word in document.split() if word.isalpha()]
    )
    random = np.random.default_rng(0)
    lengths = np.maximum(
        1, np.rint(MEDIAN_WORDS * np.exp(SPREAD * random.standard_normal(TEXTS)))
    ).astype(int)
    texts = [" ".join(random.choice(words, length)) for length in lengths]
    labels = [int(len(text) % 5 == 0) for text in texts]
    data = folder / "texts.jsonl"
    data.write_text(
        "".join(
            f"{json.dumps({'text': text, 'label': label})}\n"
            for text, label in zip(texts, labels, strict=True)
        )
    )
    (folder / "model.yaml").write_text(MODEL)
    (folder / "recipe.yaml").write_text(
        RECIPE.replace("BASE", str(folder / "base")).replace("DATA", str(data))
    )
    recipe = load(str(folder / "model.yaml"))
    tokenizer = train_tokenizer("bpe", recipe.own_tokenizer.vocabulary, 2, documents, encoder=True)
    build(
        recipe,
        vocabulary=len(tokenizer),
        end_of_text_id=tokenizer.eos_token_id,
        attention="sdpa",
        device=torch.device("cpu"),
    ).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    recipe = load(str(folder / "recipe.yaml"))
    labelled = gather(recipe, str(folder / "base"))
    train = labelled.splits["train"]
    order = Shuffle(len(train), recipe.seed).draw(0, len(train))[0][0]
    rows = [
        {"text": train.split.texts[number], "label": int(train.split.targets[number])}
        for number in order
    ]
    (folder / "ordered.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_pretrained(
        folder / "base", num_labels=2
    ).save_pretrained(folder / "classifier")
    tokenizer.save_pretrained(folder / "classifier")
    tokens = train.lengths_E
    at = {f"{share:.0%}": int(np.quantile(tokens, share)) for share in (0.05, 0.5, 0.95, 0.99, 1)}
    counted = {f"{share:.0%}": int(np.quantile(lengths, share)) for share in (0.5, 0.95, 0.99)}
    return {
        "texts": TEXTS,
        "words_at": counted,
        "mean_words": float(lengths.mean()),
        "tokens_at": at,
        "mean_tokens": float(tokens.mean()),
    }


class _Worker(Worker):
    """Runs one contestant."""

    def work(self) -> None:
        if self.name in TRAINERS:
            train_with_trainer(self)
        elif self.name == OURS:
            train_brimful(self)
        else:
            predict(self)

    def rows(self) -> list[dict[str, Any]]:
        """Training texts with labels, in the order in which they are read."""
        return [
            json.loads(line) for line in (self.folder / "ordered.jsonl").read_text().splitlines()
        ]


def train_with_trainer(worker: _Worker) -> None:
    """transformers' Trainer with its own collator, which pads to the longest text of a batch."""
    import datasets
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(worker.folder / "base")
    rows = worker.rows()
    encoded = tokenizer([row["text"] for row in rows], truncation=True, max_length=192)["input_ids"]
    dataset = datasets.Dataset.from_dict(
        {"input_ids": encoded, "labels": [row["label"] for row in rows]}
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        worker.folder / "classifier"
    )
    trainer, gate = step_by_step(transformers.Trainer, worker)
    settings = (
        {"per_device_train_batch_size": BATCH, "train_sampling_strategy": "sequential"}
        | OPTIMIZER
        | TRAINERS[worker.name]
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(worker.folder / "trainer"),
        max_steps=100_000,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=10_000,
        dataloader_pin_memory=False,
        **settings,
    )
    trainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[gate],
    ).train()


def train_brimful(worker: _Worker) -> None:
    """brimful's own loop under the plan it derives for one thread of this machine, from the same
    weights.
    """
    from brimful.base.env import keep_few_kernels, wait_politely

    wait_politely()
    keep_few_kernels()
    import torch
    from safetensors.torch import load_file

    from brimful.chains.devices import facts_of, here
    from brimful.hardware.host import keep_freed_memory
    from brimful.kinds.run_data import gather
    from brimful.planning.derive import derive
    from brimful.recipe import load
    from brimful.rehearsal.kept_traces import kept_traces
    from brimful.training.method import Network, hidden_states_of

    recipe = load(str(worker.folder / "recipe.yaml"))
    device, labelled = here(recipe), gather(recipe, str(worker.folder / "base"))
    with kept_traces() as traces:
        plan = derive(
            labelled.planned, device, traces, facts_of(device, train_sequences=labelled.train_rows)
        )
    print(plan.explain(), file=sys.stderr)
    keep_freed_memory()
    model = labelled.build(plan, torch.device("cpu"))
    model.load_state_dict(load_file(worker.folder / "classifier" / "model.safetensors"))
    model.train()
    train_ours(
        worker,
        recipe,
        plan,
        Network(model, hidden_states_of(model), plan.loss_chunk),
        labelled.sequences(plan),
    )


def predict(worker: _Worker) -> None:
    """Texts to probabilities, asked again and again."""
    classify = (
        _ours(worker.folder)
        if worker.name == PREDICTS
        else _pipeline(worker.folder, PIPELINES[worker.name])
    )
    texts = [row["text"] for row in worker.rows()[:PREDICTED]]
    classify(texts[:64])
    worker.answer({})
    while (word := sys.stdin.readline().strip()) not in {"", "quit"}:
        began = time.process_time()
        probabilities = classify(texts)
        worker.answer(time.process_time() - began if word == "run" else probabilities)


def _pipeline(folder: Path, settings: dict[str, Any]) -> Callable[[list[str]], list[float]]:
    from transformers import pipeline

    made = pipeline(
        "text-classification",
        model=str(folder / "classifier"),
        device="cpu",
        top_k=None,
        truncation=True,
        max_length=192,
        **settings,
    )
    return lambda texts: [
        next(each["score"] for each in answer if each["label"] == "LABEL_1")
        for answer in made(texts)
    ]


def _ours(folder: Path) -> Callable[[list[str]], list[float]]:
    """What `brimful predict` does with a window of texts."""
    import numpy as np
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from brimful.base.env import keep_few_kernels, wait_politely
    from brimful.classification.calibration import LabelCalibration
    from brimful.classification.classifier import Classifier, forward_of
    from brimful.classification.record import ClassifierRecord
    from brimful.data.labels import Labels

    wait_politely()
    keep_few_kernels()
    model = AutoModelForSequenceClassification.from_pretrained(folder / "classifier").eval()
    labels, calibration = (
        Labels(("LABEL_0", "LABEL_1"), False, 1),
        LabelCalibration(1.0, None, "best_f1", ()),
    )
    record = ClassifierRecord(
        labels, calibration, (), {}, 192, np.zeros((0, 2), np.float32), np.zeros(0, np.int64)
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "classifier")
    classifier = Classifier(forward_of(model, tokenizer, record.max_tokens), tokenizer, record)

    def classify(texts: list[str]) -> list[float]:
        found: list[float] = classifier.probabilities(classifier.logits(texts))[:, 1].tolist()
        return found

    return classify


if __name__ == "__main__":
    main()
