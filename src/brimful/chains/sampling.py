"""Answers drawn for questions whose answers can be verified: asked, judged, chosen, kept on disk.
An overview: it sees every stage.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash
from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import DataError, Interrupted, RequestError
from brimful.base.rundir import Lease, read_json, write_json_atomically
from brimful.data.questions import QuestionSet, read_questions
from brimful.evaluation.task import load_task, render, task_names
from brimful.evaluation.task_data import load_examples
from brimful.generation.author import Author
from brimful.generation.backends.choice import backend_for
from brimful.generation.engine import context_of
from brimful.generation.requests import Generation, Request
from brimful.generation.sampler import SamplingSettings
from brimful.generation.text import first_stop, text_behind
from brimful.recipe import Recipe, RftRecipe
from brimful.report.comparison.rounds import sample_examples
from brimful.report.comparison.sampling import SamplingState, sampling_lines, sampling_progress
from brimful.selection.choose import SelectionRules
from brimful.selection.contamination import EvaluationQuestions
from brimful.selection.draw import SampleDrawing
from brimful.selection.journal import SampleJournal, kept_paths, write_samples
from brimful.selection.paths import path_hash
from brimful.selection.sample import JudgedSample, SampledPrompt
from brimful.selection.statistics import refuse_nothing_kept, statistics_of
from brimful.training.meter import peak_memory_bytes
from brimful.verify.background import Judging
from brimful.verify.sandbox import Sandbox
from brimful.verify.verifier import Verdict, Verifier, load_verifier

FACTS_FILE = "sampling.json"
_SHOWN_EVERY_S = 0.25
_NOT_DECISIVE = {"rounds", "seeds", "with_demonstrations"}
"""Of the section rft: what says nothing about the samples of one drawing."""


@dataclass(frozen=True)
class Material:
    """What is asked, before any model is loaded.

    Attributes:
        questions: Without those that the evaluation asks.
        verifier: Of their answers.
        held_out: What the evaluation asks.
        fingerprint: Of all this.
        notes: What was left out.
        known_paths: By question, those kept in rounds before.
    """

    questions: QuestionSet
    verifier: Verifier
    held_out: EvaluationQuestions
    fingerprint: str
    notes: tuple[str, ...]
    known_paths: Mapping[str, frozenset[str]] = field(default_factory=dict)


def rft_of(recipe: Recipe) -> RftRecipe:
    """The recipe's section rft.

    Raises:
        RequestError: it has none.
    """
    if recipe.rft is None:
        raise RequestError(
            f"{recipe.name} has no section rft, which says what to ask and how to verify answers."
            " `brimful recipes show unit-rft` has one."
        )
    return recipe.rft


def gather_questions(recipe: Recipe) -> Material:
    """Read what is asked, and see that every answer can be verified.

    Raises:
        DataError: no questions, or a reference that no answer can be held against; RequestError: no
            such verifier, or what it needs is missing.
    """
    rft = rft_of(recipe)
    verifier, scored, found = (
        load_verifier(rft.verifier),
        scored_questions(recipe),
        read_questions(rft.questions),
    )
    held_out = EvaluationQuestions(scored)
    asked = tuple(question for question in found.asked if held_out.find(question.text, "") is None)
    notes = list(found.notes)
    if len(asked) < len(found.asked):
        notes.append(
            f"{len(found.asked) - len(asked)} of {len(found.asked)} questions are not asked,"
            " because the evaluation asks them"
        )
    if foreign := [name for name in recipe.evaluation.tasks if name not in task_names()]:
        notes.append(
            f"what {', '.join(foreign)} asks is not known here, so questions and samples are not"
            " compared with it"
        )
    if not asked:
        raise DataError(
            f"rft.questions: the evaluation asks all {len(found.asked)} questions of"
            f" {found.source}, too. Choose other questions to train on."
        )
    for question in asked:
        try:
            verifier.check(question.row if verifier.needs_sandbox else question.reference)
        except (ValueError, DataError) as error:
            raise DataError(
                f"{question.where}: the verifier {rft.verifier} cannot hold answers against"
                f" {question.reference[:80]!r}: {str(error).rstrip('.')}. Correct or remove the"
                " row, or choose another rft.verifier."
            ) from error
    fingerprint = xxhash.xxh3_128_hexdigest(
        json.dumps([[question.id for question in asked], scored]).encode()
    )
    return Material(replace(found, asked=asked), verifier, held_out, fingerprint, tuple(notes))


def scored_questions(recipe: Recipe) -> list[tuple[str, str]]:
    """What the recipe's tasks ask, by name: nothing of it may be trained on.

    Raises:
        DataError: a task's data cannot be read.
    """
    found: list[tuple[str, str]] = []
    for task in (load_task(name) for name in recipe.evaluation.tasks if name in task_names()):
        if task.data.run is None:
            scored = load_examples(task, paths=recipe.evaluation.data, own={}).scored
            found += [
                (
                    f"{task.name} {example.id}",
                    render(str(task.template.text), example.row, example.where),
                )
                for example in scored
            ]
    return found


def draw(
    recipe: Recipe,
    material: Material,
    load_author: Callable[[], Author],
    folder: Path,
    console: Console,
    *,
    seed: int,
    author_id: str,
    before: Sequence[Path] = (),
) -> dict[str, Any]:
    """Draw, verify and choose samples: samples.jsonl, train.jsonl and sampling.json in a folder.
    The same call again goes on where it stopped.

    Args:
        recipe: Its section rft says how many and how.
        material: What is asked.
        load_author: Loads who is asked; not called where everything is drawn already.
        folder: Made when absent.
        console: Shows progress.
        seed: Of all samples.
        author_id: Changes with the author's weights and with how it is asked.
        before: Folders of rounds before: a path that was kept there is not kept again.

    Returns:
        What sampling.json holds.

    Raises:
        RunFolderError: the folder holds other samples; DataError: nothing can be kept;
            RequestError: no question fits into the author's context, or samples are missing;
            Interrupted: Ctrl-C; what was drawn is kept.
    """
    rft, path = rft_of(recipe), folder / FACTS_FILE
    known = kept_paths(before)
    chosen_by = {
        "rft": rft.model_dump(mode="json", exclude=_NOT_DECISIVE),
        "author": author_id,
        "seed": seed,
        "questions": material.fingerprint,
        "known_paths": xxhash.xxh3_64_hexdigest(
            repr(sorted((name, sorted(paths)) for name, paths in known.items())).encode()
        ),
    }
    if path.exists() and read_json(path).get("chosen_by") == chosen_by:
        facts: dict[str, Any] = read_json(path)
        return facts
    folder.mkdir(parents=True, exist_ok=True)
    with Lease.acquire(folder) as lease, ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox()) if material.verifier.needs_sandbox else None
        author = load_author()
        session = _Session(
            rft, replace(material, known_paths=known), author, folder, seed, author_id, sandbox
        )
        stack.enter_context(session.journal)
        path.unlink(missing_ok=True)  # the files it tells of are about to be replaced
        for line in (
            (
                f"{author.name} answers {len(session.asked):,} questions, {rft.samples_per_prompt}"
                " times each"
            ),
            *session.notes,
        ):
            console_printer(console)(line)
        try:
            facts = {"chosen_by": chosen_by, **session.draw(recipe, lease, console)}
        except KeyboardInterrupt:
            told = (
                f"stopped with {session.num_samples:,} samples, which are kept in {folder}. Run the"
                " same command to continue."
            )
            raise Interrupted(told, signal.SIGINT) from None
        write_json_atomically(path, facts)
    return facts


class _Session:
    """One drawing, from what the journal holds to what can be trained on."""

    def __init__(
        self,
        rft: RftRecipe,
        material: Material,
        author: Author,
        folder: Path,
        seed: int,
        author_id: str,
        sandbox: Sandbox | None,
    ) -> None:
        self._rft, self._material, self._author, self._folder, self._sandbox = (
            rft,
            material,
            author,
            folder,
            sandbox,
        )
        self._rules = SelectionRules(
            rft.samples_per_prompt, rft.keep_per_prompt, rft.stop_early, rft.min_answer_tokens
        )
        self._question_of = {question.id: question for question in material.questions.asked}
        self.asked, self.notes = self._fitting()
        settings = rft.model_dump(
            mode="json",
            include={
                "temperature",
                "top_k",
                "top_p",
                "min_p",
                "repetition_penalty",
                "max_new_tokens",
            },
        )
        decides = {
            "author": author_id,
            "seed": seed,
            "settings": settings,
            "verifier": rft.verifier,
            "distinct_by": rft.distinct_by,
        }
        self.journal = SampleJournal(folder, decides)
        held = [
            replace(sample, contaminated_by=self._contaminated_by(sample))
            for sample in self.journal.held
        ]
        self._drawing = SampleDrawing(self.asked, self._rules, seed, rft.max_new_tokens, held)
        if self.num_samples:
            self.notes.append(f"{self.num_samples:,} samples are there from before")

    @property
    def num_samples(self) -> int:
        """Drawn and verified so far, those from before too."""
        return self._drawing.drawn.samples

    def _fitting(self) -> tuple[list[SampledPrompt], list[str]]:
        """Questions that leave room for an answer, and what is told of the others."""
        longest = context_of(self._author.model) - self._rft.max_new_tokens
        asked, too_long = [], 0
        for question in self._material.questions.asked:
            ids = self._author.prompt_ids(question.prompt)
            if len(ids) <= longest:
                known = self._material.known_paths.get(question.id, frozenset())
                asked.append(
                    SampledPrompt(
                        question.id,
                        question.text,
                        tuple(ids),
                        question.kind or None,
                        question.prompt,
                        question.reference,
                        known,
                    )
                )
            else:
                too_long = max(too_long, len(ids))
        left_out = len(self._material.questions.asked) - len(asked)
        rule = (
            f"{self._author.name} reads {longest + self._rft.max_new_tokens} tokens,"
            f" {self._rft.max_new_tokens} of them its answer (rft.max_new_tokens)"
        )
        if not asked:
            raise RequestError(
                f"no question fits: {rule}, and the longest prompt has {too_long}. Lower"
                " rft.max_new_tokens, or rft.shots for a teacher."
            )
        more = (
            [f"{left_out} questions are not asked, because their prompts are too long: {rule}"]
            if left_out
            else []
        )
        return asked, [*self._material.notes, *more]

    def draw(self, recipe: Recipe, lease: Lease, console: Console) -> dict[str, Any]:
        """Everything that is missing; returns facts for sampling.json."""
        started_s, before = time.perf_counter(), self.num_samples
        why = ""
        if self._drawing.drawn.samples_left:
            author, rows = self._author, recipe.plan.sampling_rows
            most_rows = None if rows == "auto" else rows
            backend, why = backend_for(
                recipe.plan.sampling,
                author.model,
                author.tokenizer,
                source=author.source,
                most_rows=most_rows,
            )
            console_printer(console)(why)
            rft = self._rft
            settings = SamplingSettings(
                rft.temperature, rft.top_k, rft.top_p, rft.min_p, rft.repetition_penalty
            )
            with (
                sampling_progress(console) as show,
                Judging(self._material.verifier, self._sandbox) as judging,
            ):
                under_way = _Counted(self._drawing.requests())
                shown_s = 0.0
                for request, generation in backend.stream(under_way, settings, self._author.stop):
                    under_way.finished += 1
                    self._verify(judging, request, generation)
                    self._take(judging.ready())
                    if time.perf_counter() - shown_s > _SHOWN_EVERY_S:
                        shown_s = time.perf_counter()
                        show(self._snapshot(before, under_way.running))
                        lease.renew()
                self._take(judging.rest())
                show(self._snapshot(before, 0))
            if left := self._drawing.drawn.samples_left:
                raise RequestError(
                    f"{left:,} samples were asked for and did not come. The others are kept: run"
                    " the same command again."
                )
        self.journal.sync()
        samples = write_samples(self._folder, self.asked, self._drawing.samples, self._rules)
        statistics = statistics_of(self.asked, samples, self._rules)
        console_printer(console)("\n".join(sampling_lines(statistics)))
        refuse_nothing_kept(statistics)
        return {
            "author": self._author.name,
            "backend": why,
            "notes": self.notes,
            "seconds": time.perf_counter() - started_s,
            "samples_before": before,
            "statistics": statistics.to_json(),
            "examples": sample_examples(samples, self.asked),
        }

    def _verify(self, judging: Judging, request: Request, generation: Generation) -> None:
        asked, number = self._drawing.origin(request)
        text = text_behind(self._author.tokenizer, request.prompt_ids, generation.token_ids)
        text = text[: first_stop(text, self._author.stop.texts)]
        question = self._question_of[asked.id]
        if not isinstance(
            question.prompt, str
        ):  # behind a prompt that is text the answer begins with its own white space
            text = text.strip()
        reference = question.row if self._material.verifier.needs_sandbox else question.reference
        judging.put((request, generation, asked, number, text), text, reference)

    def _take(self, judged: list[tuple[Any, Verdict]]) -> None:
        for (request, generation, asked, number, text), verdict in judged:
            path = path_hash(
                verdict.extracted if self._rft.distinct_by == "code" else text,
                self._rft.distinct_by,
            )
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
                path,
            )
            if self._drawing.take(replace(sample, contaminated_by=self._contaminated_by(sample))):
                self.journal.append(sample)

    def _contaminated_by(self, sample: JudgedSample) -> str | None:
        """The evaluation's question that a right answer repeats."""
        question = self._question_of.get(sample.question)
        found = (
            self._material.held_out.find(question.text, sample.completion)
            if question is not None and sample.is_correct
            else None
        )
        return None if found is None else found.evaluation_id

    def _snapshot(self, before: int, running: int) -> SamplingState:
        drawn = self._drawing.drawn
        return SamplingState(
            drawn.questions_done,
            drawn.questions,
            drawn.samples,
            drawn.samples + drawn.samples_left,
            before,
            drawn.tokens,
            drawn.answered,
            drawn.correct,
            drawn.questions_with_kept,
            drawn.kept,
            running,
            peak_memory_bytes(self._author.model.device),
        )


class _Counted:
    """Requests on their way to a back end, and how many are being written."""

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
