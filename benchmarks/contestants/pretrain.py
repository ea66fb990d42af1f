"""A training step of a fresh model of 16.9M parameters: brimful beside transformers' Trainer.

Trainer runs in fp32 and bf16, at its fastest settings also with brimful's setting of the allocator
("memory kept"); brimful in the precision that it plans, and in either. A step is of 1,024 tokens.
A result counts whose training loss over the last 10 of 53 steps from the same weights and sequences
is fp32 Trainer's within `LOSS_TOLERANCE`. FLOPs: 6 per multiplying weight plus causal attention.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from contestants.process import and_memory_kept, setting
from contestants.rounds import Comparison, Found
from contestants.worker import QUIET, TUNING, Worker, train_with, train_with_brimful

LOSS_TOLERANCE = 0.0005
"""Relative. bf16 rounding moves the loss by about a tenth of this."""
RECIPE = """
name: pretrain-cpu
sequence_length: 256
batch: {sequences: 4}
training: {steps: 5000}
model: {architecture: llama, layers: 6, heads: 6, width: 384, mlp_width: 1024, tie_embeddings: false}
tokenizer: {kind: bpe, vocabulary: 8192}
data: {path: ["builtin:python-docs", "builtin:python-code"]}
optimizer: {learning_rate: 1e-4, schedule: constant, warmup: 0}
evaluation: {every: 5000}
plan: {device: cpu, threads: 1}
"""
"""Its learning rate keeps gradients from exploding: at 1e-3 some steps have norms of 20 to 70, and
rounding decides how much, so that two ways to compute the same differ by 1 % after 50 steps.
"""
FUSED = {"optim": "adamw_torch_fused"}
TRAINERS: dict[str, dict[str, Any]] = {
    "Trainer, default": {},
    "Trainer, bf16 + fused": FUSED | {"bf16": True},
    "Trainer, fp32 + fused + compile": FUSED | {"torch_compile": True},
    "Trainer, bf16 + fused + compile": FUSED | {"bf16": True, "torch_compile": True},
}
OURS = {
    "brimful": [],
    "brimful, not compiled": ["plan.compile=false"],
    "brimful, fp32": ["plan.precision=fp32", "plan.compile=false"],
    "brimful, bf16": ["plan.precision=bf16", "plan.compile=false"],
}


class Pretraining(Comparison):
    """Of optimizer steps."""

    needs = ("accelerate", "trainer")
    record, unit, gate_steps = "pretrain_cpu", "steps", 50
    names = (*list(TRAINERS)[:2], *and_memory_kept(list(TRAINERS)[2:]), *OURS)

    def prepare(self, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
        """Write recipe, fresh weights, and the sequences in the order of training."""
        import numpy as np
        import torch

        from brimful.kinds.run_data import gather
        from brimful.model.build import build
        from brimful.model.description import training_flop_per_token
        from brimful.recipe import load

        (folder / "recipe.yaml").write_text(RECIPE)
        recipe = load(str(folder / "recipe.yaml"))
        data, length = gather(recipe, ""), recipe.sequence_length
        sequences: Any = data.train_sequences  # type: ignore[attr-defined]
        rows = sequences.batch(0, min(len(sequences), 4096)).inputs_BT
        np.save(folder / "ids.npy", rows.numpy())
        vocabulary = len(data.tokenizer)
        build(
            recipe,
            vocabulary=vocabulary,
            end_of_text_id=int(data.tokenizer.eos_token_id),
            attention="sdpa",
            device=torch.device("cpu"),
        ).save_pretrained(folder / "base")
        tokens = recipe.effective_batch * length
        per_token = training_flop_per_token(recipe.fresh_model, vocabulary, length)
        return {"tokens_per_step": tokens, "flop_per_step": tokens * per_token}

    def work(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        worker = Worker(name, folder, options.warm_up)
        if name in OURS:
            train_with_brimful(worker, OURS[name])
        else:
            _train_with_trainer(worker)

    def judge(self, name: str, found: Found) -> dict[str, Any]:
        from record import cpu

        rate = cpu()["matrix_flop_per_s"][found.told[name]["precision"]]
        step_s = statistics.median(found.seconds[name])
        return {
            "share_of_matrix_rate": found.about["flop_per_step"] / step_s / rate,
            **found.equal_loss(name, self.names[0], LOSS_TOLERANCE),
        }


def _train_with_trainer(worker: Worker) -> None:
    import numpy as np
    import torch
    import transformers

    ids_NT = torch.from_numpy(np.load(worker.folder / "ids.npy"))

    class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return len(ids_NT)

        def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
            return {"input_ids": ids_NT[row], "labels": ids_NT[row]}

    arguments = transformers.TrainingArguments(
        output_dir=str(worker.folder / "trainer"),
        per_device_train_batch_size=4,
        train_sampling_strategy="sequential",
        **QUIET,
        **TUNING | {"weight_decay": 0.1},
        **TRAINERS[setting(worker.name)],
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(worker.folder / "base")
    train_with(worker, transformers.Trainer, arguments, model, Rows())


COMPARISON = Pretraining()
