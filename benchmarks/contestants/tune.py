"""Tuning on instructions: brimful beside TRL's SFTTrainer; all weights of a fresh model of 16.9M
parameters, or of a published one (--model), LoRA (--lora), QLoRA (--lora --quantize nf4).

Useful tokens are those of the examples; padding counts for nobody. A step is of 8 examples, TRL's
default, or packed to a row of as many tokens as they have on average. A base in 4 bits is loaded as
TRL's documentation of QLoRA does (bitsandbytes' NF4, double quantisation, products in bf16).

A result counts, over answers' tokens as both sides learn them: contestants that see the examples in
the same order have the same training loss (`LOSS_TOLERANCE`) over the last 10 steps of the gate;
those that reorder them (packing, grouping by length) the same held-out loss at the end
(`REORDERED_TOLERANCE`, because other examples at other steps are another run). Held-out losses are
taken after the timed steps, so that scoring does not count as memory of training.
"""

import argparse
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from contestants.process import and_memory_kept, setting
from contestants.rounds import Comparison, Found
from contestants.worker import LORA, Worker, adapters, train_with_brimful, tune_with_trl

LOSS_TOLERANCE, REORDERED_TOLERANCE = 0.005, 0.02
"""Relative."""
EXAMPLES_PER_STEP = 8
MODEL = """
name: finetune-cpu-base
sequence_length: 512
batch: {sequences: 8}
training: {steps: 1}
model: {architecture: llama, layers: 6, heads: 6, width: 384, mlp_width: 1024, tie_embeddings: false}
tokenizer: {kind: bpe, vocabulary: 8192}
data: {path: "builtin:python-code"}
optimizer: {learning_rate: 1e-3}
"""
RECIPE = """
name: finetune-cpu
method: sft
model: BASE
sequence_length: 512
batch: {sequences: 8}
training: {steps: 5000}
data: {path: DATA, validation: 0.05LIMITS}
optimizer: {learning_rate: 1e-4, schedule: constant, warmup: 0, weight_decay: 0.0, beta2: 0.95}
evaluation: {base: never, every: 5000}
plan: {device: cpu, threads: 1}
"""
OF_PUBLISHED = ", max_documents: 1500, long_documents: drop"
"""How many examples a published model is tuned on, and what becomes of those above 512 tokens."""
PACKED = {
    "gradient_checkpointing": False,
    "packing": True,
    "per_device_train_batch_size": 1,
    "train_sampling_strategy": "random",
}
GROUPED = {"gradient_checkpointing": False, "train_sampling_strategy": "group_by_length"}
COMPILED, IN_FP32 = {"torch_compile": True}, {"bf16": False}
DEFAULT = "TRL, default"
TRL: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "TRL, packing (bfd)": PACKED,
    "TRL, packing (bfd) + compile": PACKED | COMPILED,
    "TRL, packing (bfd) + compile, fp32": PACKED | COMPILED | IN_FP32,
    "TRL, grouped by length": GROUPED,
    "TRL, grouped by length, fp32": GROUPED | IN_FP32,
}
OURS = {
    "brimful": [],
    "brimful, not compiled": ["plan.compile=false"],
    "brimful, not compiled, one at a time": ["plan.compile=false", "plan.micro_batch=1"],
    "brimful, fp32": ["plan.precision=fp32"],
    "brimful, bf16": ["plan.precision=bf16"],
}
Rows = list[dict[str, list[int]]]


class Tuning(Comparison):
    """Of tokens of examples."""

    needs = ("trl", "trl")
    record, unit, gate_steps = "finetune_cpu", "useful_tokens", 40
    names = (DEFAULT, *and_memory_kept(list(TRL)[1:]), *OURS)
    options = (
        ("data", None, "file or folder of examples with instruction, input and answer"),
        ("model", "", "short name or folder of a published model, instead of fresh"),
        ("lora", False, "LoRA, rank 16 on every linear layer, instead of all weights"),
        ("quantize", "", "nf4: 4 bits for the frozen base of a published model"),
        ("held-out", 100, "examples of the held-out loss"),
    )

    def record_name(self, options: argparse.Namespace) -> str:
        how = "_qlora" if options.quantize else "_lora" if options.lora else ""
        return f"{self.record}{'_published' * bool(options.model)}{how}"

    def prepare(self, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
        """Write base, recipe, and the examples in the order of training."""
        from brimful.kinds.run_data import gather
        from brimful.model.obtained import folder_of_model
        from brimful.recipe import load

        text = RECIPE.replace("BASE", str(folder / "base")).replace("DATA", options.data)
        limits = OF_PUBLISHED if options.model else ""
        (folder / "recipe.yaml").write_text(text.replace("LIMITS", limits))
        recipe = load(str(folder / "recipe.yaml"))
        if options.model:
            known = Path(options.model)
            source = known if known.is_dir() else folder_of_model(options.model)
            (folder / "base").symlink_to(source.resolve())
        else:
            _write_fresh_base(folder, recipe)
        splits = gather(recipe, str(folder / "base")).splits
        train, held_out = (_rows(splits[name], recipe.seed) for name in ("train", "validation"))
        (folder / "train.json").write_text(json.dumps(train))
        (folder / "held_out.json").write_text(json.dumps(held_out[: options.held_out]))
        lengths = sorted(len(row["input_ids"]) for row in train)
        quantiles = {
            f"{share:.0%}": lengths[int(share * (len(lengths) - 1))] for share in QUANTILES
        }
        return {"examples": len(train), "tokens_at": quantiles}

    def work(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        worker = _Worker(name, folder, options.warm_up)
        if name in OURS:
            adapter = f"adapter={{rank: {LORA['r']}, alpha: {LORA['lora_alpha']}}}"
            changes = [*OURS[name], *[adapter] * options.lora]
            changes += [f"quantize={options.quantize}"] * bool(options.quantize)
            train_with_brimful(worker, changes)
        else:
            _train_with_trl(worker, options)

    def judge(self, name: str, found: Found) -> dict[str, Any]:
        judged = found.equal_loss(name, DEFAULT, LOSS_TOLERANCE)
        if "packing" in name or "grouped" in name:
            own, other = (found.told[each]["held_out_loss"] for each in (name, DEFAULT))
            judged["valid"] = abs(own / other - 1) < REORDERED_TOLERANCE
        return judged


QUANTILES = (0.05, 0.5, 0.95, 1)


def _write_fresh_base(folder: Path, recipe: Any) -> None:
    """Write a model with fresh weights and a tokenizer trained on the examples."""
    import torch

    from brimful.data.formats import examples_of, text_of_prompt
    from brimful.data.sources import open_rows
    from brimful.data.tokenizer import as_transformers, train_backend
    from brimful.model.build import build
    from brimful.recipe import load
    from brimful.recipe.data import TokenizerRecipe

    (folder / "model.yaml").write_text(MODEL)
    rows = (row for part in open_rows(recipe.data).parts for row in part.splits["train"])
    texts = [
        f"{text_of_prompt(example)}\n{example.completion}"
        for example in examples_of(rows, recipe.data)
    ]
    tokenizer = as_transformers(train_backend(TokenizerRecipe(vocabulary=8192), texts))
    build(
        load(str(folder / "model.yaml")),
        vocabulary=len(tokenizer),
        end_of_text_id=0,
        attention="sdpa",
        device=torch.device("cpu"),
    ).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")


def _rows(split: Any, seed: int) -> Rows:
    """Return tokens and labels of a split's examples in the order of the run."""
    import numpy as np

    from brimful.data.sequences import Shuffle

    order = Shuffle(split.num_examples, seed).draw(0, split.num_examples)[0][0]
    tokens = np.split(split.tokens_N.astype(np.int64), split.offsets_E[1:-1])
    is_target = np.split(split.is_target_N, split.offsets_E[1:-1])
    labels = [np.where(own, ids, -100) for ids, own in zip(tokens, is_target, strict=True)]
    return [{"input_ids": tokens[e].tolist(), "labels": labels[e].tolist()} for e in order]


class _Worker(Worker):
    """Counts tokens of examples, and scores held-out ones at its end."""

    trained_tokens: Any = None
    """What counts them, where another tool does."""

    def rows(self, name: str) -> Rows:
        found: Rows = json.loads((self.folder / f"{name}.json").read_text())
        return found

    @cached_property
    def lengths(self) -> list[int]:
        return [len(row["input_ids"]) for row in self.rows("train")]

    def done(self) -> float:
        if self.trained_tokens is not None:
            return float(self.trained_tokens())
        return sum(self.lengths[: self.steps * EXAMPLES_PER_STEP])

    def tell(self) -> dict[str, Any]:
        return {"held_out_loss": held_out_loss(self.model, self.rows("held_out"))}


def held_out_loss(model: Any, rows: Rows) -> float:
    """Nats per learned token in fp32, one example at a time, by the model's own logits."""
    import torch

    model.eval()
    total, count = 0.0, 0
    eagerly = torch.compiler.set_stance("force_eager")
    with torch.no_grad(), torch.autocast("cpu", enabled=False), eagerly:
        for row in rows:
            logits = model(input_ids=torch.tensor([row["input_ids"]]), use_cache=False).logits
            labels = torch.tensor(row["labels"][1:])
            losses = torch.nn.functional.cross_entropy(logits[0, :-1], labels, reduction="sum")
            total, count = total + losses.item(), count + int((labels != -100).sum())
    return total / count


def _train_with_trl(worker: _Worker, options: argparse.Namespace) -> None:
    import torch
    import transformers
    import trl

    rows = worker.rows("train")
    own = {
        "per_device_train_batch_size": EXAMPLES_PER_STEP,
        "train_sampling_strategy": "sequential",
    }
    settings = own | TRL[setting(worker.name)]
    if "packing" in settings:
        lengths = [len(row["input_ids"]) for row in rows]
        mean = sum(lengths) / len(lengths)
        settings["max_length"] = max(*lengths, round(EXAMPLES_PER_STEP * mean))
    if options.lora and options.model and settings.get("bf16", True):
        settings["dtype"] = "bfloat16"  # as SmolLM2 is published, and as TRL loads it
    more: dict[str, Any] = adapters() if options.lora else {}
    if options.quantize:
        four_bits = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=options.quantize,
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        more["loading"] = {"quantization_config": four_bits, "device_map": "cpu"}

    class Counting(trl.SFTTrainer):  # type: ignore[misc]
        def train(self, *arguments: Any, **named: Any) -> Any:
            worker.trained_tokens = lambda: self._total_train_tokens
            return super().train(*arguments, **named)

    tune_with_trl(worker, Counting, trl.SFTConfig, rows, settings, **more)


COMPARISON = Tuning()
