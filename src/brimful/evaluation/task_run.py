"""Tasks on a model: load the data, generate answers, extract the part that is judged, judge it,
score it, and keep a record of every example.
"""

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from brimful.base.errors import DataError, RequestError
from brimful.base.rundir import write_journal_atomically, write_json_atomically
from brimful.base.types import Json, JsonDict, Progress, Texts
from brimful.data.formats import Example
from brimful.evaluation.metric import (
    MetricSummary,
    Scores,
    TaskAnswer,
    load_metric,
    summaries_by_kind,
)
from brimful.evaluation.task import Task
from brimful.evaluation.task_answers import WrittenAnswer, write_answers
from brimful.evaluation.task_data import TaskExamples, load_examples
from brimful.evaluation.task_prompts import Subject, TaskPrompt, TaskPrompts, questions_for
from brimful.generation.text import text_ends_in_loop
from brimful.training.world import ALONE, World
from brimful.verify.extract import EXTRACTIONS, code_of
from brimful.verify.sandbox import Program, ProgramResult, Sandbox
from brimful.verify.verifier import Verdict


@dataclass(frozen=True)
class TaskResult:
    """Scores and records of one task.

    Attributes:
        task: The task as it was run.
        prompt: How the model was asked: "template", "plain" or "few-shot N".
        metrics: Summaries of the metrics, by name.
        errors: How many answers failed in which way.
        records: One per example, for evaluations/TASK.jsonl.
        facts: Further fields of evaluations/TASK.json: settings, counts and times.
    """

    task: Task
    prompt: str
    metrics: dict[str, MetricSummary]
    errors: dict[str, int]
    records: list[JsonDict]
    facts: JsonDict

    @property
    def main(self) -> tuple[str, float]:
        """Its first metric: name and value, of nothing at all below every other."""
        name, summary = next(iter(self.metrics.items()))
        return name, -math.inf if summary.value is None else summary.value

    @property
    def main_text(self) -> str:
        """Its first metric in words."""
        name, value = self.main
        is_share = self.metrics[name].unit == "share"
        return f"{name} {format(value, '.1%' if is_share else '.4g')}"

    def to_json(self) -> JsonDict:
        """The summary for evaluations/TASK.json: metrics with intervals, settings and counts."""
        return {
            "task": self.task.name,
            "version": self.task.version,
            "prompt": self.prompt,
            "n": len(self.records),
            "metrics": {name: summary.to_json() for name, summary in self.metrics.items()},
            "errors": self.errors,
            **self.facts,
        }

    def write(self, folder: Path) -> None:
        """Replace TASK.jsonl and then TASK.json in the folder, which is made when absent.

        Raises:
            RunFolderError: no space or no permission.
        """
        folder.mkdir(parents=True, exist_ok=True)
        write_journal_atomically(folder / f"{self.task.name}.jsonl", self.records)
        write_json_atomically(folder / f"{self.task.name}.json", self.to_json(), with_checksum=True)


@dataclass(frozen=True)
class _Writing:
    """A model's answers to the questions of one request."""

    questions: TaskPrompts
    answers: list[list[WrittenAnswer]]
    seconds: float


def evaluate_tasks(  # noqa: PLR0913 - each is one independent choice of the measurement
    subject: Subject,
    tasks: Sequence[Task],
    *,
    own: Mapping[str, Sequence[Example]] = MappingProxyType({}),
    paths: Texts = MappingProxyType({}),
    max_examples: int | None = None,
    seed: int = 0,
    sandbox: Sandbox | None = None,
    keep: Callable[[TaskResult], None] | None = None,
    progress: Progress | None = None,
    world: World = ALONE,
) -> list[TaskResult]:
    """Ask a model every task's questions and score the answers. Tasks that ask the same share the
    answers.

    All data are loaded and checked, and all prompts made, before the model writes its first token.

    Args:
        subject: The model.
        tasks: See `task.load_task`.
        own: The run's examples by split (`ExampleSplit.examples`), for tasks that ask these.
        paths: `evaluation.data`: files to read instead of the hub, by task.
        max_examples: Most examples of a task, evenly spread.
        seed: Seed of sampled answers.
        sandbox: Judges programs; needed by tasks whose answers are some.
        keep: Called with each task's result as soon as it is there, to write it, so that a failure
            of a later task loses no earlier result.
        progress: Called with "generate" or "verify", answers done and answers in all.
        world: Ranks that write the answers together; the first one judges them, and the others
            return no results.

    Raises:
        DataError: data of a task are missing, unreachable or of another task.
        RequestError: a task needs the sandbox, examples of the run or a verifier that is not
            installed, or memory does not hold one answer.
    """
    needs = [task.name for task in tasks if task.needs_sandbox]
    if needs and sandbox is None and world.is_first:
        raise RequestError(
            f"{', '.join(needs)}: the answers are programs to run, which needs the sandbox."
        )
    loaded = [
        (task, load_examples(task, paths=paths, own=own, max_examples=max_examples))
        for task in tasks
    ]
    for task, examples in loaded:
        refuse_unjudgeable(task, examples)
    prompts = {
        (task.request, examples.source, way): questions_for(task, examples, subject, way)
        for task, examples in loaded
        for way in subject.ways
    }
    shared: dict[tuple[str, str, str], _Writing] = {}
    results = []
    for task, examples in loaded:
        asked = []
        for way in subject.ways:
            key = (task.request, examples.source, way)
            if key not in shared:
                shared[key] = _written(task, prompts[key], subject, seed, progress, world)
            if world.is_first:
                asked.append(_result(task, examples, shared[key], sandbox, progress))
        if not world.is_first:
            continue
        results.append(_better(asked))
        if keep is not None:
            keep(results[-1])
    return results


def _better(asked: Sequence[TaskResult]) -> TaskResult:
    """Return the result with the higher first metric, of equal ones the first, with a note on what
    the others gave.
    """
    best = max(asked, key=lambda result: result.main[1])
    if len(asked) == 1:
        return best
    told = ", ".join(f"{result.prompt} {result.main_text}" for result in asked)
    note = (
        f"asked in {len(asked)} ways, as it is in doubt which suits this model, and the better one"
        f" counts ({told}); evaluation.ask chooses one"
    )
    facts = best.facts | {
        "asked": {result.prompt: result.main[1] for result in asked},
        "notes": [*best.facts["notes"], note],
    }
    return replace(best, facts=facts)


def refuse_unjudgeable(task: Task, examples: TaskExamples) -> None:
    """Raise DataError if no answer to an example could be judged: its reference cannot be read, or
    its columns make no program with tests.
    """
    if task.judge is None:
        return
    for example in examples.scored:
        reference: Any = example.reference
        if task.needs_sandbox:
            reference = example.row
        try:
            task.judge.check(reference)
        except ValueError as error:
            raise DataError(
                f"{example.where}: {str(error).rstrip('.')}. Are these the task's data?"
            ) from error


def _written(
    task: Task,
    questions: TaskPrompts,
    subject: Subject,
    seed: int,
    progress: Progress | None,
    world: World,
) -> _Writing:
    started_s = time.perf_counter()
    answers = write_answers(
        subject,
        [question.ids for question in questions.asked],
        task.sampling,
        stop=questions.rules.stop,
        max_new_tokens=questions.max_new_tokens,
        seed=seed,
        progress=progress,
        world=world,
    )
    return _Writing(questions, answers, time.perf_counter() - started_s)


def _loop_notes(writing: _Writing) -> list[str]:
    """How many answers repeat themselves without end; none where none does."""
    unended = [
        answer
        for samples in writing.answers
        for answer in samples
        if answer.finish in {"length", "loop"}
    ]
    looping = sum(each.finish == "loop" or text_ends_in_loop(each.text) for each in unended)
    if not looping:
        return []
    total = sum(map(len, writing.answers))
    return [
        f"{looping} of {total} answers repeat the same words up to the limit; more tokens would not"
        " help them"
    ]


def _result(
    task: Task,
    examples: TaskExamples,
    writing: _Writing,
    sandbox: Sandbox | None,
    progress: Progress | None,
) -> TaskResult:
    prompts = writing.questions
    answered = [
        _Answered(prompt, _extracted(prompt, samples, prompts.rules.extraction))
        for prompt, samples in zip(prompts.asked, writing.answers, strict=True)
    ]
    facts: JsonDict = {"skipped": len(prompts.skipped), "data": examples.source}
    if task.verifier is not None:
        facts["verifier"] = task.verifier
    facts |= {
        "max_new_tokens": prompts.max_new_tokens,
        **task.sampling.model_dump(include={"samples", "temperature", "top_k", "top_p"}),
        "tokens": sum(written.tokens for samples in writing.answers for written in samples),
        "seconds": writing.seconds,
        "notes": [*examples.notes, *prompts.notes, *_loop_notes(writing)],
    }
    judge = task.judge
    if judge is not None and judge.program_of_code is not None and sandbox is not None:
        answered = _run_programs(judge.program_of_code, answered, facts, sandbox, progress)
    elif judge is not None and judge.verify is not None:
        answered = [
            _Answered(each.prompt, [_verified(judge.verify, answer) for answer in each.answers])
            for each in answered
        ]
    return _scored(task, prompts.style, answered, facts)


@dataclass(frozen=True)
class _Answered:
    """A prompt and the answers to it."""

    prompt: TaskPrompt
    answers: list[TaskAnswer]


def _extracted(
    prompt: TaskPrompt, samples: Sequence[WrittenAnswer], extraction: str | None
) -> list[TaskAnswer]:
    """The answers with the part of each that is judged: all of it where nothing is extracted."""
    row, reference, answers = prompt.example.row, prompt.example.reference, []
    if extraction is not None:
        reference = code_of(reference)
    for written in samples:
        text = extracted = prompt.begun + written.text
        if extraction is not None:
            extracted = EXTRACTIONS[extraction](text, row)
        answers.append(TaskAnswer(text, extracted, reference, written.finish, written.tokens))
    return answers


def _run_programs(
    program: Callable[[str, Json], Program],
    answered: Sequence[_Answered],
    facts: JsonDict,
    sandbox: Sandbox,
    progress: Progress | None,
) -> list[_Answered]:
    """Judge programs in the sandbox, and add how they ran to the facts. Examples that an overloaded
    machine could not judge are left out.
    """
    started_s = time.perf_counter()
    verdicts = _verdicts(program, answered, sandbox, progress)
    judged, modes = [], Counter[str]()
    for each, results in zip(answered, verdicts, strict=True):
        if any(result.overloaded for result in results):
            continue
        modes.update(result.mode for result in results)
        answers = [
            replace(answer, status=result.status, detail=result.detail)
            for answer, result in zip(each.answers, results, strict=True)
        ]
        judged.append(_Answered(each.prompt, answers))
    if len(judged) < len(answered):
        facts["notes"].append(
            f"{len(answered) - len(judged)} examples are left out: the machine was too busy to"
            " judge their programs"
        )
    facts |= {
        "isolation": sandbox.level,
        "modes": dict(modes),
        "verification_seconds": time.perf_counter() - started_s,
    }
    return judged


def _verdicts(
    program: Callable[[str, Json], Program],
    answered: Sequence[_Answered],
    sandbox: Sandbox,
    progress: Progress | None,
) -> list[list[ProgramResult]]:
    """The sandbox's results of the answers to each prompt."""
    programs = [
        program(answer.extracted, each.prompt.example.row)
        for each in answered
        for answer in each.answers
    ]
    done = itertools.count(1)

    def tell(place: int, result: ProgramResult) -> None:
        del place, result
        if progress is not None:
            progress("verify", next(done), len(programs))

    results = iter(sandbox.run_all(programs, progress=tell))
    return [[next(results) for _ in each.answers] for each in answered]


def _verified(verify: Callable[[str, str], Verdict], answer: TaskAnswer) -> TaskAnswer:
    verdict = verify(answer.extracted, answer.reference)
    return replace(
        answer,
        extracted=verdict.extracted,
        status=verdict.status,
        detail=verdict.detail,
        value=verdict.value,
    )


def _scored(task: Task, style: str, answered: Sequence[_Answered], facts: JsonDict) -> TaskResult:
    metrics = [load_metric(name) for name in task.metrics]
    answers = [each.answers for each in answered]
    kinds = [each.prompt.example.kind for each in answered]
    all_scores = [metric.score(answers) for metric in metrics]
    summaries: dict[str, MetricSummary] = {}
    for scores in all_scores:
        summaries |= scores.summaries
    for metric, scores in zip(metrics, all_scores, strict=True):
        if metric.has_kinds:
            summaries |= summaries_by_kind(scores, kinds)
    records = [_record(each, all_scores, place) for place, each in enumerate(answered)]
    errors = Counter(
        _first_error(all_scores, place, sample)
        for place, each in enumerate(answered)
        for sample in range(len(each.answers))
    )
    del errors[""]
    return TaskResult(task, style, summaries, dict(errors.most_common()), records, facts)


def _first_error(all_scores: Sequence[Scores], place: int, sample: int) -> str:
    """The first metric's error of a sample of an example; empty where no metric has one."""
    errors = (scores.errors[place][sample] for scores in all_scores if scores.errors)
    return next((error for error in errors if error), "")


def _record(each: _Answered, all_scores: Sequence[Scores], place: int) -> JsonDict:
    """One example: its first answer, its scores (means over its samples), and all answers where
    there are several.
    """
    example = each.prompt.example
    scores = {
        name: float(np.mean(of_answers[place]))
        for metric in all_scores
        for name, of_answers in metric.of_answers.items()
    }
    answers = [
        _answer(answer, _first_error(all_scores, place, sample))
        for sample, answer in enumerate(each.answers)
    ]
    record: JsonDict = {
        "id": example.id,
        "prompt": each.prompt.text,
        "shots": each.prompt.shots,
        "reference": example.reference,
    }
    if example.kind:
        record["kind"] = example.kind
    record |= {"scores": scores, **answers[0]}
    if len(answers) > 1:
        record["samples"] = answers
    return record


def _answer(answer: TaskAnswer, error: str) -> JsonDict:
    record: JsonDict = {
        "completion": answer.completion,
        "extracted": answer.extracted,
        "finish": answer.finish,
        "tokens": answer.tokens,
        "error": error,
    }
    if answer.status is not None:
        record |= {"status": answer.status, "detail": answer.detail}
    if answer.value is not None:
        record["value"] = answer.value
    return record
