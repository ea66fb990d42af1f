"""A round of GRPO on a CPU, answers drawn, verified and learned in one update: brimful's loop beside
TRL's GRPOTrainer with transformers' generation; LoRA on SmolLM2-135M-Instruct, questions on units.

    python benchmarks/rewards_cpu.py [--rounds 5] [--groups 2] [--tokens 48] [--warm-up 1]

Rules: one thread each, CPU time, every contestant its own process, interleaved forwards and backwards,
warm-up excluded and reported, median of paired ratios with a bootstrap interval; the same weights,
questions, verifier, group size, longest answer, temperature, loss and optimizer settings, fp32 on both
sides (where sampler and trainer agree). TRL recomputes by default; the quicker setting without it is the
one that is compared. Answers are drawn at random on each side, so rounds differ in length: speeds are of a
round, and of a drawn token.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from contestant import LORA, QUIET, TUNING, Contestant, Worker, interleaved, step_by_step, tune_ours

MODEL, GROUP = "smollm2-135m-instruct", 8
RECIPE = """
name: rewards-cpu
method: grpo
model: BASE
adapter: {rank: 16, alpha: 32}
sequence_length: 160
batch: {sequences: ANSWERS}
training: {steps: 100000}
data: {path: "builtin:unit-conversion-small", max_documents: 200, validation: 0.05}
optimizer: {learning_rate: 1e-4, schedule: constant, warmup: 0, weight_decay: 0.0, beta2: 0.95}
rewards: {verifiers: {number: 1.0}, samples_per_prompt: 8, max_new_tokens: TOKENS}
evaluation: {base: never}
plan: {device: cpu, threads: 1, precision: fp32}
"""
OURS, TRL = "brimful", "TRL, no recomputation"


class _Worker(Worker):
    """Runs one contestant; its work is drawn tokens."""

    tokens = 0

    def work_done(self) -> int:
        return self.tokens


def _ours(worker: _Worker) -> None:
    from brimful.kinds import rewarded
    from brimful.recipe import load

    real = rewarded.RewardedRunData.draw

    def draw(data: Any, first_sample: int, is_stopped: Any) -> Any:
        found = real(data, first_sample, is_stopped)
        worker.tokens += sum(len(each.token_ids) for each in data._round.answers)
        return found

    rewarded.RewardedRunData.draw = draw  # type: ignore[assignment]
    tune_ours(worker, load(str(worker.folder / "recipe.yaml")))


def _trl(worker: _Worker, options: argparse.Namespace) -> None:
    import datasets
    import peft
    import torch
    import transformers
    import trl

    from brimful.verify.verifier import load_verifier

    verify = load_verifier("number").verify
    assert verify is not None
    worker.precision = "fp32"
    stepwise, gate = step_by_step(trl.GRPOTrainer, worker)

    def rewards(completions: list[str], completion_ids: Any, answer: list[str], **_: Any) -> Any:
        worker.tokens += sum(map(len, completion_ids))
        return [
            float(verify(text, right).is_correct)
            for text, right in zip(completions, answer, strict=True)
        ]

    trainer = stepwise(
        model=transformers.AutoModelForCausalLM.from_pretrained(
            worker.folder / "base", dtype=torch.float32
        ),
        reward_funcs=rewards,
        args=trl.GRPOConfig(
            output_dir=str(worker.folder / "trl"),
            **QUIET,
            **TUNING,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=options.groups * GROUP,
            num_generations=GROUP,
            max_completion_length=options.tokens,
            temperature=1.0,
            loss_type="grpo",
        ),
        train_dataset=datasets.Dataset.from_list(
            json.loads((worker.folder / "rows.json").read_text())
        ),
        processing_class=transformers.AutoTokenizer.from_pretrained(worker.folder / "base"),
        callbacks=[gate],
        peft_config=peft.LoraConfig(**LORA, task_type="CAUSAL_LM"),
    )
    trainer.train()


def _prepare(folder: Path, options: argparse.Namespace) -> None:
    """Base, recipe, and the questions as both sides' templates write them."""
    from brimful.kinds.rewarded import RewardedRunData
    from brimful.kinds.run_data import gather
    from brimful.model.obtained import folder_of_model
    from brimful.recipe import load

    (folder / "base").symlink_to(folder_of_model(MODEL).resolve())
    text = RECIPE.replace("BASE", str(folder / "base")).replace("TOKENS", str(options.tokens))
    (folder / "recipe.yaml").write_text(text.replace("ANSWERS", str(options.groups * GROUP)))
    data = gather(load(str(folder / "recipe.yaml")), str(folder / "base"))
    assert isinstance(data, RewardedRunData)
    rows = [
        {"prompt": data.tokenizer.decode(each.prompt_ids), "answer": each.reference}
        for each in data.questions["train"]
    ]
    (folder / "rows.json").write_text(json.dumps(rows))


def _compare(folder: Path, options: argparse.Namespace) -> None:
    from record import of_this_kind_of_cpu, ratio_interval, summary, write_record

    _prepare(folder, options)
    command = [sys.executable, *sys.argv, "--folder", str(folder), "--worker"]
    contestants = [Contestant(name, folder, [*command, name]) for name in (TRL, OURS)]
    of_round: dict[str, list[float]] = {each.name: [] for each in contestants}
    of_token: dict[str, list[float]] = {each.name: [] for each in contestants}
    loads: list[float] = []
    for each in interleaved(contestants, options.rounds, loads):
        cpu_s, tokens = each.ask("run 1")
        of_round[each.name].append(cpu_s)
        of_token[each.name].append(cpu_s / tokens)
        print(f"{each.name}: {cpu_s:.1f} s, {tokens} tokens", file=sys.stderr, flush=True)
    result: dict[str, Any] = {
        each.name: {
            "cpu_s_of_a_round": summary(of_round[each.name]),
            "tokens_per_cpu_s": summary([1 / each for each in of_token[each.name]]),
            "start_and_warm_up": each.start,
            "memory": each.ask("memory"),
        }
        for each in contestants
    }
    result |= {
        "rounds": options.rounds,
        "answers_of_a_round": options.groups * GROUP,
        "most_tokens": options.tokens,
        "speed_of_a_round": ratio_interval(of_round[TRL], of_round[OURS]),
        "speed_of_a_token": ratio_interval(of_token[TRL], of_token[OURS]),
        "loads": loads,
    }
    for each in contestants:
        each.quit()
    print(json.dumps(result["speed_of_a_round"]), json.dumps(result["speed_of_a_token"]))
    print(write_record(of_this_kind_of_cpu("rewards_cpu"), result))


def main() -> None:
    """Compare, or be one of those that are compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker = _Worker(options.worker, Path(options.folder), options.warm_up)
        _ours(worker) if worker.name == OURS else _trl(worker, options)
        return
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _compare(Path(folder), options)
    print(f"{time.monotonic() - started_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
