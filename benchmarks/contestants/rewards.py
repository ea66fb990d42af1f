"""A round of GRPO, answers drawn, verified and learned in one update, with LoRA on
SmolLM2-135M-Instruct: brimful beside TRL's GRPOTrainer with transformers' generation.

The same weights, questions on units, verifier, group size, longest answer, temperature and loss.
TRL's bf16 and its recomputation are its defaults; the weights are in fp32 where it loads them
itself. Answers are drawn at random on each side, so rounds differ in length. A right answer of this
model is rare, and brimful takes no pass over groups of equal rewards: what is rewarded here is a
digit that about half of the answers hold, so that both sides learn from every group.

In fp32 loss and gradients are TRL's for the same answers (`tests/training/methods/test_grpo.py`).
Every side's mean reward over its rounds is recorded: in bf16 rewards can be compared, not equal.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from contestants.process import and_memory_kept, setting
from contestants.rounds import Comparison, Found
from contestants.worker import Worker, adapters, train_with_brimful, tune_with_trl

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
training: {steps: 5000}
data: {path: ROWS, validation: 0.05}
optimizer: {learning_rate: 1e-4, schedule: constant, warmup: 0, weight_decay: 0.0, beta2: 0.95}
rewards: {verifiers: {regex: 1.0}, samples_per_prompt: 8, max_new_tokens: TOKENS}
evaluation: {base: never, every: 5000}
plan: {device: cpu, threads: 1}
"""
FREELY: dict[str, Any] = {"gradient_checkpointing": False}
DEFAULT = "TRL, default"
TRL: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "TRL, no recomputation": FREELY,
    "TRL, no recomputation, weights in bf16": FREELY | {"dtype": "bfloat16"},
    "TRL, no recomputation, fp32": FREELY | {"bf16": False},
}
OURS = {"brimful": [], "brimful, fp32": ["plan.precision=fp32"]}


class Rewards(Comparison):
    """Of rounds; a round is a step."""

    needs = ("trl", "trl")
    record, unit, rounds, steps, warm_up = "rewards_cpu", "rounds", 5, 1, 1
    names = (DEFAULT, *and_memory_kept(list(TRL)[1:]), *OURS)
    options = (("groups", 4, "of a round, 8 answers each"), ("tokens", 48, "of an answer at most"))

    def prepare(self, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
        """Write base, recipe, questions on units, and these as both sides' templates write them."""
        from brimful.kinds.run_data import gather
        from brimful.model.obtained import folder_of_model
        from brimful.recipe import load

        (folder / "base").symlink_to(folder_of_model(MODEL).resolve())
        text = RECIPE.replace("BASE", str(folder / "base")).replace("TOKENS", str(options.tokens))
        text = text.replace("ROWS", str(folder / "asked.jsonl"))
        recipe = folder / "recipe.yaml"
        recipe.write_text(text.replace("ANSWERS", str(options.groups * GROUP)))
        units = ["data.path=builtin:unit-conversion-small", "data.max_documents=200"]
        source, number = str(folder / "base"), "rewards.verifiers={number: 1.0}"
        data: Any = gather(load(str(recipe), [*units, number]), source)
        questions = data.questions["train"]
        asked = [{"prompt": each.text, "completion": PATTERN} for each in questions]
        (folder / "asked.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in asked))
        rows = [
            {"prompt": data.tokenizer.decode(each.prompt_ids), "answer": PATTERN}
            for each in questions
        ]
        (folder / "rows.json").write_text(json.dumps(rows))
        return {"questions": len(rows)}

    def work(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        worker = _Worker(name, folder, options.warm_up)
        if name in OURS:
            _train_with_brimful(worker)
        else:
            _train_with_trl(worker, options)

    def judge(self, name: str, found: Found) -> dict[str, Any]:
        return {"valid": bool(found.told[name]["rewards"])}

    def values(self, found: Found, results: Any, options: argparse.Namespace) -> dict[str, Any]:
        answers = options.groups * GROUP
        return {"model": MODEL, "answers_of_a_round": answers, "most_tokens": options.tokens}


class _Worker(Worker):
    """Keeps how many tokens were drawn in each round, and their mean reward."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tokens: list[int] = []
        self.rewards: list[float] = []

    def tell(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "rewards": self.rewards}


def _train_with_brimful(worker: _Worker) -> None:
    from brimful.kinds.rewarded import RewardedRunData

    real = RewardedRunData.draw

    def draw(data: Any, first_sample: int, is_stopped: Any) -> Any:
        found = real(data, first_sample, is_stopped)
        worker.tokens.append(sum(len(each.token_ids) for each in data._round.answers))
        worker.rewards.append(data._round.found["watched"]["reward"])
        return found

    RewardedRunData.draw = draw  # type: ignore[assignment]
    train_with_brimful(worker, OURS[worker.name])


def _train_with_trl(worker: _Worker, options: argparse.Namespace) -> None:
    import trl

    from brimful.verify.verifier import load_verifier

    verify = load_verifier("regex").verify
    assert verify is not None

    def rewards(completions: list[str], completion_ids: Any, answer: list[str], **_: Any) -> Any:
        worker.tokens.append(sum(map(len, completion_ids)))
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
    rows = json.loads((worker.folder / "rows.json").read_text())
    settings = same | TRL[setting(worker.name)]
    more = {**adapters(), "reward_funcs": rewards}
    tune_with_trl(worker, trl.GRPOTrainer, trl.GRPOConfig, rows, settings, **more)


COMPARISON = Rewards()
