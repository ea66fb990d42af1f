"""Tasks on a model: load the data, ask, take out what counts of an answer, judge it, score, keep
everything.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from brimful.base.errors import DataError, RequestError
from brimful.base.rundir import write_json_atomically, write_text_atomically
from brimful.data.formats import Example
from brimful.evaluation.likelihood import Progress
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
from brimful.verify.extract import EXTRACTIONS
from brimful.verify.sandbox import Program, ProgramResult, Sandbox
from brimful.verify.verifier import Verdict


@dataclass(frozen=True)
class TaskResult:
    """What one task found.

    Attributes:
        task: The task as it was run.
        prompt: How the model was asked: "template", "plain" or "few-shot N".
        metrics: By name.
        errors: How many answers failed in which way.
        records: One per example, for evaluations/TASK.jsonl.
        facts: What else belongs to the numbers, for evaluations/TASK.json.
    """

    task: Task
    prompt: str
    metrics: dict[str, MetricSummary]
    errors: dict[str, int]
    records: list[dict[str, Any]]
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The summary: value, interval, n and unit of every metric, and how they came about."""
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
        lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in self.records)
        write_text_atomically(folder / f"{self.task.name}.jsonl", lines)
        write_json_atomically(folder / f"{self.task.name}.json", self.to_json())


@dataclass(frozen=True)
class _Writing:
    """A model's answers to the questions of one request."""

    questions: TaskPrompts
    answers: list[list[WrittenAnswer]]
    seconds: float


def evaluate_tasks(
    subject: Subject,
    tasks: Sequence[Task],
    *,
    own: Mapping[str, Sequence[Example]] = MappingProxyType({}),
    paths: Mapping[str, str] = MappingProxyType({}),
    max_examples: int | None = None,
    seed: int = 0,
    sandbox: Sandbox | None = None,
    keep: Callable[[TaskResult], None] | None = None,
    progress: Progress | None = None,
) -> list[TaskResult]:
    """Ask a model every task's questions and score the answers. Tasks that ask the same share the
    answers.

    All data are loaded and checked, and all prompts made, before the model writes its first token.

    Args:
        subject: The model.
        tasks: See `task.load_task`.
        own: The run's examples by split (`ExampleSplit.examples`), for tasks that ask these.
        paths: `evaluation.data`: files to read instead of the hub, by task.
        max_examples: Per task at most, evenly spread.
        seed: Of sampled answers.
        sandbox: Judges programs; needed by tasks whose answers are some.
        keep: Given each task's result as soon as it is there, to write it: what ends a later task
            then costs no earlier one.
        progress: Told "generate" and "verify", with answers done and in all.

    Raises:
        DataError: data of a task are missing, unreachable or of another task.
        RequestError: a task needs the sandbox, examples of the run or a verifier that is not
            installed, or memory does not hold one answer.
    """
    if sandbox is None and (judged := [task.name for task in tasks if task.needs_sandbox]):
        raise RequestError(
            f"{', '.join(judged)}: the answers are programs to run, which needs the sandbox."
        )
    examples = [
        load_examples(task, paths=paths, own=own, max_examples=max_examples) for task in tasks
    ]
    for task, found in zip(tasks, examples, strict=True):
        _refuse_unjudgeable(task, found)
    questions = {
        (task.request, found.source): questions_for(task, found, subject)
        for task, found in zip(tasks, examples, strict=True)
    }
    shared: dict[tuple[str, str], _Writing] = {}
    results = []
    for task, found in zip(tasks, examples, strict=True):
        key = (task.request, found.source)
        if key not in shared:
            shared[key] = _written(task, questions[key], subject, seed, progress)
        results.append(_result(task, found, shared[key], subject, sandbox, progress))
        if keep is not None:
            keep(results[-1])
    return results


def _refuse_unjudgeable(task: Task, examples: TaskExamples) -> None:
    """Raises DataError where nothing could be held against an example's reference, or its columns
    make no program with tests, whatever the answer.
    """
    if task.judge is None:
        return
    for example in examples.scored:
        try:
            task.judge.check(example.row if task.needs_sandbox else example.reference)
        except ValueError as error:
            raise DataError(
                f"{example.where}: {str(error).rstrip('.')}. Are these the task's data?"
            ) from error


def _written(
    task: Task, questions: TaskPrompts, subject: Subject, seed: int, progress: Progress | None
) -> _Writing:
    started_s = time.perf_counter()
    answers = write_answers(
        subject,
        [question.ids for question in questions.asked],
        task.sampling,
        stop=(task.template if subject.is_tuned else task.plain).stop,
        max_new_tokens=questions.max_new_tokens,
        seed=seed,
        progress=progress,
    )
    return _Writing(questions, answers, time.perf_counter() - started_s)


def _result(
    task: Task,
    examples: TaskExamples,
    writing: _Writing,
    subject: Subject,
    sandbox: Sandbox | None,
    progress: Progress | None,
) -> TaskResult:
    extraction = (task.template if subject.is_tuned else task.plain).extraction
    extract = _whole if extraction is None else EXTRACTIONS[extraction]
    asked = writing.questions.asked
    answers = [
        [
            TaskAnswer(
                text,
                extract(text, question.example.row),
                question.example.reference,
                written.finish,
                written.tokens,
            )
            for written in samples
            for text in [question.begun + written.text]
        ]
        for question, samples in zip(asked, writing.answers, strict=True)
    ]
    notes = [*examples.notes, *writing.questions.notes]
    facts: dict[str, Any] = {
        "skipped": len(writing.questions.skipped),
        "data": examples.source,
        **({} if task.verifier is None else {"verifier": task.verifier}),
        "max_new_tokens": writing.questions.max_new_tokens,
        **task.sampling.model_dump(include={"samples", "temperature", "top_k", "top_p"}),
        "tokens": sum(written.tokens for samples in writing.answers for written in samples),
        "seconds": writing.seconds,
        "notes": notes,
    }
    if task.judge is not None and task.judge.program_of_code is not None and sandbox is not None:
        started_s = time.perf_counter()
        verdicts = _verdicts(task.judge.program_of_code, asked, answers, sandbox, progress)
        known = [
            place
            for place, results in enumerate(verdicts)
            if not any(result.overloaded for result in results)
        ]
        if len(known) < len(asked):
            notes.append(
                f"{len(asked) - len(known)} examples are left out: the machine was too busy to"
                " judge their programs"
            )
        asked = [asked[place] for place in known]
        answers = [
            [
                _judged(answer, result)
                for answer, result in zip(answers[place], verdicts[place], strict=True)
            ]
            for place in known
        ]
        modes = Counter(result.mode for place in known for result in verdicts[place])
        facts |= {
            "isolation": sandbox.level,
            "modes": dict(modes),
            "verification_seconds": time.perf_counter() - started_s,
        }
    elif task.judge is not None and task.judge.verify is not None:
        answers = [
            [
                _read(answer, task.judge.verify(answer.extracted, answer.reference))
                for answer in samples
            ]
            for samples in answers
        ]
    return _scored(task, writing.questions.style, asked, answers, facts)


def _whole(text: str, row: Mapping[str, Any]) -> str:
    del row
    return text


def _verdicts(
    program: Callable[[str, Mapping[str, Any]], Program],
    asked: Sequence[TaskPrompt],
    answers: Sequence[Sequence[TaskAnswer]],
    sandbox: Sandbox,
    progress: Progress | None,
) -> list[list[ProgramResult]]:
    programs = [
        program(answer.extracted, question.example.row)
        for question, samples in zip(asked, answers, strict=True)
        for answer in samples
    ]
    done: Counter[str] = Counter()

    def tell(place: int, result: ProgramResult) -> None:
        del place, result
        done["programs"] += 1
        if progress is not None:
            progress("verify", done["programs"], len(programs))

    results = iter(sandbox.run_all(programs, progress=tell))
    return [[next(results) for _ in samples] for samples in answers]


def _judged(answer: TaskAnswer, result: ProgramResult) -> TaskAnswer:
    return replace(answer, status=result.status, detail=result.detail)


def _read(answer: TaskAnswer, verdict: Verdict) -> TaskAnswer:
    return replace(
        answer,
        extracted=verdict.extracted,
        status=verdict.status,
        detail=verdict.detail,
        value=verdict.value,
    )


def _scored(
    task: Task,
    style: str,
    asked: Sequence[TaskPrompt],
    answers: list[list[TaskAnswer]],
    facts: dict[str, Any],
) -> TaskResult:
    metrics = [load_metric(name) for name in task.metrics]
    found = [metric.score(answers) for metric in metrics]
    kinds = [question.example.kind for question in asked]
    by_kind = [
        summaries_by_kind(scores, kinds) if metric.is_told_by_kind else {}
        for metric, scores in zip(metrics, found, strict=True)
    ]
    errors = [
        [_first_error(found, place, sample) for sample in range(len(samples))]
        for place, samples in enumerate(answers)
    ]
    records = [
        _record(question, answers[place], found, place, errors[place])
        for place, question in enumerate(asked)
    ]
    counts = Counter(error for samples in errors for error in samples if error)
    summaries = {
        name: summary
        for told in (*(scores.summaries for scores in found), *by_kind)
        for name, summary in told.items()
    }
    return TaskResult(task, style, summaries, dict(counts.most_common()), records, facts)


def _first_error(found: Sequence[Scores], place: int, sample: int) -> str:
    return next(
        (
            scores.errors[place][sample]
            for scores in found
            if scores.errors and scores.errors[place][sample]
        ),
        "",
    )


def _record(
    question: TaskPrompt,
    samples: list[TaskAnswer],
    found: Sequence[Scores],
    place: int,
    errors: list[str],
) -> dict[str, Any]:
    """One example: its first answer, its scores (means over its samples), and all answers where
    there are several.
    """
    scores = {
        name: float(np.mean(of_answers[place]))
        for metric in found
        for name, of_answers in metric.of_answers.items()
    }
    answers = [_answer(answer, error) for answer, error in zip(samples, errors, strict=True)]
    record = {
        "id": question.example.id,
        "prompt": question.text,
        "shots": question.shots,
        "reference": question.example.reference,
        **({"kind": question.example.kind} if question.example.kind else {}),
        "scores": scores,
        **answers[0],
    }
    return record | ({"samples": answers} if len(answers) > 1 else {})


def _answer(answer: TaskAnswer, error: str) -> dict[str, Any]:
    told = {
        "completion": answer.completion,
        "extracted": answer.extracted,
        "finish": answer.finish,
        "tokens": answer.tokens,
        "error": error,
    }
    judged = {} if answer.status is None else {"status": answer.status, "detail": answer.detail}
    return told | judged | ({} if answer.value is None else {"value": answer.value})
