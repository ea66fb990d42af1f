"""Learning from pairs of answers on a CPU: brimful's loop beside TRL's DPOTrainer, same weights, pairs,
effective batch, adapters to begin with and optimizer settings; LoRA on SmolLM2-135M-Instruct.

    python benchmarks/preferences_cpu.py --data FOLDER/unit_conversion/rft_nickctomlin.json
    [--rounds 5] [--steps 2] [--pairs 8] [--only "TRL, default"]

The pairs are made of questions on units with worked answers that end in the right number: chosen is
the answer, rejected the worked answer to another question, whose number is wrong here.

Rules: one thread each, CPU time, every contestant its own process, interleaved forwards and
backwards, warm-up excluded and reported, median of paired ratios with a bootstrap interval. TRL's
bf16 and its recomputation are its defaults; each setting runs with brimful's setting of the
allocator, too (", memory kept"), without --only. DPOTrainer's padding_free is no contestant: TRL
1.16 warns that it is unavailable and pads.

A pair costs its share of the updates, and where the reference's log-probabilities are computed once
before training, that, too: speeds are those of one epoch.

Validity gate: the loss of the gate's steps, which see the same pairs in the same order, is that of
TRL's default in fp32, within `LOSS_TOLERANCE` of its mean. In bf16 TRL rounds the weights that it
trains, too, and learns less in the same steps.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contestant import (
    Contestant,
    Worker,
    and_memory_kept,
    fastest,
    interleaved,
    setting,
    trainer_of_trl,
    tune_ours,
)

MODEL = "smollm2-135m-instruct"
LOSS_TOLERANCE = 0.005
RECIPE = """
name: preferences-cpu
method: dpo
model: BASE
adapter: {rank: 16, alpha: 32}
sequence_length: 512
batch: {sequences: PAIRS}
training: {steps: 100000}
data: {path: DATA, validation: 0.05}
optimizer: {learning_rate: 1e-4, schedule: constant, warmup: 0, weight_decay: 0.0, beta2: 0.95}
evaluation: {base: never}
plan: {device: cpu, threads: 1}
"""
FREELY: dict[str, Any] = {"gradient_checkpointing": False}
KEPT = FREELY | {"precompute_ref_log_probs": True}
TRL: dict[str, dict[str, Any]] = {
    "TRL, default": {},
    "TRL, no recomputation": FREELY,
    "TRL, reference kept": KEPT,
}
TRL |= {f"{name}, fp32": row | {"bf16": False} for name, row in TRL.items()}
OURS = {
    "brimful": [],
    "brimful, reference kept": ["preference.reference=kept"],
    "brimful, fp32": ["plan.precision=fp32"],
    "brimful, bf16": ["plan.precision=bf16"],
}
DEFAULT, GATE = "TRL, default", "TRL, default, fp32"
NAMES = [DEFAULT, *and_memory_kept([name for name in TRL if name != DEFAULT]), *OURS]


def main() -> None:
    parser = argparse.ArgumentParser()
    words = "questions, numbers and worked answers"
    parser.add_argument("--data", type=Path, required=True, help=words)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of a round")
    parser.add_argument("--pairs", type=int, default=8, help="of a step; 8 is TRL's default")
    parser.add_argument("--rows", type=int, default=240, help="pairs of an epoch")
    parser.add_argument("--gate-steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600, help="No new round after these.")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(PairWorker(options.worker, Path(options.folder), options.warm_up, options.pairs))
        return
    with tempfile.TemporaryDirectory() as folder:
        _compare(Path(folder), options)


def _compare(folder: Path, options: argparse.Namespace) -> None:
    from record import of_this_kind_of_cpu, write_record

    end_s = time.monotonic() + 60 * options.minutes
    pairs = pairs_of_units(options.data)[: options.rows]
    about = _about(prepare(folder, pairs, options.pairs))
    command = [sys.executable, *sys.argv, "--folder", str(folder), "--worker"]
    contestants = [Contestant(name, folder, [*command, name]) for name in options.only]
    losses = {each.name: each.ask(f"losses {options.gate_steps}") for each in contestants}
    seconds: dict[str, list[float]] = {each.name: [] for each in contestants}
    loads: list[float] = []
    for each in interleaved(contestants, options.rounds, loads):
        if each is contestants[0 if len(loads) % 2 else -1] and time.monotonic() > end_s:
            break
        cpu_s, pairs = each.ask(f"run {options.steps}")
        seconds[each.name].append(cpu_s / pairs)
        print(f"{each.name}: {pairs / cpu_s:.2f} pairs/s", file=sys.stderr, flush=True)
    about_each = {
        each.name: {
            **{word: each.ask(word) for word in ("memory", "precision", "reference_cpu_s")},
            "start_and_warm_up": each.start,
        }
        for each in contestants
    }
    for each in contestants:
        each.quit()
    # Else it is of the held-out pairs alone.
    reference_s = {
        name: values["reference_cpu_s"] / about["all_pairs"] if "reference kept" in name else 0.0
        for name, values in about_each.items()
    }
    whole = {
        name: [each + reference_s[name] for each in values] for name, values in seconds.items()
    }
    results = {name: _result(name, whole, losses) | about_each[name] for name in whole}
    for name, result in results.items():
        result["updates_alone_cpu_s_per_pair"] = statistics.median(seconds[name])
        print(name, json.dumps(result))
    values = {
        "model": MODEL,
        "rounds": min(map(len, seconds.values())),
        "steps": options.steps,
        "pairs_per_step": options.pairs,
        "warm_up_steps": options.warm_up,
        "gate_steps": options.gate_steps,
        "contestant_threads": 1,
        "not_run": [name for name in NAMES if name not in options.only],
        "data": about,
        "loads": loads,
        "results": results,
    }
    print(write_record(of_this_kind_of_cpu("preferences_cpu"), values))


def _result(
    name: str, seconds: dict[str, list[float]], losses: dict[str, list[float]]
) -> dict[str, Any]:
    from record import ratio_interval, summary

    reference, gate = (each if each in seconds else next(iter(seconds)) for each in (DEFAULT, GATE))
    best = fastest(seconds)
    mean = {each: statistics.mean(losses[each]) for each in losses}
    return {
        "pairs_per_cpu_s": summary([1 / each for each in seconds[name]]),
        "speed_over_default": ratio_interval(seconds[reference], seconds[name]),
        "best_of_trl": best,
        "speed_over_best": ratio_interval(seconds[best], seconds[name]),
        "losses": losses[name],
        "loss_of_the_gate": mean[name],
        "gate": gate,
        "valid": abs(mean[name] / mean[gate] - 1) < LOSS_TOLERANCE,
    }


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


def prepare(
    folder: Path, pairs: list[dict[str, str]], size: int, changes: Sequence[str] = ()
) -> Any:
    """Write base, recipe, adapters and pairs as files, and return the data of the run. The token
    ids of the pairs in its order are those that every contestant learns.
    """
    from brimful.kinds.pairs import PairRunData
    from brimful.kinds.run_data import gather
    from brimful.model.obtained import folder_of_model
    from brimful.recipe import load

    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    (folder / "base").symlink_to(folder_of_model(MODEL).resolve())
    text = RECIPE.replace("BASE", str(folder / "base")).replace("PAIRS", str(size))
    (folder / "recipe.yaml").write_text(text.replace("DATA", str(folder / "pairs.jsonl")))
    recipe = load(str(folder / "recipe.yaml"), [*changes])
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    data = gather(recipe, str(folder / "base"))
    assert isinstance(data, PairRunData)
    split = data.splits["train"]
    numbers = data._sequences("padded", "cpu").examples(0, split.num_examples // 2)
    (folder / "ids.json").write_text(json.dumps(token_ids(split, numbers)))
    _write_adapters(folder, data.recipe)
    return data


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


def _about(data: Any) -> dict[str, Any]:
    split = data.splits["train"]
    return {
        "pairs": split.num_examples // 2,
        "all_pairs": sum(each.num_examples for each in data.splits.values()) // 2,
        "mean_tokens_of_an_answer_with_its_prompt": float(split.lengths_E.mean()),
        "longest": int(split.lengths_E.max()),
    }


def _write_adapters(folder: Path, recipe: Any) -> None:
    """Keep the adapters that brimful begins with, so that all begin alike."""
    import torch
    import transformers

    from brimful.model.published import attach_adapters

    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    attach_adapters(model, recipe.adapter, seed=recipe.seed)
    adapters = {key: each.data for key, each in model.named_parameters() if each.requires_grad}
    torch.save(adapters, folder / "adapters.pt")


class PairWorker(Worker):
    """Runs one contestant."""

    def __init__(self, name: str, folder: Path, warm_up_steps: int, pairs: int) -> None:
        super().__init__(name, folder, warm_up_steps)
        self.pairs = pairs

    def work_done(self) -> int:
        return self.steps * self.pairs


def work(worker: PairWorker, **settings: Any) -> None:
    """Train as the worker's name says; `settings` are for TRL."""
    from brimful.recipe import load

    if worker.name in OURS:
        tune_ours(worker, load(str(worker.folder / "recipe.yaml"), OURS[worker.name]))
    else:
        _train_with_trl(worker, TRL[setting(worker.name)] | settings)


def _train_with_trl(worker: PairWorker, settings: dict[str, Any]) -> None:
    """TRL's DPOTrainer, stopped and timed at step boundaries by a callback."""
    import torch
    import trl

    class Prepared(trl.DPOTrainer):  # type: ignore[misc]
        """Takes rows of token ids as they are, and times the reference."""

        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

        def _precompute_ref_logps(self, *arguments: Any) -> Any:
            with worker.reference():
                return super()._precompute_ref_logps(*arguments)

    own = {"per_device_train_batch_size": worker.pairs, "train_sampling_strategy": "sequential"}
    dtype = "bfloat16" if settings.get("bf16", True) else "float32"
    trainer = trainer_of_trl(
        worker, Prepared, trl.DPOConfig, "ids.json", {"dtype": dtype, **own, **settings}
    )
    adapters = torch.load(worker.folder / "adapters.pt")
    with torch.no_grad():
        for key, each in trainer.model.named_parameters():
            if each.requires_grad:
                each.copy_(adapters[key.removeprefix("base_model.model.")])
    worker.model = lambda: trainer.model
    worker.note_memory()
    trainer.train()


if __name__ == "__main__":
    main()
