"""Answers of a model to questions, drawn by its present weights and rewarded by verifiers."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
import xxhash
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.errors import RequestError
from brimful.base.types import Json
from brimful.generation.backends.choice import backend_for
from brimful.generation.backends.vllm_engine import VllmEngine
from brimful.generation.engine import longest_first
from brimful.generation.requests import Backend, Request, StopRules
from brimful.generation.sampler import SamplingSettings
from brimful.generation.text import text_behind
from brimful.model.packed_attention import unpacked_attention
from brimful.planning.plan import Plan
from brimful.planning.vllm_share import vllm_share
from brimful.recipe import Recipe
from brimful.recipe.rewards import RewardsRecipe, environment_of, is_own
from brimful.selection.answer_journal import DrawnAnswer
from brimful.training.precision import Precision
from brimful.verify.environment import environment_verifier
from brimful.verify.judge import judge
from brimful.verify.own import own_verifier
from brimful.verify.sandbox import Sandbox
from brimful.verify.verifier import Verdict, Verifier, load_verifier


@dataclass(frozen=True)
class RewardedQuestion:
    """A question whose answers are rewarded.

    Attributes:
        id: Hash of what is asked and what an answer is held against.
        text: What is asked, to read.
        prompt_ids: What the model continues.
        reference: What an answer is held against.
        row: All columns, for verifiers that run tests.
        where: Place of the question, for errors.
    """

    id: str
    text: str
    prompt_ids: tuple[int, ...]
    reference: str
    row: Json
    where: str


@dataclass(frozen=True)
class Ask:
    """One answer that is wanted.

    Attributes:
        number: Number of the answer.
        seed: Seed of its tokens.
    """

    question: RewardedQuestion
    number: int
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        return self.question.id, self.number


@dataclass(frozen=True)
class AnswerWriter:
    """A model in memory that answers.

    Attributes:
        stop_ids: Tokens that end an answer, and belong to it.
        most_rows: Answers at once; None: as many as memory holds and are worth it.
        precision: Precision of the plan.
        vllm: What writes in place of brimful's engine.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    max_new_tokens: int
    most_rows: int | None
    precision: str
    vllm: VllmEngine | None = None

    def write(
        self,
        asks: Sequence[Ask],
        temperature: float,
        take: Callable[[DrawnAnswer], None],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Hand each answer over when it is finished; return whether all came before the stop.

        Raises:
            RequestError: memory does not hold one answer, or logits are not finite.
        """
        requests = [
            Request(place, ask.question.prompt_ids, ask.seed, self.max_new_tokens)
            for place, ask in enumerate(asks)
        ]
        with unpacked_attention(self.model):
            stream = self._backend.stream(
                longest_first(requests),
                SamplingSettings(temperature, None, 1.0),
                StopRules(self.stop_ids, keeps_token=True),
                logprobs=True,
            )
            for request, generation in stream:
                ids, ask = generation.token_ids, asks[request.key]
                said = ids[:-1] if generation.finish == "end_of_text" else ids
                text = text_behind(self.tokenizer, request.prompt_ids, said)
                take(DrawnAnswer(*ask.key, ids, generation.logprobs or [], generation.finish, text))
                if is_stopped():
                    return False
        return True

    def with_vllm(self, recipe: Recipe, plan: Plan, source: str) -> Self:
        """Return it with vLLM, which gets the share of the device that the plan leaves to it.

        Args:
            recipe: The recipe of the run.
            plan: Its plan.
            source: Hub id or folder of the weights that are trained, or of the base of adapters.
        """
        device, config = self.model.device, self.model.config.get_text_config().to_dict()
        memory_bytes = int(plan.device["memory_bytes"])
        share = vllm_share(recipe, config, plan.precision, device.type, memory_bytes)
        dtype = Precision(plan.precision).autocast_dtype or torch.float32
        rank = 0 if recipe.adapter is None else recipe.adapter.rank
        engine = VllmEngine(source, device=device, dtype=dtype, share=share, rank=rank)
        return replace(self, vllm=engine)

    def close(self) -> None:
        """Give back what vLLM holds."""
        if self.vllm is not None:
            self.vllm.close()

    @property
    def _backend(self) -> Backend:
        """What writes, with the present weights."""
        if self.vllm is not None:
            return self.vllm.with_weights_of(self.model)
        backend, _ = backend_for(
            "brimful",
            self.model,
            self.tokenizer,
            source="",
            most_rows=self.most_rows,
            precision=self.precision,
        )
        return backend


class Judges:
    """Verifiers whose rewards are added.

    Attributes:
        digests: What identifies each file of one's own, and the source of each environment.
        odd: Of the answers that were judged last, "failed": why files of one's own gave no number,
            so that there is nothing from them; "gamed": how programs tried to pass without being
            right.

    Args:
        rules: Names them, each with the reward of a right answer.

    Raises:
        RequestError: what one needs is missing.
    """

    def __init__(self, rules: RewardsRecipe) -> None:
        self._verifiers, self._rewards = dict[str, Verifier](), rules.verifiers
        self.digests: dict[str, str] = {}
        for name in rules.verifiers:
            if environment := environment_of(name):
                found = environment_verifier(environment, rules.arguments)
                self._verifiers[name], self.digests[name] = found
            elif is_own(name):
                self._verifiers[name] = own_verifier(Path(name))
                self.digests[name] = xxhash.xxh3_64(Path(name).read_bytes()).hexdigest()
            else:
                self._verifiers[name] = load_verifier(name)
        self.odd: dict[str, list[str]] = {}

    @property
    def names(self) -> list[str]:
        """Names of the verifiers."""
        return [*self._verifiers]

    @property
    def most(self) -> float:
        """The reward of an answer that every verifier finds right."""
        return sum(max(0.0, each) for each in self._rewards.values()) or 1.0

    def check(self, question: RewardedQuestion) -> None:
        """Raise ValueError or DataError if no answer could be held against its reference."""
        for verifier in self._verifiers.values():
            verifier.check(_reference(verifier, question))

    def rewards(self, answers: Sequence[tuple[RewardedQuestion, str]]) -> list[float]:
        """Return the reward of each answer.

        Raises:
            RequestError: the machine is too busy to judge programs, or nothing isolates them here.
        """
        rewards, failed, gamed = [0.0] * len(answers), list[str](), list[str]()
        self.odd = {"failed": failed, "gamed": gamed}
        for name, verifier in self._verifiers.items():
            with ExitStack() as stack:
                sandbox = stack.enter_context(Sandbox()) if verifier.needs_sandbox else None
                verdicts = _verdicts(verifier, answers, sandbox)
            gamed += [f"{name}: {verdict.games}" for verdict in verdicts if verdict.games]
            for place, verdict in enumerate(verdicts):
                worth = float(verdict.is_correct) if verdict.worth is None else verdict.worth
                worth *= self._rewards[name]
                if math.isfinite(worth):
                    rewards[place] += worth
                else:
                    failed.append(f"{name}: {verdict.detail or worth}")
        return rewards


def _reference(verifier: Verifier, question: RewardedQuestion) -> Any:
    if verifier.verdict is not None:
        return {"reference": question.reference, **question.row}
    if verifier.judge_all is not None:
        return {**question.row, "reference": question.reference, "asked": question.text}
    return question.row if verifier.needs_sandbox else question.reference


def _verdicts(
    verifier: Verifier, answers: Sequence[tuple[RewardedQuestion, str]], sandbox: Sandbox | None
) -> list[Verdict]:
    texts = [text.strip() for _, text in answers]
    references = [_reference(verifier, question) for question, _ in answers]
    found = judge(verifier, texts, references, sandbox)
    unknown = [place for place, verdict in enumerate(found) if verdict is None]
    again = judge(
        verifier, [texts[each] for each in unknown], [references[each] for each in unknown], sandbox
    )
    for place, verdict in zip(unknown, again, strict=True):
        found[place] = verdict
    known = [verdict for verdict in found if verdict is not None]
    if len(known) < len(found):
        raise RequestError(
            f"the machine is too busy to judge {len(found) - len(known)} programs. The answers are"
            " kept: run the same command again later."
        )
    return known


def fingerprint_of_weights(tensors: Iterable[torch.Tensor]) -> str:
    """Return what identifies the weights that drew an answer: a hash of all that train."""
    found = xxhash.xxh3_64()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()
