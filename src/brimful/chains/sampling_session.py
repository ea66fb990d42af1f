"""One drawing of samples: questions in, verified and chosen samples out, every one journaled."""

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import Interrupted, RequestError
from brimful.base.rundir import Lease
from brimful.base.text import plural
from brimful.base.types import JsonDict
from brimful.chains.sampling_questions import SamplingQuestions
from brimful.chains.watched_progress import watched
from brimful.generation.author import Author
from brimful.generation.backends.choice import backend_for
from brimful.generation.requests import Backend, Generation, Request
from brimful.generation.sampler import SamplingSettings
from brimful.generation.text import first_stop, text_behind
from brimful.model.blocks import context_of
from brimful.recipe import Recipe, RftRecipe
from brimful.report.comparison.rounds import sample_examples
from brimful.report.comparison.sampling import SamplingState, sampling_lines, sampling_progress
from brimful.selection.choose import SelectionRules
from brimful.selection.draw import SampleDrawing
from brimful.selection.journal import SampleJournal, write_samples
from brimful.selection.pairs import write_pairs
from brimful.selection.paths import path_hash
from brimful.selection.sample import JudgedSample, SampledPrompt
from brimful.selection.statistics import refuse_nothing_kept, statistics_of
from brimful.training.meter import DevicePeak
from brimful.training.shared_work import HandedOver, is_own
from brimful.training.world import ALONE, World
from brimful.verify.background import Judging
from brimful.verify.sandbox import Sandbox
from brimful.verify.verifier import Verdict

_SHOWN_EVERY_S = 0.25
_SETTINGS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "max_new_tokens",
)
"""Keys of the section rft that decide what is drawn."""


class SamplingSession:
    """One drawing, from what the journal holds to what can be trained on.

    Args:
        rft: How many samples, and how they are drawn and chosen.
        questions: What is asked.
        author: The model that answers.
        folder: Holds the journal and gets the samples.
        seed: The seed of all samples.
        author_id: Changes with the author's weights and prompt.
        sandbox: Sandbox for verifiers that run programs.
        world: Ranks that share the questions; the first one keeps the journal.

    Raises:
        RequestError: no question fits into the author's context.
        RunFolderError: the folder's journal holds samples of other settings.
    """

    def __init__(
        self,
        rft: RftRecipe,
        questions: SamplingQuestions,
        author: Author,
        folder: Path,
        *,
        seed: int,
        author_id: str,
        sandbox: Sandbox | None,
        world: World = ALONE,
    ) -> None:
        self._rft, self._questions, self._author, self._world = rft, questions, author, world
        self._peak = DevicePeak(author.model.device)
        self._folder, self._sandbox, self._seed = folder, sandbox, seed
        self._rules = SelectionRules(
            rft.samples_per_prompt, rft.keep_per_prompt, rft.stop_early, rft.min_answer_tokens
        )
        self._question_of = {question.id: question for question in questions.questions.asked}
        self.notes = list(questions.notes)
        self.asked = self._fitting()
        decides = {
            "author": author_id,
            "seed": seed,
            "settings": rft.model_dump(mode="json", include=set(_SETTINGS)),
            "verifier": rft.verifier,
            "distinct_by": rft.distinct_by,
        }
        self.journal: SampleJournal | None = None
        with world.telling_failures():
            if world.is_first:
                self.journal = SampleJournal(folder, decides)
        known = list(map(self._with_contamination, self._held()))
        self._drawing = SampleDrawing(self.asked, self._rules, seed, rft.max_new_tokens, known)
        self._known_samples = self.num_samples
        if self.num_samples:
            self.notes.append(f"{self.num_samples:,} samples are there from before")

    def _held(self) -> list[JudgedSample]:
        """Return what the journal holds, on every rank."""
        held = [] if self.journal is None else self.journal.held
        if self._world.is_alone:
            return held
        if self._world.is_first:
            self._world.tell([sample.to_json() for sample in held])
            return held
        return [JudgedSample.from_json(each, "rank 0") for each in self._world.hear()]

    @property
    def num_samples(self) -> int:
        """Samples drawn and verified so far, those of earlier sessions too."""
        return self._drawing.drawn.samples

    def opening_lines(self) -> list[str]:
        """What is about to be drawn, for the user."""
        asked, times = len(self.asked), self._rft.samples_per_prompt
        return [f"{self._author.name} answers {asked:,} questions, {times} times each", *self.notes]

    def _fitting(self) -> list[SampledPrompt]:
        """Return the questions that leave room for an answer; note how many do not."""
        context, room = context_of(self._author.model), self._rft.max_new_tokens
        all_questions = self._questions.questions.asked
        asked, longest = [], 0
        for question in all_questions:
            ids = self._author.prompt_ids(question.prompt)
            if len(ids) > context - room:
                longest = max(longest, len(ids))
                continue
            known_paths = self._questions.known_paths.get(question.id, frozenset())
            asked.append(
                SampledPrompt(
                    question.id,
                    question.text,
                    tuple(ids),
                    question.kind or None,
                    question.prompt,
                    question.reference,
                    known_paths,
                )
            )
        rule = (
            f"{self._author.name} reads {context} tokens, {room} of them its answer"
            " (rft.max_new_tokens)"
        )
        if not asked:
            raise RequestError(
                f"no question fits: {rule}, and the longest prompt has {longest}. Lower"
                " rft.max_new_tokens, or rft.shots for a teacher."
            )
        if left_out := len(all_questions) - len(asked):
            self.notes.append(
                f"not asked, because the prompt is too long: {plural(left_out, 'question')}; {rule}"
            )
        return asked

    def draw(self, recipe: Recipe, lease: Lease | None, console: Console) -> JsonDict:
        """Draw, verify and choose everything that is missing; return the facts for sampling.json.

        Args:
            lease: The lease of the folder, on the rank that writes it.

        Raises:
            RequestError: the back end did not write every sample.
            DataError: no sample can be kept.
            Interrupted: Ctrl-C; what was drawn is kept.
        """
        started_s = time.perf_counter()
        if self._drawing.drawn.samples_left:
            self._world.check(lambda: self._draw_what_is_left(recipe, lease, console))
        facts: JsonDict = self._world.first(lambda: self._choose(recipe, console, started_s))
        return facts

    def _draw_what_is_left(self, recipe: Recipe, lease: Lease | None, console: Console) -> None:
        try:
            backend, reason = self._backend(recipe)
            if self.journal is not None:
                self.journal.note_backend(reason)
            console_printer(console)(reason)
            self._draw_missing(recipe, backend, lease, console)
        except KeyboardInterrupt:
            message = (
                f"stopped with {self.num_samples:,} samples, which are kept in {self._folder}. Run"
                " the same command to continue."
            )
            raise Interrupted(message, signal.SIGINT) from None

    def _choose(self, recipe: Recipe, console: Console, started_s: float) -> JsonDict:
        """Write the samples that count, and return the facts about them."""
        journal = self.journal
        assert journal is not None  # noqa: S101 - of rank 0
        say = console_printer(console)
        journal.sync()
        samples = write_samples(self._folder, self.asked, self._drawing.samples, self._rules)
        statistics = statistics_of(self.asked, samples, self._rules)
        most = self._rft.pairs_per_prompt
        pairs = write_pairs(self._folder, self.asked, samples, self._rules, most, self._seed)
        say("\n".join([*sampling_lines(statistics), pairs.line]))
        refuse_nothing_kept(statistics)
        if recipe.kind.compares_answers:
            pairs.refuse_none()
        return {
            "author": self._author.name,
            "backend": journal.backend,
            "notes": self.notes,
            "seconds": time.perf_counter() - started_s,
            "samples_before": self._known_samples,
            "statistics": statistics.to_json(),
            "pairs": pairs.to_json(),
            "examples": sample_examples(samples, self.asked),
        }

    def _backend(self, recipe: Recipe) -> tuple[Backend, str]:
        """The generation back end, and why it was chosen."""
        rows = recipe.plan.sampling_rows
        return backend_for(
            recipe.plan.sampling,
            self._author.model,
            self._author.tokenizer,
            source=self._author.source,
            most_rows=None if rows == "auto" else rows,
            precision=recipe.plan.precision,
        )

    def _draw_missing(
        self, recipe: Recipe, backend: Backend, lease: Lease | None, console: Console
    ) -> None:
        rft, verifier = self._rft, self._questions.verifier
        settings = SamplingSettings(
            rft.temperature, rft.top_k, rft.top_p, rft.min_p, rft.repetition_penalty
        )
        with (
            sampling_progress(console) as show,
            Judging(verifier, self._sandbox) as judging,
            watched(self._folder, recipe, "a sample") as moved,
            HandedOver(self._world) as exchange,
        ):
            requests = _CountedRequests(self._drawing.requests(partial(is_own, self._world)))
            shown_s = 0.0
            for request, generation in backend.stream(requests, settings, self._author.stop):
                moved()
                requests.finished += 1
                self._verify(judging, request, generation)
                self._take(judging.ready(), exchange)
                self._note(exchange.come())
                if exchange.is_broken_off:
                    return
                if time.perf_counter() - shown_s > _SHOWN_EVERY_S:
                    shown_s = time.perf_counter()
                    show(self._state(requests.running))
                    if lease is not None:
                        lease.renew()
            self._take(judging.rest(), exchange)
            for come in exchange.rest():
                moved()
                self._note(come)
                show(self._state(0))
        if exchange.is_broken_off:
            return
        if left := self._drawing.drawn.samples_left:
            raise RequestError(
                f"{left:,} samples were asked for and did not come. The others are kept: run the"
                " same command again."
            )

    def _verify(self, judging: Judging, request: Request, generation: Generation) -> None:
        asked, number = self._drawing.origin(request)
        text = text_behind(self._author.tokenizer, request.prompt_ids, generation.token_ids)
        text = text[: first_stop(text, self._author.stop.texts)]
        question = self._question_of[asked.id]
        # After a prompt that is text the answer begins with white space of its own.
        if not isinstance(question.prompt, str):
            text = text.strip()
        reference = question.row if self._questions.verifier.needs_sandbox else question.reference
        judging.put((request, generation, asked, number, text), text, reference)

    def _take(self, judged: list[tuple[Any, Verdict]], exchange: HandedOver) -> None:
        """Keep samples that were drawn and verified here, and hand them to the other ranks."""
        distinct_by = self._rft.distinct_by
        for (request, generation, asked, number, text), verdict in judged:
            solution = verdict.extracted if distinct_by == "code" else text
            sample = JudgedSample(
                asked.id,
                number,
                text,
                generation.finish,
                len(generation.token_ids),
                request.seed,
                verdict.value,
                verdict.extracted,
                verdict.status,
                verdict.detail,
                path_hash(solution, distinct_by),
            )
            self._keep(sample)
            exchange.put(sample.to_json())

    def _note(self, come: list[JsonDict]) -> None:
        """Keep samples of other ranks."""
        for record in come:
            self._keep(JudgedSample.from_json(record, "another rank"))

    def _keep(self, sample: JudgedSample) -> None:
        if self._drawing.take(self._with_contamination(sample)) and self.journal is not None:
            self.journal.append(sample)

    def _with_contamination(self, sample: JudgedSample) -> JudgedSample:
        """Return the sample with `contaminated_by` set: the id of the evaluation question that a
        correct sample repeats, else None.
        """
        question = self._question_of.get(sample.question)
        if question is None or not sample.is_correct:
            return replace(sample, contaminated_by=None)
        match = self._questions.held_out.find(question.text, sample.completion)
        return replace(sample, contaminated_by=None if match is None else match.evaluation_id)

    def _state(self, running: int) -> SamplingState:
        drawn = self._drawing.drawn
        return SamplingState(
            drawn.questions_done,
            drawn.questions,
            drawn.samples,
            drawn.samples + drawn.samples_left,
            self._known_samples,
            drawn.tokens,
            drawn.answered,
            drawn.correct,
            drawn.questions_with_kept,
            drawn.kept,
            running,
            self._peak.look(),
        )


class _CountedRequests:
    """Requests for a back end, and how many of them are being written."""

    def __init__(self, requests: Iterator[Request]) -> None:
        self._requests = requests
        self._taken = self.finished = 0

    def __iter__(self) -> Iterator[Request]:
        for request in self._requests:
            self._taken += 1
            yield request

    @property
    def running(self) -> int:
        return self._taken - self.finished
