"""One training step on a CPU: brimful's loop beside transformers' Trainer, same model, weights,
data, batch and optimizer settings.

    pip install -r benchmarks/requirements.txt
    python benchmarks/pretrain_cpu.py [--rounds 9] [--steps 10] [--only NAME ...]

Trainer runs in fp32 and bf16, at its fastest settings also with brimful's setting of the allocator
("memory kept"); brimful in the precision that it plans, and in either. Every step is of 1,024
tokens.

Rules: one thread each, CPU time, every contestant its own process, interleaved forwards and
backwards, warm-up and compiling excluded and reported, at least 7 rounds, median of paired ratios
with a bootstrap interval. Validity gate: the training loss over the last 10 of 53 steps from the
same weights and sequences agrees with fp32 Trainer's within `LOSS_TOLERANCE`; a contestant that
learns something else does not count. FLOPs: 6 per multiplying weight plus causal attention; the
matrix rate is that of the contestant's precision, measured in the same session.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from contestant import (
    QUIET,
    Contestant,
    Worker,
    and_memory_kept,
    fastest,
    interleaved,
    setting,
    step_by_step,
    train_ours,
)

LOSS_TOLERANCE = 0.0005
"""Relative. bf16 rounding moves the loss by about a tenth of this."""
WARM_UP_STEPS = 3
GATE_STEPS = 50
RECIPE = """
name: pretrain-cpu
sequence_length: 256
batch: {sequences: 4}
training: {steps: 100000}
model: {architecture: llama, layers: 6, heads: 6, width: 384, mlp_width: 1024, tie_embeddings: false}
tokenizer: {kind: bpe, vocabulary: 8192}
data: {path: ["builtin:python-docs", "builtin:python-code"]}
optimizer: {learning_rate: 1e-4, schedule: constant, warmup: 0}
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
DEFAULT = "Trainer, default"
NAMES = [*list(TRAINERS)[:2], *and_memory_kept(list(TRAINERS)[2:]), *OURS]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--gate-steps", type=int, default=GATE_STEPS)
    parser.add_argument(
        "--only", action="append", help="contestants, by name; without it all, and a record"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _Worker(options.worker, Path(options.folder)).work()
    else:
        with tempfile.TemporaryDirectory() as folder:
            _compare(Path(folder), options)


def _compare(folder: Path, options: argparse.Namespace) -> None:
    from brimful.model.description import training_flop_per_token
    from brimful.recipe import load
    from record import of_this_kind_of_cpu, ratio_interval, summary, write_record

    prepare(folder)
    contestants = [
        Contestant(
            name,
            folder,
            [sys.executable, __file__, "--worker", name, "--folder", str(folder)],
        )
        for name in options.only or NAMES
    ]
    losses = {each.name: each.ask(f"losses {options.gate_steps}") for each in contestants}
    step_s: dict[str, list[float]] = {each.name: [] for each in contestants}
    loads: list[float] = []
    for each in interleaved(contestants, options.rounds, loads):
        cpu_s, made = each.ask(f"run {options.steps}")
        step_s[each.name].append(cpu_s / made)
    memory = {each.name: each.ask("memory") for each in contestants}
    precisions = {each.name: each.ask("precision") for each in contestants}
    rates = [each.ask("rate") for each in contestants]
    rate = {dtype: max(each[dtype] for each in rates) for dtype in rates[0]}
    for each in contestants:
        each.quit()
    recipe = load(str(folder / "recipe.yaml"))
    tokens = recipe.effective_batch * recipe.sequence_length
    flop = tokens * training_flop_per_token(recipe.fresh_model, 8192, recipe.sequence_length)
    default, best = DEFAULT if DEFAULT in step_s else contestants[0].name, fastest(step_s)
    reference = statistics.mean(losses[default][-10:])
    results = {}
    for each in contestants:
        name, median_s = each.name, statistics.median(step_s[each.name])
        loss = statistics.mean(losses[name][-10:])
        results[name] = {
            "step_cpu_s": summary(step_s[name]),
            "tokens_per_cpu_second": tokens / median_s,
            "precision": precisions[name],
            "share_of_matrix_rate": flop / median_s / rate[precisions[name]],
            "speed_over_default": ratio_interval(step_s[default], step_s[name]),
            "speed_over_best": ratio_interval(step_s[best], step_s[name]),
            "loss_of_the_last_10_of_53_steps": loss,
            "valid": abs(loss / reference - 1) < LOSS_TOLERANCE,
            "memory": memory[name],
            "start_and_warm_up": each.start,
        }
        _print(name, results[name])
        if results[name]["share_of_matrix_rate"] > 1:
            print(f"{name}: more than the matrix rate: the machine was too busy to measure that")
            results[name]["share_of_matrix_rate"] = None
    print(
        f"matrix rate of one core: bf16 {rate['bf16'] / 1e9:.0f}, fp32 {rate['fp32'] / 1e9:.0f}"
        " GFLOP/s"
    )
    values = {
        "rounds": options.rounds,
        "steps": options.steps,
        "contestant_threads": 1,
        "tokens_per_step": tokens,
        "matrix_flop_per_s": rate,
        "best_of_trainer": best,
        "loads": loads,
        "results": results,
    }
    if options.only is None:
        print(write_record(of_this_kind_of_cpu("pretrain_cpu"), values))


def _print(name: str, result: dict[str, Any]) -> None:
    default, best = result["speed_over_default"], result["speed_over_best"]
    print(
        f"{name:<32} {result['tokens_per_cpu_second']:6,.0f} tokens/s "
        f" {result['share_of_matrix_rate']:4.0%} of the {result['precision']} rate  {default['median']:.2f}x"
        f" default [{default['low']:.2f}, {default['high']:.2f}]  {best['median']:.2f}x best"
        f" [{best['low']:.2f}, {best['high']:.2f}]  loss"
        f" {result['loss_of_the_last_10_of_53_steps']:.4f}"
        f" {'valid' if result['valid'] else 'NOT VALID'}"
        f"  {result['memory']['peak_bytes'] / 2**20:,.0f} MiB"
    )


def prepare(folder: Path) -> None:
    """Write the recipe, and its training sequences in order as one file that every contestant reads."""
    import numpy as np

    from brimful.base.env import cache_folder
    from brimful.data.prepare import prepare
    from brimful.data.sequences import TokenSequences
    from brimful.recipe import load

    (folder / "recipe.yaml").write_text(RECIPE)
    recipe = load(str(folder / "recipe.yaml"))
    sequences = TokenSequences(
        prepare(recipe, cache_folder()).splits["train"], recipe.sequence_length, seed=recipe.seed
    )
    np.save(folder / "ids.npy", sequences.batch(0, min(len(sequences), 4096)).inputs_BT.numpy())


class _Worker(Worker):
    """Runs one contestant."""

    def __init__(self, name: str, folder: Path) -> None:
        import numpy as np
        import torch

        super().__init__(name, folder, WARM_UP_STEPS)
        self.ids_NT = torch.from_numpy(np.load(folder / "ids.npy"))

    def work(self) -> None:
        train_brimful(self) if self.name in OURS else train_with_trainer(self)

    def asked(self, word: str) -> Any:
        return _matrix_flop_per_cpu_second() if word == "rate" else super().asked(word)


def _matrix_flop_per_cpu_second(size: int = 1024, times: int = 40) -> dict[str, float]:
    """Rate of square products on this thread by CPU time, the fastest of `times`."""
    import torch

    rates = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        left, right = torch.randn(2, size, size).to(dtype)
        seconds = []
        for _ in range(times):
            began = time.process_time()
            torch.mm(left, right)
            seconds.append(time.process_time() - began)
        rates[name] = 2 * size**3 / min(seconds)
    return rates


def train_with_trainer(worker: _Worker) -> None:
    """transformers' Trainer, stopped and timed at step boundaries by a callback."""
    import torch
    import transformers

    from brimful.model.build import build
    from brimful.recipe import load

    recipe = load(str(worker.folder / "recipe.yaml"))
    model = build(
        recipe, vocabulary=8192, end_of_text_id=0, attention="sdpa", device=torch.device("cpu")
    )

    class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return len(worker.ids_NT)

        def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
            return {"input_ids": worker.ids_NT[row], "labels": worker.ids_NT[row]}

    worker.note_memory()
    settings = TRAINERS[setting(worker.name)]
    worker.precision = "bf16" if settings.get("bf16") else "fp32"
    trainer, gate = step_by_step(transformers.Trainer, worker)
    arguments = transformers.TrainingArguments(
        output_dir=str(worker.folder / "trainer"),
        per_device_train_batch_size=4,
        learning_rate=recipe.optimizer.learning_rate,
        weight_decay=0.1,
        adam_beta2=0.95,
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential",
        **QUIET,
        **settings,
    )
    trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[gate]).train()


def train_brimful(worker: _Worker) -> None:
    """brimful's own loop under the plan it derives for one thread of this machine."""
    from brimful.recipe import load

    recipe = load(str(worker.folder / "recipe.yaml"), OURS[worker.name])
    train_as_planned(worker, recipe, worker.ids_NT, vocabulary=8192)


def train_as_planned(worker: Worker, recipe: Any, ids_NT: Any, *, vocabulary: int) -> None:
    """Train a fresh model on sequences of token ids in their order, over and over."""
    from brimful.base.env import wait_politely

    wait_politely()
    import torch

    from brimful.chains.devices import facts_of, here
    from brimful.data.batches import Batch
    from brimful.hardware.host import keep_freed_memory
    from brimful.model.build import build
    from brimful.planning.derive import derive
    from brimful.rehearsal.kept_traces import kept_traces
    from brimful.training.method import Network, compiled, hidden_states_of

    device = here(recipe)
    with kept_traces() as traces:
        plan = derive(
            recipe, device, traces, facts_of(device, measures=True, vocabulary=vocabulary)
        )
    keep_freed_memory()
    model = build(
        recipe,
        vocabulary=vocabulary,
        end_of_text_id=0,
        attention=plan.attention,
        device=torch.device("cpu"),
    )
    model.train()
    worker.note_memory()
    shape = (plan.micro_batches[0], recipe.sequence_length)
    hidden_states = (
        compiled(model, shape=shape, say=print) if plan.compile else hidden_states_of(model)
    )

    class Rows:
        def batch(self, first_sample: int, count: int) -> Batch:
            ids_BT = ids_NT[torch.arange(first_sample, first_sample + count) % len(ids_NT)]
            return Batch(ids_BT, torch.nn.functional.pad(ids_BT[:, 1:], (0, 1), value=-100))

    network = Network(model, hidden_states, plan.loss_chunk)
    train_ours(worker, recipe, plan, network, Rows())


if __name__ == "__main__":
    main()
