"""Runs on questions, whose answers a published model writes itself and is rewarded for.

Suffixes: A answers of a round, Q questions, G answers to a question.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import PreTrainedModel

from brimful.base.errors import PlanError, RunFolderError
from brimful.base.text import plural
from brimful.data.batches import MicroBatch
from brimful.data.bins import spread_evenly
from brimful.data.example_batches import Layout, layout_of
from brimful.data.examples import PreparedExamples
from brimful.data.sequences import Shuffle
from brimful.evaluation.likelihood import Likelihood, of_samples
from brimful.generation.backends.vllm_engine import vllm_for
from brimful.kinds.examples import ExampleRunData
from brimful.kinds.rewarded_questions import read_rewarded
from brimful.kinds.run_data import ScoringOptions
from brimful.planning.plan import Plan
from brimful.planning.rounds import computed_share
from brimful.planning.step import StepSpec
from brimful.planning.vllm_share import ONE_DEVICE
from brimful.planning.writing import ANSWER_SHARE
from brimful.recipe.rewards import compared_rounds, draws_by_vllm, rewards_of
from brimful.selection.answer_journal import ANSWERS_FILE, AnswerJournal, DrawnAnswer
from brimful.selection.answer_limits import agreement, odd_answers, passed
from brimful.selection.answer_rounds import (
    AnswerBatch,
    Round,
    log_probs_of,
    watched_of,
    without_overlong,
)
from brimful.selection.rewarded import (
    AnswerWriter,
    Ask,
    Judges,
    fingerprint_of_weights,
)
from brimful.training.methods.grpo import (
    ADVANTAGE,
    OLD,
    SAMPLED,
    SHARE,
    SLOT,
    WATCHED,
)


class RewardedRunData(ExampleRunData):
    """Questions whose answers are rewarded; what was read as their answers is what answers are held
    against.

    Attributes:
        questions: Questions that are asked, by split.
    """

    _writer: AnswerWriter | None = None
    _round: Round | None = None
    _compared = 0

    def _notes(self, data: PreparedExamples) -> list[str]:
        self.rules = rewards_of(self.recipe)
        self.judges = Judges(self.rules)
        self.questions, notes = read_rewarded(self.recipe, data, self.judges)
        return notes

    @classmethod
    def blank(cls, step: StepSpec, samples: int) -> MicroBatch:
        micro = super().blank(step, samples)
        rules, count = step.options["rewards"], micro.inputs_BT.numel()
        is_kept = {
            ADVANTAGE: True,
            SHARE: True,
            OLD: rules["old"],
            SAMPLED: rules["weight_cap"] is not None,
        }
        kept = {name: torch.ones(count) for name, is_there in is_kept.items() if is_there}
        kept |= {name: torch.ones(len(micro.inputs_BT)) for name in WATCHED}
        kept[SLOT] = torch.zeros(count, dtype=torch.int64)
        return replace(micro, scored_N=torch.arange(count), kept=kept)

    @property
    def mean_positions(self) -> float:
        """Mean positions of a sample, with answers as long as they are expected to be."""
        prompt = np.mean([len(each.prompt_ids) for each in self.questions["train"]])
        return float(prompt + ANSWER_SHARE[1] * self.rules.max_new_tokens)

    def computed_share(self, device_kind: str) -> float:
        return computed_share(self.recipe, self.mean_positions, device_kind)

    @property
    def scored(self) -> float:
        return ANSWER_SHARE[1] * self.rules.max_new_tokens / self.mean_positions

    @property
    def train_rows(self) -> int:
        answers = len(self.questions["train"]) * self.rules.samples_per_prompt * self.rules.passes
        return -(-round(answers * self.mean_positions) // self.recipe.sequence_length)

    @property
    def validation_rows(self) -> int:
        count = len(self.questions["validation"])
        return -(-round(count * self.mean_positions) // self.recipe.sequence_length)

    @property
    def validation_count(self) -> int:
        return len(self.questions["validation"])

    def longest_pass_of(self, device_kind: str, devices: int = 1) -> None:
        """None: how long answers become is not known."""
        return

    @property
    def objective(self) -> Mapping[str, Any]:
        limits = {"stop", "patience", "least_entropy"}
        limits |= {f"most_{each}" for each in ("cut", "equal", "empty", "failed", "gamed")}
        since: dict[str, Any] = {"overlong": None, "negative_weight": 1.0, "arguments": {}}
        limits |= {name for name, usual in since.items() if getattr(self.rules, name) == usual}
        rewards = self.rules.model_dump(mode="json", exclude=limits)
        own = {f"own {name}": digest for name, digest in self.judges.digests.items()}
        return {
            **super().objective,
            "rewards": rewards,
            "answers_of_step": self.recipe.effective_batch,
            **own,
        }

    def keep_reference(
        self,
        model: PreTrainedModel,
        folder: Path,
        identity: Mapping[str, str],
        options: ScoringOptions,
    ) -> list[dict[str, Any]]:
        """Nothing is computed: the model is what draws answers from here on."""
        if draws_by_vllm(self.recipe) and not options.world.is_alone:
            raise PlanError(ONE_DEVICE)
        if options.plan.lies_in_parts and not options.world.is_alone:
            raise PlanError(
                "answers are drawn by the whole model, which is not there where it lies in parts on"
                " several devices: set plan.spread=replicated."
            )
        self._writer = self._writer_of(model, options.plan)
        if draws_by_vllm(self.recipe):
            self._writer = self._writer.with_vllm(self.recipe, options.plan, self.source)
        self._plan, self._world = options.plan, options.world
        self._journal = AnswerJournal(folder)
        return []

    def build(self, plan: Plan, device: torch.device) -> PreTrainedModel:
        if draws_by_vllm(self.recipe):
            vllm_for(device)  # before anything is loaded
        return super().build(plan, device)

    def finish(self, run_folder: Path, plan: Plan, console: Console) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        super().finish(run_folder, plan, console)

    def _writer_of(self, model: PreTrainedModel, plan: Plan) -> AnswerWriter:
        rows = self.recipe.plan.sampling_rows
        return AnswerWriter(
            model,
            self.tokenizer,
            self.template.stop_ids,
            self.rules.max_new_tokens,
            None if rows == "auto" else rows,
            plan.precision,
        )

    def draw(self, first_sample: int, is_stopped: Callable[[], bool]) -> Mapping[str, Any] | None:
        number, step = divmod(first_sample // self.recipe.effective_batch, self.rules.updates)
        if self._round is not None and self._round.number == number:
            return {}
        told: list[str] = []
        asks = self._asks(number)
        drawn = self._world.first(lambda: self._drawn(number, step, asks, is_stopped, told))
        if drawn is None:
            return None
        self._round = Round.of(self.rules, number, asks, *drawn)
        found = self._round.found
        return {
            "messages": told,
            "round": number,
            **found["watched"],
            **{f"{name}_s": value for name, value in found["seconds"].items()},
        }

    def _asks(self, number: int) -> list[Ask]:
        """Return what is asked in a round: group after group."""
        rules, questions = self.rules, self.questions["train"]
        count = rules.batches * self.recipe.effective_batch // rules.samples_per_prompt
        chosen = Shuffle(len(questions), self.recipe.seed).numbers(number * count, count)
        seeds = np.random.SeedSequence((self.recipe.seed, number)).generate_state(
            count * rules.samples_per_prompt, np.uint64
        )
        return [
            Ask(questions[question], place, seed)
            for place, (question, seed) in enumerate(
                zip(chosen.repeat(rules.samples_per_prompt).tolist(), seeds.tolist(), strict=True)
            )
        ]

    def _drawn(
        self,
        number: int,
        step: int,
        asks: Sequence[Ask],
        is_stopped: Callable[[], bool],
        told: list[str],
    ) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
        """Return the answers of a round and what was found of them: from the journal of answers
        where they are there, else drawn now; None: stopped meanwhile.
        """
        journal, found = self._journal, self._journal.whole(number)
        weights = self._weights if step == 0 else ""
        is_drawn = step == 0 and (found is None or found["weights"] != weights)
        if is_drawn:
            with journal.writing():
                found = self._draw_round(number, weights, asks, is_stopped, told)
            if found is None:
                return None
        if found is None:
            raise RunFolderError(
                f"{ANSWERS_FILE} does not hold the answers of round {number + 1}, in whose midst"
                " this run stopped. Put the file back, or start a new run with run.name=NAME."
            )
        drawn = journal.drawn(number, found["weights"])
        kept = dict(found) if is_drawn else {**found, "seconds": {}}  # counted when they passed
        return [asdict(drawn[ask.key]) for ask in asks], kept

    @property
    def _weights(self) -> str:
        """What identifies the weights as they are now."""
        assert self._writer is not None  # noqa: S101 - after keep_reference
        parameters = self._writer.model.parameters()
        return fingerprint_of_weights(each for each in parameters if each.requires_grad)

    def _draw_round(
        self,
        number: int,
        weights: str,
        asks: Sequence[Ask],
        is_stopped: Callable[[], bool],
        told: list[str],
    ) -> dict[str, Any] | None:
        assert self._writer is not None  # noqa: S101 - after keep_reference
        started_s, journal, rules = time.perf_counter(), self._journal, self.rules
        there = journal.drawn(number, weights)
        missing = [ask for ask in asks if ask.key not in there]

        def take(answer: DrawnAnswer) -> None:
            journal.append(number, weights, answer)

        if missing and not self._writer.write(missing, rules.temperature, take, is_stopped):
            return None
        drawn = [journal.drawn(number, weights)[ask.key] for ask in asks]
        sampled_s = time.perf_counter() - started_s
        pairs = [(ask.question, answer.text) for ask, answer in zip(asks, drawn, strict=True)]
        rewards = without_overlong(rules, self.judges.rewards(pairs), drawn)
        told += odd_answers(number, self.judges.odd, len(pairs))
        judged_s = time.perf_counter() - started_s - sampled_s
        found: dict[str, Any] = {"weights": weights, "rewards": rewards}
        needs_old = self.recipe.loss_options["rewards"]["old"]
        if needs_old:
            found["old"] = self._scored(asks, drawn, rules.temperature)
        if self._compared < compared_rounds(self.recipe):
            at_1 = found["old"] if needs_old and rules.temperature == 1 else None
            at_1 = at_1 or self._scored(asks, drawn, 1.0)
            cause = " (vLLM computes with operators of its own)" * draws_by_vllm(self.recipe)
            told.append(agreement(drawn, at_1, cause))
            self._compared += 1
        scored_s = time.perf_counter() - started_s - sampled_s - judged_s
        found["watched"] = watched_of(rules.samples_per_prompt, rewards, drawn, self.judges.odd)
        found["seconds"] = {"sampling": sampled_s, "verifying": judged_s, "scoring": scored_s}
        before = [journal.found(each) for each in range(max(0, number - rules.patience), number)]
        watched = [each["watched"] for each in (*before, found) if each]
        told += passed(rules, watched)
        journal.complete(number, found)
        return found

    def _scored(
        self, asks: Sequence[Ask], drawn: Sequence[DrawnAnswer], temperature: float
    ) -> list[list[float]]:
        """Return the log-probability of each token of each answer by the trainer's passes."""
        assert self._writer is not None  # noqa: S101 - after keep_reference
        return log_probs_of(self._writer.model, self._plan, asks, drawn, temperature)

    def batch(self, first_sample: int, count: int) -> AnswerBatch:
        """Return answers of the round that was drawn last: those of one update, or a rank's part of
        them.
        """
        rules, drawn = self.rules, self._round
        assert drawn is not None  # noqa: S101 - the loop draws before each batch
        size = self.recipe.effective_batch
        update, start = divmod(first_sample, size)
        turn, place = divmod(update % rules.updates, rules.batches)
        order = np.arange(len(drawn.answers))
        if rules.batches > 1:
            order = Shuffle(len(order), self.recipe.seed + drawn.number).numbers(
                turn * len(order), len(order)
            )
        numbers = order[place * size : (place + 1) * size]
        counting, ranks = numbers[drawn.counts_A[numbers]], size // count
        if len(counting) < ranks:  # each rank takes part in a batch without signal, too
            counting = numbers
        teaches = drawn.teaches_A[counting]
        learned = counting[np.argsort(~teaches, kind="stable")][: max(ranks, teaches.sum())]
        part = len(learned) / size
        own = learned[round(start * part) : round((start + count) * part)]
        divisor = len(counting)
        if rules.average == "token":
            divisor = sum(len(drawn.answers[each].token_ids) for each in counting)
        return AnswerBatch.of(
            drawn,
            own,
            divisor * len(own) / len(learned),
            rules,
            self.recipe.sequence_length,
            self._layout,
        )

    @property
    def _layout(self) -> Layout:
        return layout_of(self._plan.packing, self._plan.device["kind"])

    def sequences(self, plan: Plan) -> "RewardedRunData":
        return self

    def score(self, model: PreTrainedModel, split: str, options: ScoringOptions) -> Likelihood:
        """Return how much of the reward the likeliest answers to at most `max_sequences` questions
        miss, spread evenly.
        """
        started_s, questions = time.perf_counter(), self.questions[split]
        chosen = spread_evenly(len(questions), options.max_sequences).tolist()
        asks = [Ask(questions[each], place, 0) for place, each in enumerate(chosen)]
        drawn: dict[tuple[str, int], DrawnAnswer] = {}

        def take(answer: DrawnAnswer) -> None:
            drawn[answer.question, answer.number] = answer
            if options.progress is not None:
                options.progress("answers", len(drawn), len(asks))

        self._writer_of(model, options.plan).write(asks, 0.0, take)
        answers = [drawn[ask.key] for ask in asks]
        pairs = [(ask.question, answer.text) for ask, answer in zip(asks, answers, strict=True)]
        rewards = torch.tensor(self.judges.rewards(pairs))
        tokens = np.mean([len(answer.token_ids) for answer in answers])
        missed = 1 - rewards / self.judges.most
        named = {"reward": float(rewards.mean()), "tokens": float(tokens)}
        seconds, context = time.perf_counter() - started_s, self.recipe.sequence_length
        return of_samples(
            missed,
            (missed == 0).float(),
            named,
            seconds=seconds,
            context=context,
            batch_sizes=(options.rows,),
        )

    def describe(self) -> list[str]:
        rules, size = self.rules, self.recipe.effective_batch
        counts = ", ".join(
            f"{name} {plural(len(each), 'question')}" for name, each in self.questions.items()
        )
        answers = rules.batches * size
        groups = answers // rules.samples_per_prompt
        return [
            f"questions: {counts}; prompts of at most"
            f" {max(len(each.prompt_ids) for each in self.questions['train']):,} tokens, answers of"
            f" at most {rules.max_new_tokens:,}",
            f"a round: {plural(groups, 'question')} x {rules.samples_per_prompt} answers, rewarded"
            f" by {', '.join(rules.verifiers)}, learned in {plural(rules.updates, 'update')} of"
            f" {size}; loss {rules.loss}",
        ]


RUN_DATA = RewardedRunData
