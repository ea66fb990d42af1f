"""A published encoder (all-MiniLM-L6-v2) as a classifier of SST-2's sentences: tuned by brimful and by
transformers' Trainer, and asked by `brimful predict` and by transformers' pipeline.

Training is counted in tokens of texts, padding not counted, prediction in rounds over the same texts.
Trainer that groups by length sorts the texts of 50 steps and reads them from the longest to the
shortest, so a round has 50. A result counts whose mean held-out loss over several seeds (of the head,
the order of texts and dropout) is at most `LOSS_TOLERANCE` (relative) above that of Trainer as it
comes, or whose predicted probabilities are those of fp32 (absolute; `PROBABILITY_TOLERANCE` in fp32,
`BF16_TOLERANCE` in bf16). "memory kept" is Trainer with brimful's settings of the allocator.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from contestants.process import KEPT, setting
from contestants.rounds import Comparison, Found, Start
from contestants.worker import QUIET, TUNING, Worker, train_with, train_with_brimful

LOSS_TOLERANCE = 0.02
PROBABILITY_TOLERANCE, BF16_TOLERANCE = 1e-4, 1e-3
BATCH, PREDICTED, LENGTH, HELD_OUT = 16, 512, 128, 800
"""Texts of a step, texts that are asked about, tokens of a text at most, held-out texts."""
RECIPE = """
name: classify-cpu
method: classify
model: BASE
sequence_length: 128
batch: {sequences: 16}
training: {steps: 5000}
data: {path: TEXTS, validation: 0.01, long_documents: truncate}
labels: {near_duplicates: null, preprocess: []}
optimizer: {learning_rate: 5.0e-5, schedule: constant, warmup: 0, weight_decay: 0.0, beta2: 0.999}
evaluation: {base: never, every: 5000}
plan: {device: cpu, threads: 1}
"""
BF16 = ", bf16"
GROUPED = {"train_sampling_strategy": "group_by_length", "bf16": True}
TRAINERS: dict[str, dict[str, Any]] = {
    "Trainer, default": {},
    "Trainer, grouped by length, bf16": GROUPED,
}
OURS = {"brimful": [], "brimful, length_window=16": ["labels.length_window=16"]}
PIPELINES: dict[str, dict[str, Any]] = {
    "pipeline, default": {},
    "pipeline, batches of 32": {"batch_size": 32},
    f"pipeline, batches of 32{BF16}": {"batch_size": 32, "dtype": "bfloat16"},
}
PREDICTS = {"brimful predict, fp32": "fp32", f"brimful predict{BF16}": "auto"}
"""With the recipe's `plan.precision`."""


class Classifying(Comparison):
    """Of tokens while training, of rounds over all texts while predicting."""

    needs = ("accelerate", "trainer")
    record, unit, steps = "classify_cpu", "units", 50
    names = (*TRAINERS, f"Trainer, grouped by length, bf16{KEPT}", *OURS, *PIPELINES, *PREDICTS)
    options = (
        ("data", None, "folder of SST-2: train.tsv and dev.tsv"),
        ("seeds", 3, "of training, for held-out losses"),
    )

    def default(self, name: str) -> str:
        return next(iter(PIPELINES if name in PIPELINES or name in PREDICTS else TRAINERS))

    def prepare(self, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
        """Write encoder with a fresh head, recipe and texts; those of further seeds apart."""
        for seed in range(1, options.seeds):
            (folder / f"{seed}").mkdir()
            _prepare(folder / f"{seed}", Path(options.data), seed)
        return _prepare(folder, Path(options.data), 0)

    def work(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        worker = _Worker(name, folder, options.warm_up)
        if name in OURS:
            _train_with_brimful(worker)
        elif setting(name) in TRAINERS:
            _train_with_trainer(worker)
        else:
            _predict(worker)

    def repeat(self, start: Start, told: dict[str, dict[str, Any]], options: Any) -> None:
        """Train as long with the further seeds, for their held-out losses."""
        for name in (each for each in told if setting(each) in {**TRAINERS, **OURS}):
            for seed in range(1, options.seeds):
                again = start(name, f"{seed}")
                again.ask(f"run {options.rounds * options.steps}")
                told[name]["held_out_losses"] += again.ask("tell")["held_out_losses"]
                again.quit()

    def judge(self, name: str, found: Found) -> dict[str, Any]:
        told, default = found.told[name], found.told[self.default(name)]
        if "probabilities" in told:
            pairs = zip(told["probabilities"], default["probabilities"], strict=True)
            off = max(abs(one - other) for one, other in pairs)
            most = BF16_TOLERANCE if BF16 in name else PROBABILITY_TOLERANCE
            return {"probability_off_by_at_most": off, "probabilities": None, "valid": off < most}
        own, most = (statistics.fmean(each["held_out_losses"]) for each in (told, default))
        return {"valid": own <= most * (1 + LOSS_TOLERANCE)}

    def values(self, found: Found, results: Any, options: argparse.Namespace) -> dict[str, Any]:
        return {"batch": BATCH, "data": {"sst2": {**found.about, "results": results}}}


def _prepare(folder: Path, data: Path, seed: int) -> dict[str, Any]:
    import numpy as np
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from brimful.data.sequences import Shuffle
    from brimful.kinds.run_data import gather
    from brimful.model.obtained import folder_of_model
    from brimful.recipe import load

    for name, most in (("train", None), ("dev", HELD_OUT)):
        lines = (data / f"{name}.tsv").read_text(encoding="utf-8").split("\n")
        rows = [line.rsplit("\t", 1) for line in lines if line][:most]
        _write(folder / f"{name}.jsonl", [(text, int(label)) for text, label in rows])
    base = str(folder_of_model("minilm-l6"))
    text = RECIPE.replace("BASE", base).replace("TEXTS", str(folder / "train.jsonl"))
    (folder / "recipe.yaml").write_text(f"{text}seed: {seed}\n")
    train: Any = gather(load(str(folder / "recipe.yaml")), base).splits["train"]
    order = Shuffle(len(train), seed).draw(0, len(train))[0][0]
    ordered = [(train.split.texts[number], int(train.split.targets[number])) for number in order]
    _write(folder / "ordered.jsonl", ordered)
    torch.manual_seed(seed)
    classifier = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    classifier.save_pretrained(folder / "classifier")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "classifier")
    tokens = train.lengths_E
    shares = (0.05, 0.5, 0.95, 0.99, 1)
    return {
        "texts": len(train),
        "tokens_at": {f"{share:.0%}": int(np.quantile(tokens, share)) for share in shares},
        "mean_tokens": float(tokens.mean()),
    }


def _write(path: Path, rows: list[tuple[str, int]]) -> None:
    lines = (json.dumps({"text": text, "label": label}) for text, label in rows)
    path.write_text("".join(f"{line}\n" for line in lines))


class _Worker(Worker):
    """Counts tokens of texts; its losses are told by seed."""

    tokens: Callable[[], int] = staticmethod(lambda: 0)
    probabilities: list[float] | None = None

    def done(self) -> float:
        return self.tokens()

    def rows(self, name: str = "ordered") -> list[dict[str, Any]]:
        lines = (self.folder / f"{name}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def tell(self) -> dict[str, Any]:
        if self.probabilities is not None:
            return {"probabilities": self.probabilities}
        return {"held_out_losses": [self._held_out_loss()]}

    def _held_out_loss(self) -> float:
        """Mean cross-entropy in fp32, without dropout, texts padded by plain transformers."""
        import torch
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.folder / "classifier")
        rows, total = self.rows("dev"), 0.0
        self.model.eval()
        for start in range(0, len(rows), 32):
            some = rows[start : start + 32]
            texts = [row["text"] for row in some]
            how: dict[str, Any] = {"padding": True, "truncation": True, "max_length": LENGTH}
            inputs = tokenizer(texts, return_tensors="pt", **how)
            labels = torch.tensor([row["label"] for row in some])
            with torch.inference_mode(), torch.autocast("cpu", enabled=False):
                logits = self.model(**inputs).logits.float()
            total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
        self.model.train()
        return total / len(rows)


def _train_with_trainer(worker: _Worker) -> None:
    """transformers' Trainer with its own collator, which pads to the longest text of a batch."""
    import datasets
    import torch
    import transformers

    from brimful.recipe import load

    tokenizer = transformers.AutoTokenizer.from_pretrained(worker.folder / "classifier")
    rows = worker.rows()
    encoded = tokenizer([row["text"] for row in rows], truncation=True, max_length=LENGTH)
    columns = {"input_ids": encoded["input_ids"], "labels": [row["label"] for row in rows]}
    done = 0

    class Counting(transformers.Trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            nonlocal done
            done += int(inputs["attention_mask"].sum())
            return super().training_step(model, inputs, *rest, **options)

    worker.tokens = lambda: done
    own = {"per_device_train_batch_size": BATCH, "train_sampling_strategy": "sequential"}
    optimizer = TUNING | {"learning_rate": 5e-5, "adam_beta2": 0.999}
    arguments = transformers.TrainingArguments(
        output_dir=str(worker.folder / "trainer"),
        **QUIET | optimizer | own | TRAINERS[setting(worker.name)],
    )
    torch.manual_seed(load(str(worker.folder / "recipe.yaml")).seed)
    classifier = worker.folder / "classifier"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(classifier)
    dataset = datasets.Dataset.from_dict(columns)
    train_with(worker, Counting, arguments, model, dataset, processing_class=tokenizer)


@dataclass
class _Counted:
    """The batches of a run, and how many tokens each had."""

    sequences: Any
    tokens: dict[int, int] = field(default_factory=dict)

    def batch(self, first_sample: int, count: int) -> Any:
        batch = self.sequences.batch(first_sample, count)
        self.tokens[first_sample // count] = batch.num_target_tokens
        return batch


def _train_with_brimful(worker: _Worker) -> None:
    from safetensors.torch import load_file

    def watched(setup: Any) -> Any:
        """Begin with everybody's head, and count tokens."""
        setup.model.load_state_dict(load_file(worker.folder / "classifier" / "model.safetensors"))
        counted = _Counted(setup.sequences)
        worker.tokens = lambda: sum(counted.tokens[step] for step in range(worker.steps))
        return replace(setup, sequences=counted)

    train_with_brimful(worker, OURS[worker.name], watched)


def _predict(worker: _Worker) -> None:
    """Texts to probabilities, asked again and again."""
    if worker.name in PREDICTS:
        classify = _classifier(worker.folder, PREDICTS[worker.name])
    else:
        classify = _pipeline(worker.folder, PIPELINES[worker.name])
    texts = [row["text"] for row in worker.rows()[:PREDICTED]]
    classify(texts[:64])

    def work(_: int) -> tuple[float, float]:
        began_s = worker.cpu_s()
        worker.probabilities = classify(texts)
        return worker.cpu_s() - began_s, 1

    worker.serve(work)


def _pipeline(folder: Path, settings: dict[str, Any]) -> Callable[[list[str]], list[float]]:
    from transformers import pipeline

    made = pipeline(
        "text-classification",
        model=str(folder / "classifier"),
        device="cpu",
        top_k=None,
        truncation=True,
        max_length=LENGTH,
        **settings,
    )
    return lambda texts: [
        next(each["score"] for each in answer if each["label"] == "LABEL_1")
        for answer in made(texts)
    ]


def _classifier(folder: Path, precision: str) -> Callable[[list[str]], list[float]]:
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
    labels = Labels(("LABEL_0", "LABEL_1"), False, 1)
    calibration = LabelCalibration(1.0, None, "best_f1", ())
    nothing = np.zeros((0, 2), np.float32), np.zeros(0, np.int64)
    record = ClassifierRecord(labels, calibration, (), {}, LENGTH, *nothing)
    tokenizer = AutoTokenizer.from_pretrained(folder / "classifier")
    forward = forward_of(model, tokenizer, record.max_tokens, precision=precision)
    classifier = Classifier(forward, tokenizer, record)

    def classify(texts: list[str]) -> list[float]:
        found: list[float] = classifier.probabilities(classifier.logits(texts))[:, 1].tolist()
        return found

    return classify


COMPARISON = Classifying()
