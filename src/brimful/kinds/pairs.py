"""Runs on pairs of a chosen and a rejected answer to one prompt, between which a published model
learns to tell.

The examples of a split are the answers, those of pair p being 2p (chosen) and 2p + 1 (rejected).
Suffixes: P pairs, A = 2P answers of a split or of a batch.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from brimful.base.arrays import Floats32, Ints
from brimful.base.errors import PlanError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically
from brimful.base.text import plural
from brimful.base.types import Json, JsonDict, Progress, Texts
from brimful.base.units import format_duration
from brimful.base.warning_codes import all_coded, coded
from brimful.data.batches import MicroBatch
from brimful.data.bins import spread_evenly
from brimful.data.example_batches import (
    ExampleBatch,
    ExampleSequences,
    Layout,
    layout_of,
    shared_positions,
)
from brimful.data.examples import ExampleSplit, PreparedExamples
from brimful.data.formats import Example
from brimful.evaluation.likelihood import Likelihood, of_samples
from brimful.evaluation.task import load_task, task_names
from brimful.kinds.examples import ExampleRunData
from brimful.kinds.finished import TrainedRun
from brimful.kinds.run_data import ScoringOptions
from brimful.planning.plan import Plan
from brimful.planning.step import StepSpec
from brimful.recipe import Recipe
from brimful.recipe.kinds import shares_beginnings
from brimful.recipe.preference import (
    OF_JUDGED,
    WITHOUT_REFERENCE,
    PreferenceRecipe,
    options_of_preference,
    reference_of,
    rules_of,
)
from brimful.runs.files import REFERENCE_FILE
from brimful.training.methods.dpo import (
    CHOSEN_ROWS,
    REFERENCE,
    TOKENS,
    named_values,
    pair_losses,
)
from brimful.verify.verifier import reference_text

ANSWERS = 2
"""Answers of a pair: the chosen one, then the rejected one."""
STRETCH = 1024
"""Answers that the reference scores before they are kept: batches are made among these."""
WRITE_EVERY_S = 20.0
"""Seconds of the reference's work that a kill can cost, beside the stretch in progress."""
MOST_JUDGED = 2000
"""Chosen answers that verifiers read before a run."""
MOST_DISPLACED = 0.5
"""Share of held-out pairs from which likelihood displacement is told."""


@dataclass(frozen=True)
class PairBatch(ExampleBatch):
    """The pairs of one optimizer step."""

    @property
    def loss_divisor(self) -> float:
        """The pairs."""
        return len(self.pairs) // ANSWERS


class PairSequences(ExampleSequences):
    """Endless numbered training pairs of a split.

    Args:
        split: Their answers.
        recipe: Says the length of a sequence, the pairs of a step and their loss.
        layout: Layout, as of `ExampleSequences`.
        reference: Log-probabilities of answers by the reference, by split, with those of train when
            batches are made if they are kept.
    """

    def __init__(
        self,
        split: ExampleSplit,
        recipe: Recipe,
        layout: Layout,
        reference: Mapping[str, Floats32],
    ) -> None:
        super().__init__(split, recipe.sequence_length, layout, recipe.seed, ANSWERS)
        self._rules, self._step = rules_of(recipe).resolved, recipe.effective_batch
        self._reference, self._is_kept = reference, reference_of(recipe) == "kept"
        self._tokens_A = tokens_of(split).astype(np.float32)

    def batch(self, first_sample: int, count: int) -> PairBatch:
        batch = super().batch(first_sample, count)
        answers = self.examples(first_sample, count)
        kept = {TOKENS: self._tokens_A[answers]}
        if self._rules.sft_weight:
            # Of the whole step, of which ranks hold parts.
            step = self.examples(first_sample - first_sample % self._step, self._step)
            chosen_A = np.arange(len(answers)) % ANSWERS == 0
            share = self._step / self._tokens_A[step[::ANSWERS]].sum()
            kept[CHOSEN_ROWS] = np.where(chosen_A, share, 0.0).astype(np.float32)
        if self._is_kept:
            kept[REFERENCE] = self._reference["train"][answers]
        return PairBatch(batch.pairs, batch.sequence_length, batch.layout, ANSWERS, kept)


def tokens_of(split: ExampleSplit) -> Ints:
    """Return the number of tokens of each answer (A,), without the prompt: those whose
    log-probabilities the loss sums.
    """
    return np.add.reduceat(split.is_target_N.astype(np.int64), split.offsets_E[:-1])


class PairRunData(ExampleRunData):
    """Pairs of answers, of which a published model learns to prefer the chosen ones."""

    per_sample: ClassVar[int] = ANSWERS

    def _notes(self, data: PreparedExamples) -> Iterable[str]:
        answers = chain.from_iterable(self.examples.values())
        return all_coded("B223", _found_wrong(self.recipe.evaluation.tasks, answers))

    @classmethod
    def blank(cls, step: StepSpec, samples: int) -> MicroBatch:
        micro = super().blank(step, samples)
        rules, rows = step.options["preference"], len(micro.inputs_BT)
        is_kept = {
            TOKENS: True,
            CHOSEN_ROWS: bool(rules["sft_weight"]),
            REFERENCE: rules["reference"] == "kept",
        }
        kept = {name: torch.ones(rows) for name, is_there in is_kept.items() if is_there}
        return replace(micro, scored_N=torch.arange(micro.inputs_BT.numel()), kept=kept)

    def computed_share(self, device_kind: str) -> float:
        if not shares_beginnings(self.recipe.plan.packing, device_kind):
            return 1.0
        return shared_positions(self.splits["train"], self.per_sample)

    def _sequences(self, packing: str, device_kind: str) -> ExampleSequences:
        layout = layout_of(packing, device_kind)
        return PairSequences(self.splits["train"], self.recipe, layout, self._reference)

    @property
    def compared(self) -> Mapping[str, ExampleSplit]:
        """Answers whose log-probabilities by the reference are needed, by name; those of train only
        where it is kept.
        """
        return self.splits

    @cached_property
    def _reference(self) -> dict[str, Floats32]:
        """Log-probability of each answer (A,) by the model from before training, by split."""
        return {}

    def keep_reference(
        self,
        model: PreTrainedModel,
        folder: Path,
        identity: Texts,
        options: ScoringOptions,
    ) -> list[JsonDict]:
        """Keep the log-probabilities of held-out answers, by which it is seen whether they become
        less likely, and of those to train on if the recipe's reference is kept. What was computed
        before a stop is read back.
        """
        source, world = reference_of(self.recipe), options.world
        if options.plan.lies_in_parts and not world.is_alone:
            if source == "none":
                return []
            raise PlanError(
                "preferences are compared with the model from before training, which is not"
                " computed where it lies in parts on several devices: set plan.spread=replicated,"
                " or method=dpo with preference.loss=simpo, orpo or cpo, which compare with no"
                " other model."
            )
        path, started_s = folder / REFERENCE_FILE, time.monotonic()
        before: JsonDict = world.first(lambda: _kept(path, dict(identity)))
        kept: dict[str, list[float]] = before["log_probs"]

        def write() -> float:
            seconds: float = before["seconds"] + time.monotonic() - started_s
            write_json_atomically(path, {**before, "seconds": seconds}, with_checksum=True)
            return seconds

        needed = {
            name: split
            for name, split in self.compared.items()
            if source == "kept" or not name.startswith("train")
        }
        is_whole = all(
            len(kept.get(name, ())) == each.num_examples for name, each in needed.items()
        )
        for name, split in needed.items():
            log_probs, written_s = kept.setdefault(name, []), time.monotonic()
            while (start := len(log_probs)) < split.num_examples:
                numbers = np.arange(start, min(start + STRETCH, split.num_examples))
                quiet = replace(options, progress=None)
                scored = self._score(model, split.part(numbers), quiet)
                log_probs += (-scored.window_nats_N).tolist()
                if options.progress is not None:
                    options.progress("reference", len(log_probs), split.num_examples)
                if world.is_first and time.monotonic() - written_s > WRITE_EVERY_S:
                    write()
                    written_s = time.monotonic()
        seconds = before["seconds"] if is_whole else world.first(write)
        self._take(kept, torch.promote_types(model.dtype, torch.float32))
        told = f"{sum(map(len, kept.values())):,} answers in {format_duration(seconds)}"
        message = f"the reference scored {told}"
        return [{"kind": "reference", "step": 0, "seconds": seconds, "message": message}]

    def _take(
        self, kept: Mapping[str, Sequence[float]], dtype: torch.dtype = torch.float32
    ) -> None:
        for name, log_probs in kept.items():
            self._reference[name] = torch.tensor(log_probs, dtype=dtype).numpy()

    @property
    def objective(self) -> Json:
        return {**super().objective, **options_of_preference(self.recipe)}

    @property
    def examples(self) -> Mapping[str, Sequence[Example]]:
        """The chosen answers."""
        return {name: split.examples[::ANSWERS] for name, split in self.splits.items()}

    def score(self, model: PreTrainedModel, split: str, options: ScoringOptions) -> Likelihood:
        """Return the loss and the named values of at most `max_sequences` pairs, spread evenly."""
        whole = self.splits[split]
        pairs = spread_evenly(whole.num_examples // ANSWERS, options.max_sequences)
        # All chosen answers, then all rejected ones.
        numbers = np.concatenate([ANSWERS * pairs, ANSWERS * pairs + 1])
        answers, reference_A = whole.part(numbers), self._reference.get(split)
        likelihood = self._score(model, answers, replace(options, max_sequences=None))
        before_A = None if reference_A is None else torch.from_numpy(reference_A[numbers])
        return _likelihood_of(rules_of(self.recipe).resolved, likelihood, before_A)

    def validate(
        self, model: PreTrainedModel, plan: Plan, device: torch.device, *, rows: int
    ) -> JsonDict:
        """Return the record of an evaluation; `objective` where the best model is not chosen by the
        loss, and `messages` where likelihood displacement is seen for the first time.
        """
        record = super().validate(model, plan, device, rows=rows)
        rules = rules_of(self.recipe).resolved
        if rules.metric != "loss":
            record["objective"] = -record["named"][rules.metric]
        if (told := _displacement(record, rules)) and not self._told:
            self._told.append(told)
            record["messages"] = [told]
        return record

    @cached_property
    def _told(self) -> list[str]:
        """Warnings of this session that were given, so that each is given once."""
        return []

    def score_finished(
        self,
        run: TrainedRun,
        folder: Path,
        names: Sequence[str],
        stride: int | None,
        progress: Progress,
    ) -> JsonDict:
        if reference_of(self.recipe) != "none" or (run.folder / REFERENCE_FILE).exists():
            self._take(_kept(run.folder / REFERENCE_FILE)["log_probs"])
        return super().score_finished(run, folder, names, stride, progress)

    def describe(self) -> list[str]:
        lines = [
            f"{name}: {plural(split.num_examples // ANSWERS, 'pair')}; chosen answers have"
            f" {tokens_of(split)[::ANSWERS].mean():.0f} tokens on average, rejected ones"
            f" {tokens_of(split)[1::ANSWERS].mean():.0f}, the longest answer with its prompt"
            f" {split.lengths_E.max():,}"
            for name, split in self.splits.items()
        ]
        source = _REFERENCES[reference_of(self.recipe)]
        first, *_, last = super().describe()
        loss = rules_of(self.recipe).resolved.loss
        return [first, *lines, f"preference loss {loss}; {source}", last.replace("example", "pair")]


_REFERENCES = {
    "none": "no reference",
    "in_passes": "the reference is the model with its adapters off, in every pass",
    "kept": "the reference's log-probabilities are computed once, before the first step",
}


def _likelihood_of(
    rules: PreferenceRecipe, answers: Likelihood, before_A: Tensor | None
) -> Likelihood:
    """Return how a model tells pairs, from the likelihood of all chosen answers and then all
    rejected ones.

    Args:
        rules: Resolved.
        answers: How they were scored.
        before_A: Log-probabilities by the model from before training; None: not known.
    """
    reference_A = None if rules.loss in WITHOUT_REFERENCE else before_A
    log_probs_A = torch.from_numpy(-answers.window_nats_N).float()
    tokens_A = torch.from_numpy(answers.window_tokens_N).float()
    losses_P, rewards_A = pair_losses(rules, log_probs_A, tokens_A, reference_A)
    chosen_P, shares_P = log_probs_A.chunk(ANSWERS)[0], tokens_A.chunk(ANSWERS)[0]
    losses_P = losses_P - (rules.sft_weight or 0.0) * chosen_P / shares_P.mean()
    named = named_values(log_probs_A, before_A, rewards_A)
    means = {name: float(values_P.mean()) for name, values_P in named.items()}
    return of_samples(
        losses_P,
        named["accuracy"],
        means,
        seconds=answers.seconds,
        context=answers.context,
        batch_sizes=answers.batch_sizes,
    )


def _found_wrong(tasks: Sequence[str], answers: Iterable[Example]) -> Iterator[str]:
    """Yield how many chosen answers the verifiers of tasks reject, by the column answer of their
    rows. Programs are not run.
    """
    held = [each for each in answers if each.reference is not None][:MOST_JUDGED]
    verifiers = {task.verifier: task.judge for task in map(load_task, {*tasks} & {*task_names()})}
    for name, verifier in verifiers.items():
        if verifier is None or verifier.verify is None:
            continue
        verdicts = {}
        for answer in held:
            with suppress(ValueError):  # not a reference of this verifier
                verifier.check(answer.reference)
                reference = reference_text(answer.reference)
                verdicts[answer.where] = verifier.verify(answer.completion, reference)
        wrong = [where for where, verdict in verdicts.items() if not verdict.is_correct]
        if wrong:
            yield (
                f"verifier {name} of the evaluation rejects {len(wrong):,} of"
                f" {plural(len(verdicts), 'chosen answer')} that it read, by their rows' column"
                f" answer, and they are learned; the first: {wrong[0]}. Correct or remove these"
                " rows."
            )


def _displacement(record: Json, rules: PreferenceRecipe) -> str:
    """A warning if answers of most pairs have become less likely, the chosen ones among them, while
    the margin grew; empty: they have not.
    """
    share, count = record["named"].get("displaced", 0.0), record["windows"]
    is_judged = rules.loss in OF_JUDGED
    if share <= MOST_DISPLACED or (is_judged and record["named"]["margin"] <= 0):
        return ""
    found = (
        f"of {round(share * count):,} of {count:,} held-out pairs both answers have become less"
        " likely than before training, the rejected one more so"
    )
    held = (
        f"preference.sft_weight={2 * (rules.sft_weight or 0.05):g} holds on to the chosen answers; "
    )
    if is_judged:
        found, held = (
            f"{share:.0%} of the desired held-out answers have become less likely than before"
            " training, and others more so",
            "",
        )
    return coded(
        "B326",
        f"{found} (likelihood displacement): margins grow, but the model may write neither."
        f" {held}a higher preference.beta or a lower optimizer.learning_rate moves the model less",
    )


def _kept(path: Path, identity: Texts | None = None) -> JsonDict:
    """Return what was kept of the reference: log-probabilities by split, and the seconds that they
    took. It is empty where it is of other data or of another model, or damaged; without `identity`
    it has to be there.

    Raises:
        RunFolderError: it is not there or damaged.
    """
    nothing = {"identity": identity, "log_probs": {}, "seconds": 0.0}
    try:
        found = read_json(path)
        if not {"identity", "log_probs"} <= found.keys():
            raise RunFolderError(f"{path} holds something else")  # noqa: TRY301 - told as damage is
    except RunFolderError as error:
        if identity is None:
            raise RunFolderError(
                f"{error}. It holds what the untrained model says of the pairs; train again under"
                f" another name: run.name={path.parent.name}-2"
            ) from error
        return nothing
    is_of_another = identity is not None and found["identity"] != identity
    return nothing if is_of_another else nothing | found


RUN_DATA = PairRunData
