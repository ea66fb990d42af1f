"""A round of GRPO on a CPU, answers drawn, verified and learned in one update: brimful's loop beside
TRL's GRPOTrainer with transformers' generation; LoRA on SmolLM2-135M-Instruct, questions on units.

    python benchmarks/rewards_cpu.py [--rounds 5] [--groups 4] [--tokens 48] [--warm-up 1]
    [--only "TRL, default"]

Rules: one thread each, CPU time, every contestant its own process, interleaved forwards and backwards,
warm-up excluded and reported, median of paired ratios with a bootstrap interval; the same weights,
questions, verifier, group size, longest answer, temperature, loss and optimizer settings. TRL's bf16 and
its recomputation are its defaults; the weights are in fp32 where it loads them itself. brimful's default
precision is what it chooses for this CPU. Answers are drawn at random on each side, so rounds differ in
length: speeds are of a round, and of a drawn token.

A right answer of this model is rare, and brimful takes no pass over groups of equal rewards. What is
rewarded here is a digit that about half of the answers hold, so that both sides learn from every group.

Validity: in fp32 loss and gradients are TRL's for the same answers (`tests/training/methods/test_grpo.py`), and every side's
mean reward over its rounds is recorded. In bf16 rounding differs: rewards can be compared, not equal.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
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

MODEL, GROUP = "smollm2-135m-instruct", 8
PATTERN = "(?s).*[05].*"
"""What is rewarded: one of two digits, which about half of the answers of a group hold."""
RECIPE = """
name: rewards-cpu
method: grpo
model: BASE
adapter: {rank: 16, alpha: 32}
sequence_length: 160
batch: {sequences: ANSWERS}
training: {steps: 100000}
data: {path: DATA, validation: 0.05}
optimizer: {learning_rate: 1e-4, schedule: constant, warmup: 0, weight_decay: 0.0, beta2: 0.95}
rewards: {verifiers: {regex: 1.0}, samples_per_prompt: 8, max_new_tokens: TOKENS}
evaluation: {base: never}
plan: {device: cpu, threads: 1}
"""
FREELY: dict[str, Any] = {"gradient_checkpointing": False}
TRL: dict[str, dict[str, Any]] = {
    "TRL, default": {},
    "TRL, no recomputation": FREELY,
    "TRL, no recomputation, weights in bf16": FREELY | {"dtype": "bfloat16"},
    "TRL, no recomputation, fp32": FREELY | {"bf16": False},
}
OURS = {"brimful": [], "brimful, fp32": ["plan.precision=fp32"]}
DEFAULT = "TRL, default"
NAMES = [DEFAULT, *and_memory_kept([name for name in TRL if name != DEFAULT]), *OURS]


class _Worker(Worker):
    """Runs one contestant; its work is drawn tokens."""

    tokens = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rewards: list[float] = []

    def work_done(self) -> int:
        return self.tokens

    def asked(self, word: str) -> Any:
        return self.rewards if word == "rewards" else super().asked(word)


def _ours(worker: _Worker) -> None:
    from brimful.kinds import rewarded
    from brimful.recipe import load

    real = rewarded.RewardedRunData.draw

    def draw(data: Any, first_sample: int, is_stopped: Any) -> Any:
        found = real(data, first_sample, is_stopped)
        worker.tokens += sum(len(each.token_ids) for each in data._round.answers)
        worker.rewards.append(data._round.found["watched"]["reward"])
        return found

    rewarded.RewardedRunData.draw = draw  # type: ignore[assignment]
    tune_ours(worker, load(str(worker.folder / "recipe.yaml"), OURS[worker.name]))


def _trl(worker: _Worker, options: argparse.Namespace) -> None:
    import trl

    from brimful.verify.verifier import load_verifier

    verify = load_verifier("regex").verify
    assert verify is not None

    def rewards(completions: list[str], completion_ids: Any, answer: list[str], **_: Any) -> Any:
        worker.tokens += sum(map(len, completion_ids))
        found = [
            float(verify(text, right).is_correct)
            for text, right in zip(completions, answer, strict=True)
        ]
        worker.rewards.append(statistics.mean(found))
        return found

    same = {
        "per_device_train_batch_size": options.groups * GROUP,
        "num_generations": GROUP,
        "max_completion_length": options.tokens,
        "temperature": 1.0,
        "loss_type": "grpo",
    }
    settings = same | TRL[setting(worker.name)]
    trainer_of_trl(
        worker, trl.GRPOTrainer, trl.GRPOConfig, "rows.json", settings, reward_funcs=rewards
    ).train()


def _prepare(folder: Path, options: argparse.Namespace) -> None:
    """Base, recipe, questions on units, and the same as both sides' templates write them."""
    from brimful.kinds.rewarded import RewardedRunData
    from brimful.kinds.run_data import gather
    from brimful.model.obtained import folder_of_model
    from brimful.recipe import load

    (folder / "base").symlink_to(folder_of_model(MODEL).resolve())
    text = RECIPE.replace("BASE", str(folder / "base")).replace("TOKENS", str(options.tokens))
    text = text.replace("DATA", str(folder / "asked.jsonl"))
    (folder / "recipe.yaml").write_text(text.replace("ANSWERS", str(options.groups * GROUP)))
    units = ["data.path=builtin:unit-conversion-small", "data.max_documents=200"]
    recipe = str(folder / "recipe.yaml")
    data = gather(load(recipe, [*units, "rewards.verifiers={number: 1.0}"]), str(folder / "base"))
    assert isinstance(data, RewardedRunData)
    questions = data.questions["train"]
    asked = [{"prompt": each.text, "completion": PATTERN} for each in questions]
    (folder / "asked.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in asked))
    rows = [
        {"prompt": data.tokenizer.decode(each.prompt_ids), "answer": PATTERN} for each in questions
    ]
    (folder / "rows.json").write_text(json.dumps(rows))


def _compare(folder: Path, options: argparse.Namespace) -> None:
    from record import of_this_kind_of_cpu, ratio_interval, summary, write_record

    _prepare(folder, options)
    command = [sys.executable, *sys.argv, "--folder", str(folder), "--worker"]
    contestants = [Contestant(name, folder, [*command, name]) for name in options.only]
    of_round: dict[str, list[float]] = {each.name: [] for each in contestants}
    of_token: dict[str, list[float]] = {each.name: [] for each in contestants}
    loads: list[float] = []
    for each in interleaved(contestants, options.rounds, loads):
        cpu_s, tokens = each.ask("run 1")
        of_round[each.name].append(cpu_s)
        of_token[each.name].append(cpu_s / tokens)
        print(f"{each.name}: {cpu_s:.1f} s, {tokens} tokens", file=sys.stderr, flush=True)
    best = fastest(of_token)
    default = DEFAULT if DEFAULT in of_round else best
    results: dict[str, Any] = {}
    for each in contestants:
        results[each.name] = {
            "cpu_s_of_a_round": summary(of_round[each.name]),
            "tokens_per_cpu_s": summary([1 / each for each in of_token[each.name]]),
            "round_over_default": ratio_interval(of_round[default], of_round[each.name]),
            "round_over_best": ratio_interval(of_round[best], of_round[each.name]),
            "token_over_default": ratio_interval(of_token[default], of_token[each.name]),
            "token_over_best": ratio_interval(of_token[best], of_token[each.name]),
            **{word: each.ask(word) for word in ("rewards", "precision", "memory")},
            "start_and_warm_up": each.start,
        }
        each.quit()
        print(each.name, json.dumps(results[each.name]))
    values = {
        "model": MODEL,
        "rounds": options.rounds,
        "answers_of_a_round": options.groups * GROUP,
        "most_tokens": options.tokens,
        "best_of_trl": best,
        "not_run": [name for name in NAMES if name not in options.only],
        "loads": loads,
        "results": results,
    }
    print(write_record(of_this_kind_of_cpu("rewards_cpu"), values))


def main() -> None:
    """Compare, or be one of those that are compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker = _Worker(options.worker, Path(options.folder), options.warm_up)
        _ours(worker) if worker.name in OURS else _trl(worker, options)
        return
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _compare(Path(folder), options)
    print(f"{time.monotonic() - started_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
