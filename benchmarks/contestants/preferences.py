"""Learning from pairs of answers (DPO) with LoRA on SmolLM2-135M-Instruct: brimful beside TRL's
DPOTrainer.

The pairs are made of questions on units with worked answers that end in the right number: chosen is
the answer, rejected the worked answer to another question, whose number is wrong here. TRL's bf16
and its recomputation are its defaults; its padding_free is no contestant: TRL 1.16 warns that it is
unavailable and pads. Where the reference's log-probabilities are computed once before training,
that counts, too: speeds are those of one epoch.

A result counts whose loss on held-out pairs, computed in fp32 after all steps, which see the same
pairs in the same order, is that of TRL's default in fp32 within `LOSS_TOLERANCE`. Losses of steps are
recorded: in fp32 they are equal, in bf16 that of a step of 4 pairs is off by 3 to 4 % (docs/log, 30
November), so that their mean is chance.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contestants.process import and_memory_kept, setting
from contestants.rounds import Comparison, Found
from contestants.worker import Worker, adapters, train_with_brimful, tune_with_trl

MODEL = "smollm2-135m-instruct"
LOSS_TOLERANCE = 0.005
"""Relative."""
BETA = 0.1
"""Of both sides, unless they are told another."""
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
        ("held-out", 24, "pairs of the held-out loss"),
    )

    def prepare(self, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
        """Write base, recipe, adapters, and the pairs in the order of training."""
        from brimful.model.obtained import folder_of_model

        (folder / "base").symlink_to(folder_of_model(MODEL).resolve())
        pairs, end = pairs_of_units(Path(options.data)), options.rows + options.held_out
        text = RECIPE.replace("BASE", str(folder / "base")).replace("PAIRS", str(options.pairs))
        (folder / "recipe.yaml").write_text(text.replace("ROWS", str(folder / "pairs.jsonl")))
        split = _write_pairs(folder, "pairs", pairs[: options.rows])
        _write_pairs(folder, "held_out", pairs[options.rows : end])
        _write_start(folder)
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
        own, other = (found.told[each]["held_out_loss"] for each in (name, GATE))
        valid = abs(own / other - 1) < LOSS_TOLERANCE
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


def _write_pairs(folder: Path, name: str, pairs: Sequence[Mapping[str, str]]) -> Any:
    """Write pairs, and their tokens in the order in which the recipe trains on them; return these."""
    from brimful.kinds.run_data import gather
    from brimful.recipe import load

    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    recipe = load(str(folder / "recipe.yaml"), [f"data.path={path}"])
    data: Any = gather(recipe, str(folder / "base"))
    split = data.splits["train"]
    numbers = data._sequences("padded", "cpu").examples(0, split.num_examples // 2)
    path.with_suffix(".json").write_text(json.dumps(token_ids(split, numbers)))
    return split


def _write_start(folder: Path) -> None:
    """Keep the adapters that brimful begins with, so that all begin alike, and what the model
    makes of the held-out pairs before training.
    """
    import torch
    import transformers

    from brimful.model.published import attach_adapters
    from brimful.recipe import load

    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    held_out = json.loads((folder / "held_out.json").read_text())
    (folder / "reference.json").write_text(json.dumps(margins(model, held_out)))
    recipe: Any = load(str(folder / "recipe.yaml"))
    attach_adapters(model, recipe.adapter, seed=recipe.seed)
    fresh = {key: each.data for key, each in model.named_parameters() if each.requires_grad}
    torch.save(fresh, folder / "adapters.pt")


def margins(model: Any, pairs: Sequence[Mapping[str, list[int]]]) -> list[float]:
    """By how many nats each chosen answer is likelier than the rejected one, in fp32, by the
    model's own logits.
    """
    import torch

    def log_prob(prompt: list[int], answer: list[int]) -> float:
        ids = torch.tensor([prompt + answer])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        log_probs = logits.float().log_softmax(-1)
        return float(log_probs.gather(1, ids[0, len(prompt) :, None]).sum())

    model.eval()
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return [
            log_prob(pair["prompt_ids"], pair["chosen_ids"])
            - log_prob(pair["prompt_ids"], pair["rejected_ids"])
            for pair in pairs
        ]


class _Worker(Worker):
    """Counts pairs, and in its CPU time each pair's share of what the reference took before."""

    pairs, epoch, reference_s = 0, 1, 0.0

    def tell(self) -> dict[str, Any]:
        """The loss of held-out pairs."""
        held_out, reference = (
            json.loads((self.folder / f"{name}.json").read_text())
            for name in ("held_out", "reference")
        )
        found = zip(margins(self.model, held_out), reference, strict=True)
        losses = [math.log1p(math.exp(BETA * (before - after))) for after, before in found]
        return {"held_out_loss": statistics.mean(losses)}

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
    rows = json.loads((worker.folder / "pairs.json").read_text())
    tune_with_trl(worker, Prepared, trl.DPOConfig, rows, own | settings, **adapters())


COMPARISON = Preferences()
