"""Rounds of answers: what was drawn and rewarded, as optimizer steps learn from it.

Suffixes: A answers of a round, Q questions, G answers to a question.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from brimful.data.batches import MicroBatch
from brimful.data.bins import offsets_of
from brimful.data.example_batches import ExampleBatch, Layout, layout_of, pairs_of
from brimful.data.examples import ExampleSplit
from brimful.planning.plan import Plan
from brimful.recipe.rewards import RewardsRecipe
from brimful.selection.answer_journal import DrawnAnswer
from brimful.selection.rewarded import Ask
from brimful.training.method import Network, hidden_states_of, scored_losses
from brimful.training.methods.grpo import (
    ADVANTAGE,
    OLD,
    SAMPLED,
    SHARE,
    SLOT,
    WATCHED,
    advantages_of,
)
from brimful.training.precision import Precision

NUMBER = "number"
"""Name in `MicroBatch.kept`: of each answer, its number in the batch."""


@dataclass(frozen=True)
class AnswerBatch(ExampleBatch):
    """The answers of one optimizer step.

    Attributes:
        of_tokens: Values of each token of each answer, by name, as the method's loss reads them.
        divisor: What the summed loss is divided by.
        most_tokens: Most tokens of an answer.
    """

    of_tokens: Mapping[str, Sequence[NDArray[np.float32]]] = field(default_factory=dict)
    divisor: float = 1.0
    most_tokens: int = 1

    @classmethod
    def of(
        cls,
        drawn: "Round",
        numbers: NDArray[np.int64],
        divisor: float,
        rules: RewardsRecipe,
        sequence_length: int,
        layout: Layout,
    ) -> Self:
        """Return answers of a round as a step learns from them.

        Args:
            numbers: Numbers of the answers.
            divisor: What the loss is divided by.
            rules: Resolved.
        """
        values: dict[str, list[NDArray[np.float32]]] = {}
        for number in numbers.tolist():
            answer = drawn.answers[number]
            length = len(answer.token_ids)
            shares = {"answer": 1 / length, "token": 1.0, "constant": 1 / rules.max_new_tokens}
            own: dict[str, Any] = {
                ADVANTAGE: np.full(length, drawn.advantages_A[number]),
                SHARE: np.full(length, shares[str(rules.average)]),
            }
            if "old" in drawn.found:
                own[OLD] = drawn.found["old"][number]
            if rules.weight_cap is not None:
                own[SAMPLED] = answer.log_probs
            for name, each in own.items():
                values.setdefault(name, []).append(np.asarray(each, np.float32))
        return cls(
            pairs_of(drawn.split, numbers),
            sequence_length,
            layout,
            kept={NUMBER: np.arange(len(numbers), dtype=np.float32)}
            | {
                name: np.full(len(numbers), drawn.found["watched"][name], np.float32)
                for name in WATCHED
            },
            of_tokens=values,
            divisor=divisor,
            most_tokens=rules.max_new_tokens,
        )

    @property
    def loss_divisor(self) -> float:
        return self.divisor

    def micro_batches(self, sizes: tuple[int, ...]) -> Iterator[MicroBatch]:
        for micro in super().micro_batches(sizes):
            kept = dict(micro.kept)
            numbers = kept.pop(NUMBER).long().tolist()
            for name, values in self.of_tokens.items():
                kept[name] = torch.from_numpy(np.concatenate([values[each] for each in numbers]))
            lengths = [len(self.of_tokens[SHARE][each]) for each in numbers]
            slots = [row * self.most_tokens + np.arange(n) for row, n in enumerate(lengths)]
            kept[SLOT] = torch.from_numpy(np.concatenate(slots))
            yield replace(micro, kept=kept)


@dataclass(frozen=True)
class Round:
    """Answers of one round, rewarded.

    Attributes:
        number: Number of the round, from 0.
        split: Questions with their answers, as they are learned.
        answers: Answers in the order of the split.
        found: What is kept of it in the journal of answers: rewards, log-probabilities by the
            trainer, and what rounds are watched by.
        advantages_A: How much better each answer is than the others to its question.
        counts_A: Whether the loss is averaged over it.
        teaches_A: Whether it moves the weights: it is then one of those that count, and better or
            worse than others to its question, or its distance is part of the loss.
    """

    number: int
    split: ExampleSplit
    answers: Sequence[DrawnAnswer]
    found: Mapping[str, Any]
    advantages_A: NDArray[np.float32]
    counts_A: NDArray[np.bool_]
    teaches_A: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        rules: RewardsRecipe,
        number: int,
        asks: Sequence[Ask],
        answers: Sequence[Mapping[str, Any]],
        found: Mapping[str, Any],
    ) -> "Round":
        """Return a round from what is kept of it: answers as JSON, and what was found of them."""
        drawn = [DrawnAnswer(**each) for each in answers]
        rewards_QG = np.reshape(found["rewards"], (-1, rules.samples_per_prompt)).astype(np.float64)
        differs_A = (np.ptp(rewards_QG, axis=1) > 0).repeat(rules.samples_per_prompt)
        counts_A = differs_A | (not rules.leave_out_equal)
        advantages_A = advantages_of(rewards_QG, rules.scale, rules.negative_weight).ravel()
        return cls(
            number,
            split_of(asks, drawn),
            drawn,
            found,
            advantages_A,
            counts_A,
            counts_A if rules.kl else differs_A & (advantages_A != 0),
        )


def log_probs_of(
    model: PreTrainedModel,
    plan: Plan,
    asks: Sequence[Ask],
    drawn: Sequence[DrawnAnswer],
    temperature: float,
) -> list[list[float]]:
    """Return the log-probability of each token of each answer, in nats, by the trainer's passes.

    Args:
        model: The model in training.
        plan: Says how its passes are made.
        asks: What was asked.
        drawn: The answers.
        temperature: The logits are divided by it.
    """
    network = Network(model, hidden_states_of(model), plan.loss_chunk)
    numbers, device = np.arange(len(drawn)), model.device
    batch = ExampleBatch(
        pairs_of(split_of(asks, drawn), numbers),
        plan.sequence_length,
        layout_of(plan.packing, plan.device["kind"]),
        kept={NUMBER: numbers.astype(np.float32)},
    )
    scored: dict[int, list[float]] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for micro in batch.micro_batches(plan.micro_batches):
            order = micro.kept[NUMBER].long().tolist()
            with Precision(plan.precision).autocast(device):
                moved = replace(micro, kept={}).to(device)
                values_N = -scored_losses(network, moved, network.hidden_states(moved), temperature)
            lengths = [len(drawn[each].token_ids) for each in order]
            for each, values in zip(order, values_N.cpu().split(lengths), strict=True):
                scored[each] = values.tolist()
    model.train(was_training)
    return [scored[number] for number in range(len(drawn))]


def split_of(asks: Sequence[Ask], drawn: Sequence[DrawnAnswer]) -> ExampleSplit:
    """Return questions with their answers as examples, of which the answers are learned."""
    prompts = [ask.question.prompt_ids for ask in asks]
    tokens = [[*ids, *answer.token_ids] for ids, answer in zip(prompts, drawn, strict=True)]
    is_target = [
        np.arange(len(each)) >= len(ids) for ids, each in zip(prompts, tokens, strict=True)
    ]
    offsets = offsets_of([*map(len, tokens)])
    return ExampleSplit(
        np.concatenate(tokens).astype(np.uint32), np.concatenate(is_target), offsets, 0, ()
    )


def without_overlong(
    rules: RewardsRecipe, rewards: Sequence[float], drawn: Sequence[DrawnAnswer]
) -> list[float]:
    """Return the rewards, lower for answers that come near the most tokens (Yu et al. 2025,
    equation 13).
    """
    if rules.overlong is None:
        return [*rewards]
    room = rules.max_new_tokens - rules.overlong
    over = [max(0, len(answer.token_ids) - room) / rules.overlong for answer in drawn]
    return [reward - each for reward, each in zip(rewards, over, strict=True)]


def watched_of(
    group: int,
    rewards: Sequence[float],
    drawn: Sequence[DrawnAnswer],
    odd: Mapping[str, Sequence[str]],
) -> dict[str, float]:
    """Return the means that a round is watched by.

    Args:
        group: Answers to a question.
        odd: Why further answers are watched (`Judges.odd`).
    """
    rewards_QG = np.reshape(rewards, (-1, group))
    nats = [-each for answer in drawn for each in answer.log_probs]
    said = [answer.text.strip() for answer in drawn]
    return {
        "reward": float(rewards_QG.mean()),
        "tokens": float(np.mean([len(answer.token_ids) for answer in drawn])),
        "cut": float(np.mean([answer.finish != "end_of_text" for answer in drawn])),
        "equal": float(np.mean(np.ptp(rewards_QG, axis=1) == 0)),
        "empty": float(np.mean([not text for text in said])),
        "entropy": float(np.mean(nats)),
        **{name: len(each) / len(drawn) for name, each in odd.items()},
    }
