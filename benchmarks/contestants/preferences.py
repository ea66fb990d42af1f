"""Learning from pairs of answers (DPO) with LoRA on SmolLM2-135M-Instruct: brimful beside TRL's
DPOTrainer.

The pairs are made of questions on units with worked answers that end in the right number: chosen is
the answer, rejected the worked answer to another question, whose number is wrong here. TRL's bf16
and its recomputation are its defaults; its padding_free is no contestant: TRL 1.16 warns that it is
unavailable and pads. Where the reference's log-probabilities are computed once before training,
that counts, too: speeds are those of one epoch.

A result counts whose loss over the gate's steps, which see the same pairs in the same order, is that
of TRL's default in fp32 within `LOSS_TOLERANCE`. In bf16 TRL rounds the weights that it trains, too,
and learns less in the same steps.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from contestants.process import and_memory_kept, setting
from contestants.rounds import Comparison, Found
from contestants.worker import Worker, adapters, train_with_brimful, tune_with_trl

MODEL = "smollm2-135m-instruct"
LOSS_TOLERANCE = 0.005
RECIPE = """
name: preferences-cpu
method: dpo
model: BASE
adapter: {rank: 16, alpha: 32}
sequence_length: 512
batch: {sequences: PAIRS}
training: {steps: 5000}
data: {path: ROWS, validation: 0.05}
optimizer: {learning_rate: 1e-4, schedule: constant, warmup: 0, weight_decay: 0.0, beta2: 0.95}
evaluation: {base: never, every: 5000}
plan: {device: cpu, threads: 1}
"""
FREELY: dict[str, Any] = {"gradient_checkpointing": False}
DEFAULT, GATE = "TRL, default", "TRL, default, fp32"
TRL: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    GATE: {"bf16": False},
    "TRL, no recomputation": FREELY,
    "TRL, no recomputation, fp32": FREELY | {"bf16": False},
    "TRL, reference kept": FREELY | {"precompute_ref_log_probs": True},
}
OURS = {
    "brimful": [],
    "brimful, fp32": ["plan.precision=fp32"],
    "brimful, bf16": ["plan.precision=bf16"],
}


class Preferences(Comparison):
    """Of pairs."""

    needs = ("trl", "trl")
    record, unit, rounds, steps = "preferences_cpu", "pairs", 5, 2
    warm_up, gate_steps = 1, 10
    names, judged_by = (DEFAULT, *and_memory_kept(list(TRL)[1:]), *OURS), (GATE,)
    options = (
        ("data", None, "JSON of questions, numbers and worked answers"),
        ("pairs", 8, "of a step; 8 is TRL's default"),
        ("rows", 240, "pairs of an epoch"),
    )

    def prepare(self, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
        """Write base, recipe, adapters, and the pairs in the order of training."""
        from brimful.kinds.run_data import gather
        from brimful.model.obtained import folder_of_model
        from brimful.recipe import load

        pairs = pairs_of_units(Path(options.data))[: options.rows]
        (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
        (folder / "base").symlink_to(folder_of_model(MODEL).resolve())
        text = RECIPE.replace("BASE", str(folder / "base")).replace("PAIRS", str(options.pairs))
        (folder / "recipe.yaml").write_text(text.replace("ROWS", str(folder / "pairs.jsonl")))
        recipe = load(str(folder / "recipe.yaml"))
        data: Any = gather(recipe, str(folder / "base"))
        split = data.splits["train"]
        numbers = data._sequences("padded", "cpu").examples(0, split.num_examples // 2)
        (folder / "ids.json").write_text(json.dumps(token_ids(split, numbers)))
        _write_adapters(folder, recipe)
        return {
            "pairs": split.num_examples // 2,
            "mean_tokens_of_an_answer_with_its_prompt": float(split.lengths_E.mean()),
            "longest": int(split.lengths_E.max()),
        }

    def work(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        worker = _Worker(name, folder, options.warm_up)
        worker.pairs, worker.epoch = options.pairs, options.rows
        if name in OURS:
            train_with_brimful(worker, OURS[name])
        else:
            _train_with_trl(worker)

    def judge(self, name: str, found: Found) -> dict[str, Any]:
        mean = {each: statistics.mean(losses) for each, losses in found.losses.items()}
        valid = abs(mean[name] / mean[GATE] - 1) < LOSS_TOLERANCE
        return {"losses": found.losses[name], "gate": GATE, "valid": valid}

    def values(self, found: Found, results: Any, options: argparse.Namespace) -> dict[str, Any]:
        return {"model": MODEL, "pairs_per_step": options.pairs, "data": found.about}


def pairs_of_units(path: Path) -> list[dict[str, str]]:
    """Return each question with its worked answer, and that of the next with another number."""
    rows = json.loads(path.read_text())
    others = [
        next(each for each in rows[n:] + rows if each[1] != rows[n][1]) for n in range(len(rows))
    ]
    return [
        {"prompt": question, "chosen": answer, "rejected": other[2]}
        for (question, _, answer), other in zip(rows, others, strict=True)
    ]


def token_ids(split: Any, numbers: Any) -> list[dict[str, list[int]]]:
    """Return prompt and answers of pairs, in the order of their answers."""
    import numpy as np

    tokens, is_target = (
        np.split(array, split.offsets_E[1:-1]) for array in (split.tokens_N, split.is_target_N)
    )
    starts = [int(each.argmax()) for each in is_target]
    return [
        {
            "prompt_ids": tokens[chosen][: starts[chosen]].tolist(),
            "chosen_ids": tokens[chosen][starts[chosen] :].tolist(),
            "rejected_ids": tokens[rejected][starts[rejected] :].tolist(),
        }
        for chosen, rejected in zip(numbers[::2], numbers[1::2], strict=True)
    ]


def _write_adapters(folder: Path, recipe: Any) -> None:
    """Keep the adapters that brimful begins with, so that all begin alike."""
    import torch
    import transformers

    from brimful.model.published import attach_adapters

    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    attach_adapters(model, recipe.adapter, seed=recipe.seed)
    fresh = {key: each.data for key, each in model.named_parameters() if each.requires_grad}
    torch.save(fresh, folder / "adapters.pt")


class _Worker(Worker):
    """Counts pairs, and in its CPU time each pair's share of what the reference took before."""

    pairs, epoch, reference_s = 0, 1, 0.0

    def done(self) -> float:
        return self.steps * self.pairs

    def cpu_s(self) -> float:
        return super().cpu_s() + self.reference_s * self.steps * self.pairs / self.epoch


def _train_with_trl(worker: _Worker) -> None:
    import torch
    import trl

    class Prepared(trl.DPOTrainer):  # type: ignore[misc]
        """Takes rows of token ids as they are, and times the reference."""

        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

        def _precompute_ref_logps(self, *arguments: Any) -> Any:
            began_s = time.process_time()
            found = super()._precompute_ref_logps(*arguments)
            worker.reference_s = time.process_time() - began_s
            return found

        def train(self, *arguments: Any, **named: Any) -> Any:
            fresh = torch.load(worker.folder / "adapters.pt")
            with torch.no_grad():
                for key, each in self.model.named_parameters():
                    if each.requires_grad:
                        each.copy_(fresh[key.removeprefix("base_model.model.")])
            return super().train(*arguments, **named)

    settings = TRL[setting(worker.name)]
    own = {
        "per_device_train_batch_size": worker.pairs,
        "train_sampling_strategy": "sequential",
        "dtype": "bfloat16" if settings.get("bf16", True) else "float32",
    }
    rows = json.loads((worker.folder / "ids.json").read_text())
    tune_with_trl(worker, Prepared, trl.DPOConfig, rows, own | settings, **adapters())


COMPARISON = Preferences()
