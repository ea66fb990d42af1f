"""Classification on a CPU: a published encoder tuned by brimful and by transformers' Trainer, and asked
by `brimful predict` and transformers' pipeline; same weights, texts, batch and optimizer settings.

    python benchmarks/classify_cpu.py [--data sst2,sms] [--rounds 10] [--steps 10] [--seeds 3]
    [--only NAME]

all-MiniLM-L6-v2 (`brimful models get minilm-l6`) on SST-2 and SMS Spam (BRIMFUL_DATA). Rules: one
thread each, CPU time, every contestant its own process, interleaved forwards and backwards, warm-up
excluded. Speed is tokens of texts, padding not counted, per CPU second over all rounds, and its
ratios have bootstrap intervals over rounds. Trainer that groups by length sorts the texts of 50
steps and reads them from the longest to the shortest, so the steps of all rounds together are a
multiple of 50.

Validity gates: after as many steps with each of several seeds (of the head, the order of texts and
dropout) the mean loss of held-out texts is at most `LOSS_TOLERANCE` (relative) above that of Trainer
as it comes; predicted probabilities are those of fp32 (absolute; `PROBABILITY_TOLERANCE` in fp32,
`BF16_TOLERANCE` in bf16).

"memory kept" is Trainer with settings of brimful's that its documentation does not have: freed
memory stays in the process (`hardware/host.py`), and freed blocks are joined (`base/env.py`). It
counts for nothing, but says what of the lead these settings are. Peaks of memory are those of the
process until the last timed step.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contestant import (
    KEPT,
    OURS,
    QUIET,
    Contestant,
    Worker,
    interleaved,
    step_by_step,
    train_ours,
)

LOSS_TOLERANCE = 0.02
"""As for reordered examples in finetune_cpu.py."""
PROBABILITY_TOLERANCE, BF16_TOLERANCE = 1e-4, 1e-3
WARM_UP_STEPS = 3
BATCH, PREDICTED, LENGTH = 16, 512, 128
HELD_OUT = 800
"""Texts at most."""
RECIPE = """
name: classify-cpu
method: classify
model: BASE
sequence_length: 128
batch: {sequences: 16}
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
BF16 = ", bf16"
TRAINERS: dict[str, dict[str, Any]] = {
    "Trainer, default": {},
    "Trainer, grouped by length, bf16": GROUPED | {"bf16": True},
    f"Trainer, grouped by length, bf16{KEPT}": GROUPED | {"bf16": True},
}
PIPELINES: dict[str, dict[str, Any]] = {
    "pipeline, default": {},
    "pipeline, batches of 32": {"batch_size": 32},
    f"pipeline, batches of 32{BF16}": {"batch_size": 32, "dtype": "bfloat16"},
}
OWN_SETTINGS = {OURS: [], f"{OURS}, length_window=16": ["labels.length_window=16"]}
PREDICTS = {"brimful predict, fp32": "fp32", f"brimful predict{BF16}": "auto"}
"""With the recipe's `plan.precision`."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="sst2,sms", help="of sst2 and sms, separated by commas")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
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
        _compare(options)


def _compare(options: argparse.Namespace) -> None:
    from record import write_record

    found: dict[str, Any] = {}
    for data in options.data.split(","):
        with tempfile.TemporaryDirectory() as name:
            found[data] = _compared(Path(name), data, options)
        values = {
            "rounds": options.rounds,
            "steps": options.steps,
            "batch": BATCH,
            "contestant_threads": 1,
            "data": found,
        }
        if options.only is None:
            print(write_record("classify_cpu", values))


def _compared(folder: Path, data: str, options: argparse.Namespace) -> dict[str, Any]:
    about = _prepare(folder, data, seed=0)
    training, predicting = (
        [name for name in names if options.only is None or name in options.only]
        for names in ([*TRAINERS, *OWN_SETTINGS], [*PIPELINES, *PREDICTS])
    )
    loads: list[float] = []
    results = _trained(folder, data, training, options, loads) if training else {}
    if predicting:
        results |= _predicted(folder, predicting, options.rounds, loads)
    return about | {"loads": loads, "results": results}


def _contestants(folder: Path, names: list[str]) -> list[Contestant]:
    return [
        Contestant(
            name,
            folder,
            [sys.executable, __file__, "--worker", name, "--folder", str(folder)],
        )
        for name in names
    ]


def _trained(
    folder: Path, data: str, names: list[str], options: argparse.Namespace, loads: list[float]
) -> dict[str, Any]:
    contestants = _contestants(folder, names)
    done: dict[str, list[tuple[float, float]]] = {each.name: [] for each in contestants}
    for each in interleaved(contestants, options.rounds, loads):
        cpu_s, tokens = each.ask(f"run {options.steps}")
        done[each.name].append((tokens, cpu_s))
    peaks = {each.name: each.ask("memory")["peak_bytes"] for each in contestants}
    losses = {each.name: [each.ask("held_out")] for each in contestants}
    for each in contestants:
        each.quit()
    for seed in range(1, options.seeds):
        with tempfile.TemporaryDirectory() as other:
            _prepare(Path(other), data, seed)
            for each in _contestants(Path(other), names):
                each.ask(f"run {options.steps * options.rounds}")
                losses[each.name].append(each.ask("held_out"))
                each.quit()
    means = {name: statistics.fmean(of_seeds) for name, of_seeds in losses.items()}
    most = means[names[0]] * (1 + LOSS_TOLERANCE)
    results = _ratios(done, "tokens_per_cpu_s", [name for name in names if means[name] <= most])
    for name, result in results.items():
        result |= {
            "held_out_losses": losses[name],
            "valid": means[name] <= most,
            "peak_bytes": peaks[name],
            "peak_over_default": peaks[name] / peaks[names[0]],
        }
        _print(
            name,
            result,
            "tokens",
            f"held-out loss {means[name]:.4f} {'valid' if result['valid'] else 'NOT VALID'}"
            f"  {peaks[name] / 2**20:,.0f} MiB",
        )
    return results


def _predicted(folder: Path, names: list[str], rounds: int, loads: list[float]) -> dict[str, Any]:
    contestants = _contestants(folder, names)
    probabilities = {each.name: each.ask("probabilities") for each in contestants}
    done: dict[str, list[tuple[float, float]]] = {each.name: [] for each in contestants}
    for each in interleaved(contestants, rounds, loads):
        done[each.name].append((PREDICTED, each.ask("run")))
    for each in contestants:
        each.quit()
    off = {name: _farthest(found, probabilities[names[0]]) for name, found in probabilities.items()}
    valid = [
        name
        for name in names
        if off[name] < (BF16_TOLERANCE if BF16 in name else PROBABILITY_TOLERANCE)
    ]
    results = _ratios(done, "texts_per_cpu_s", valid)
    for name, result in results.items():
        result |= {"probability_off_by_at_most": off[name], "valid": name in valid}
        _print(
            name,
            result,
            "texts",
            f"off by at most {off[name]:.1e} {'valid' if result['valid'] else 'NOT VALID'}",
        )
    return results


def _farthest(some: list[float], others: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


def _ratios(
    done: dict[str, list[tuple[float, float]]], unit: str, valid: Sequence[str]
) -> dict[str, Any]:
    """Beside the first contestant, and the best documented and valid one that is not brimful.

    Args:
        done: By contestant, the work and the CPU seconds of each round.
        unit: What a rate is called.
        valid: Contestants that may be the best.
    """
    from record import summary

    reference = next(iter(done))
    best = max(
        (name for name in valid if not name.startswith(OURS) and KEPT not in name),
        key=lambda name: _rate(done[name]),
        default=reference,
    )
    return {
        name: {
            unit: {"all": _rate(rounds)} | summary([work / cpu_s for work, cpu_s in rounds]),
            "speed_over_default": _ratio(rounds, done[reference]),
            "best_of_others": best,
            "speed_over_best": _ratio(rounds, done[best]),
        }
        for name, rounds in done.items()
    }


def _rate(rounds: list[tuple[float, float]]) -> float:
    return sum(work for work, _ in rounds) / sum(cpu_s for _, cpu_s in rounds)


def _ratio(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> dict[str, float]:
    """Return the ratio of the rates over all rounds, and its 95 % bootstrap interval over them."""
    import numpy as np

    drawn = np.random.default_rng(0).integers(0, len(ours), (10_000, len(ours)))
    (our_work, our_s), (their_work, their_s) = (
        np.array(rounds)[drawn].sum(1).T for rounds in (ours, theirs)
    )
    low, high = np.quantile(our_work / our_s / (their_work / their_s), [0.025, 0.975])
    return {
        "ratio": _rate(ours) / _rate(theirs),
        "low": float(low),
        "high": float(high),
        "n": len(ours),
    }


def _print(name: str, result: dict[str, Any], unit: str, more: str) -> None:
    default, best = result["speed_over_default"], result["speed_over_best"]
    print(
        f"{name:<45} {result[f'{unit}_per_cpu_s']['all']:7,.0f} {unit}/s "
        f" {default['ratio']:.2f}x default [{default['low']:.2f}, {default['high']:.2f}] "
        f" {best['ratio']:.2f}x best [{best['low']:.2f}, {best['high']:.2f}]  {more}",
        flush=True,
    )


def _texts_of(data: str) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the texts with their labels that are trained on, and those held out."""
    from brimful.base.env import shared_data_folder

    shared = shared_data_folder()
    if shared is None:
        raise SystemExit("no data: let BRIMFUL_DATA name a folder with sst2/ and sms_spam/")
    if data == "sst2":
        train, dev = (
            [line.rsplit("\t", 1) for line in _lines(shared / "sst2" / f"{name}.tsv")]
            for name in ("train", "dev")
        )
        sentences = [(text, int(label)) for text, label in train]
        return sentences, [(text, int(label)) for text, label in dev][:HELD_OUT]
    labelled = [line.split("\t", 1) for line in _lines(shared / "sms_spam" / "SMSSpamCollection")]
    rows = [(text, int(label == "spam")) for label, text in labelled]
    held_out = rows[::8][:HELD_OUT]
    return [row for number, row in enumerate(rows) if number % 8], held_out


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]


def _prepare(folder: Path, data: str, seed: int) -> dict[str, Any]:
    """Encoder with a fresh head, tokenizer, recipe and texts as files; the texts in the order in
    which training reads them, too.
    """
    import numpy as np
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from brimful.data.sequences import Shuffle
    from brimful.kinds.run_data import gather
    from brimful.model.obtained import folder_of_model
    from brimful.recipe import load

    rows, held_out = _texts_of(data)
    base = folder_of_model("minilm-l6")
    (folder / "texts.jsonl").write_text(_as_json(rows))
    (folder / "held_out.jsonl").write_text(_as_json(held_out))
    recipe_text = RECIPE.replace("BASE", str(base)).replace("DATA", str(folder / "texts.jsonl"))
    (folder / "recipe.yaml").write_text(f"{recipe_text}seed: {seed}\n")
    recipe = load(str(folder / "recipe.yaml"))
    train = gather(recipe, str(base)).splits["train"]
    order = Shuffle(len(train), recipe.seed).draw(0, len(train))[0][0]
    ordered = [(train.split.texts[number], int(train.split.targets[number])) for number in order]
    (folder / "ordered.jsonl").write_text(_as_json(ordered))
    torch.manual_seed(seed)
    AutoModelForSequenceClassification.from_pretrained(base, num_labels=2).save_pretrained(
        folder / "classifier"
    )
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "classifier")
    tokens = train.lengths_E
    shares = (0.05, 0.5, 0.95, 0.99, 1)
    return {
        "texts": len(train),
        "held_out": len(held_out),
        "tokens_at": {f"{share:.0%}": int(np.quantile(tokens, share)) for share in shares},
        "mean_tokens": float(tokens.mean()),
    }


def _as_json(rows: list[tuple[str, int]]) -> str:
    return "".join(f"{json.dumps({'text': text, 'label': label})}\n" for text, label in rows)


class _Worker(Worker):
    """Runs one contestant; `held_out` is answered with the mean loss of the held-out texts."""

    tokens: Callable[[], int] = staticmethod(lambda: 0)
    """Of the texts that were trained on so far."""
    model: Any = None

    def work(self) -> None:
        if self.name in TRAINERS:
            train_with_trainer(self)
        elif self.name in OWN_SETTINGS:
            train_brimful(self)
        else:
            predict(self)

    def work_done(self) -> int:
        return self.tokens()

    def asked(self, word: str) -> Any:
        if word != "held_out":
            return super().asked(word)
        return _held_out_loss(self.model, self.folder)

    def rows(self, name: str = "ordered") -> list[dict[str, Any]]:
        """Texts with labels; those of training in the order in which they are read."""
        return _rows(self.folder / f"{name}.jsonl")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _held_out_loss(model: Any, folder: Path) -> float:
    """Mean cross-entropy in fp32, without dropout, texts padded by plain transformers."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "classifier")
    rows = _rows(folder / "held_out.jsonl")
    total, was_training = 0.0, model.training
    model.eval()
    for start in range(0, len(rows), 32):
        some = rows[start : start + 32]
        inputs = tokenizer(
            [row["text"] for row in some],
            padding=True,
            truncation=True,
            max_length=LENGTH,
            return_tensors="pt",
        )
        labels = torch.tensor([row["label"] for row in some])
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            logits = model(**inputs).logits.float()
        total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    model.train(was_training)
    return total / len(rows)


def train_with_trainer(worker: _Worker) -> None:
    """transformers' Trainer with its own collator, which pads to the longest text of a batch."""
    import datasets
    import torch
    import transformers

    from brimful.recipe import load

    tokenizer = transformers.AutoTokenizer.from_pretrained(worker.folder / "classifier")
    rows = worker.rows()
    encoded = tokenizer([row["text"] for row in rows], truncation=True, max_length=LENGTH)
    dataset = datasets.Dataset.from_dict(
        {"input_ids": encoded["input_ids"], "labels": [row["label"] for row in rows]}
    )
    torch.manual_seed(load(str(worker.folder / "recipe.yaml")).seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        worker.folder / "classifier"
    )
    done = [0]

    class Counting(transformers.Trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            done[0] += int(inputs["attention_mask"].sum())
            return super().training_step(model, inputs, *rest, **options)

    worker.model, worker.tokens = model, lambda: done[0]
    trainer, gate = step_by_step(Counting, worker)
    settings = (
        {"per_device_train_batch_size": BATCH, "train_sampling_strategy": "sequential"}
        | OPTIMIZER
        | TRAINERS[worker.name]
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(worker.folder / "trainer"),
        **QUIET,
        **settings,
    )
    trainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[gate],
    ).train()


@dataclass
class _Counted:
    """The batches of a run, and how many tokens each had."""

    sequences: Any
    tokens: dict[int, int] = field(default_factory=dict)

    def batch(self, first_sample: int, count: int) -> Any:
        batch = self.sequences.batch(first_sample, count)
        self.tokens[first_sample // count] = batch.num_target_tokens
        return batch

    def of_first(self, steps: int) -> Iterator[int]:
        yield from (self.tokens[step] for step in range(steps))


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

    recipe = load(str(worker.folder / "recipe.yaml"), OWN_SETTINGS[worker.name])
    device, labelled = here(recipe), gather(recipe, str(recipe.model))
    with kept_traces() as traces:
        plan = derive(
            labelled.planned, device, traces, facts_of(device, train_sequences=labelled.train_rows)
        )
    print(plan.explain(), file=sys.stderr)
    keep_freed_memory()
    model = labelled.build(plan, torch.device("cpu"))
    model.load_state_dict(load_file(worker.folder / "classifier" / "model.safetensors"))
    model.train()
    counted = _Counted(labelled.sequences(plan))
    worker.model, worker.tokens = model, lambda: sum(counted.of_first(worker.steps))
    network = Network(model, hidden_states_of(model), plan.loss_chunk)
    train_ours(worker, recipe, plan, network, counted)


def predict(worker: _Worker) -> None:
    """Texts to probabilities, asked again and again."""
    classify = (
        _ours(worker.folder, PREDICTS[worker.name])
        if worker.name in PREDICTS
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
        max_length=LENGTH,
        **settings,
    )
    return lambda texts: [
        next(each["score"] for each in answer if each["label"] == "LABEL_1")
        for answer in made(texts)
    ]


def _ours(folder: Path, precision: str) -> Callable[[list[str]], list[float]]:
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
        labels, calibration, (), {}, LENGTH, np.zeros((0, 2), np.float32), np.zeros(0, np.int64)
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "classifier")
    forward = forward_of(model, tokenizer, record.max_tokens, precision=precision)
    classifier = Classifier(forward, tokenizer, record)

    def classify(texts: list[str]) -> list[float]:
        found: list[float] = classifier.probabilities(classifier.logits(texts))[:, 1].tolist()
        return found

    return classify


if __name__ == "__main__":
    main()
