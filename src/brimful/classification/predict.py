"""Texts in, labels and calibrated probabilities out: a window at a time, in the order of the input,
in constant memory.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import BinaryIO

import torch

from brimful.base.errors import DataError, Interrupted, RequestError
from brimful.base.text import plural
from brimful.base.types import Progress
from brimful.base.warning_codes import all_coded
from brimful.classification.answers import (
    AnswerColumns,
    Form,
    JsonLines,
    PredictedLabels,
    TableRows,
    Write,
    output_format,
    partial_of,
    writing,
)
from brimful.classification.classifier import Classifier, classifier_recipe, load_classifier
from brimful.classification.texts import WINDOW_TEXTS, Source, TextRow, source_of, windows
from brimful.hardware.probe import probe, torch_device
from brimful.recipe import Recipe
from brimful.training.world import ALONE, World

Tell = Callable[[str], None]
_FREQUENT = 12
"""Labels that the summary counts one by one."""


@dataclass(frozen=True)
class PredictionRequest:
    """The texts to classify and how to write the predictions.

    Attributes:
        source: A file, or `-` for standard input.
        changes: How it is read where that is not as the recipe says: `data.text_column=comment` and
            the like.
        output: A file; None: standard output.
        written_as: csv, tsv or jsonl; None: by the output's name, else as the input.
        threshold: A policy or a number in place of the recipe's.
        window: Texts that are sorted by length together; None: 8192, of a terminal 1.
        device: auto, cpu, cuda, cuda:N or mps.
    """

    source: str
    changes: Sequence[str] = ()
    output: Path | None = None
    written_as: str | None = None
    threshold: str | None = None
    window: int | None = None
    device: str = "auto"


@dataclass
class PredictionSummary:
    """Counts of one prediction.

    Attributes:
        texts: All of them.
        given: How often each label was given, in the labels' order.
        not_judged: Texts that hold nothing but white space, which get no label.
        cut: Texts that lost their end because they were too long.
        seconds: Time from the first text read to the last answer written, without loading the
            model.
        is_read_to_the_end: False where the reader of standard output went away, as `head` does.
        thresholds: See `Calibration.lines`.
        max_tokens: Most tokens of a text.
    """

    given: dict[str, int]
    texts: int = 0
    not_judged: int = 0
    cut: int = 0
    seconds: float = 0.0
    is_read_to_the_end: bool = True
    thresholds: tuple[str, ...] = field(default=())
    max_tokens: int = 0

    def lines(self) -> list[str]:
        """The summary in lines for a person."""
        shown = list(self.given.items())
        if len(shown) > _FREQUENT:
            given = {name: count for name, count in shown if count}
            shown = sorted(given.items(), key=lambda each: -each[1])[:_FREQUENT]
        counts = ", ".join(f"{name} {count:,}" for name, count in shown)
        lines = [
            f"{plural(self.texts, 'text')} in {self.seconds:.1f} s"
            f" ({self.texts / max(self.seconds, 1e-9):,.0f} a second): {counts}"
        ]
        lines += self.thresholds
        if self.not_judged:
            lines.append(f"{self.not_judged:,} without a word got no label")
        if self.cut:
            lines.append(f"{self.cut:,} were cut to {self.max_tokens} tokens, as in training")
        return lines


def predict(
    run_folder: Path,
    request: PredictionRequest,
    *,
    tell: Tell,
    progress: Progress | None = None,
    standard_input: BinaryIO | None = None,
    device: torch.device | None = None,
    world: World = ALONE,
) -> PredictionSummary:
    """Classify every text of a file or of standard input with a finished run's classifier.

    One row is written for each row read, in the same order, with its columns. Reading stops at a
    broken row; the rows before it are written.

    Args:
        run_folder: See `runs.named.resolve_run`.
        request: The texts and the form of the output.
        tell: Called at once with notes: renamed columns, thresholds that were not reached, other
            versions of libraries.
        progress: Called with ("predict", texts, None) after every window.
        standard_input: Read in place of the process's own.
        device: Device of this rank; None: as the request says.
        world: Ranks that read the same file and classify it together; the first one writes.

    Raises:
        RequestError: not a classifier, an unknown policy, format or kind; DataError: the file or a
            row of it cannot be read;
        RunFolderError: the run is not finished or damaged, or the output cannot be written;
            DeviceError: no such device; Interrupted: Ctrl-C.
    """
    recipe = classifier_recipe(run_folder)
    source = source_of(request.source, recipe, request.changes)
    if request.output is not None:
        _check_output(request.output, source)
    if source.is_standard_input and not world.is_alone:
        raise RequestError(
            "standard input can be read once, and several devices each read the texts. Name a file,"
            " or leave --devices out."
        )
    kind = output_format(request.written_as, request.output, source.kind)
    where = torch_device(probe(request.device)) if device is None else device
    classifier = load_classifier(run_folder, where, world=world)
    if request.threshold is not None:
        classifier.record = classifier.record.with_threshold(request.threshold)
    for note in (
        *all_coded("B201", source.notes),
        *classifier.notes,
        *all_coded("B211", classifier.record.calibration.notes(classifier.record.labels)),
    ):
        tell(note)
    size = WINDOW_TEXTS
    if source.is_standard_input and standard_input is None and sys.stdin.isatty():
        size = 1
    prediction = _Prediction(classifier, recipe, source, kind, tell)
    prediction.is_written = world.is_first
    return prediction.run(request.output, request.window or size, progress, standard_input)


def _check_output(output: Path, source: Source) -> None:
    """Raise RequestError if the output is the file that is read, or its folder does not exist."""
    if output.exists() and not source.is_standard_input and output.samefile(source.name):
        raise RequestError(f"--output {output} is the file that is read. Choose another name.")
    if not output.parent.is_dir():
        raise RequestError(
            f"--output {output}: the folder {output.parent} does not exist. Make it, or choose"
            " another."
        )


class _Prediction:
    """One pass over the texts.

    Attributes:
        is_written: Whether the answers are written; one rank of several does.
    """

    def __init__(
        self, classifier: Classifier, recipe: Recipe, source: Source, kind: str, tell: Tell
    ) -> None:
        record = classifier.record
        self._classifier, self._recipe, self._source = classifier, recipe, source
        self._kind, self._tell = kind, tell
        self._form: Form | None = None
        self.is_written = True
        thresholds = tuple(record.calibration.lines(record.labels))
        self.summary = PredictionSummary(
            dict.fromkeys(record.labels.names, 0),
            thresholds=thresholds,
            max_tokens=record.max_tokens,
        )

    def run(
        self,
        output: Path | None,
        size: int,
        progress: Progress | None,
        standard_input: BinaryIO | None,
    ) -> PredictionSummary:
        """Everything; an error says what is written already."""
        started_s = time.perf_counter()
        try:
            with writing(output) if self.is_written else nullcontext(_forget) as write:
                for window in windows(self._source.rows(standard_input), size):
                    self._write(window, write)
                    if progress is not None:
                        progress("predict", self.summary.texts, None)
        except BrokenPipeError:
            self.summary.is_read_to_the_end = False
            _forget_standard_output()
        except (DataError, RequestError) as error:
            raise type(error)(f"{error}{self._kept(output)}") from error
        except KeyboardInterrupt:
            raise Interrupted(f"stopped.{self._kept(output)}", signal.SIGINT) from None
        self.summary.seconds = time.perf_counter() - started_s
        return self.summary

    def _write(self, window: list[TextRow], write: Write) -> None:
        answers = self._answers(window)
        head = ""
        if self._form is None:
            self._form = self._form_for(window)
            head = self._form.head()
        lines: list[str] = []
        try:
            lines.extend(
                self._form.line(row.columns, answer, row.where)
                for row, answer in zip(window, answers, strict=True)
            )
        finally:
            write(head + "".join(lines))
            self.summary.texts += len(lines)

    def _answers(self, window: list[TextRow]) -> list[PredictedLabels]:
        classifier, labels = self._classifier, self._classifier.record.labels
        classified = classifier.classify([row.text for row in window])
        probabilities_EC = classifier.probabilities(classified.logits_EC)
        decided = classifier.record.calibration.decide(probabilities_EC, labels).tolist()
        have_text, rows = classified.has_text_E.tolist(), probabilities_EC.tolist()
        answers = []
        for decision, row, has_text in zip(decided, rows, have_text, strict=True):
            if not has_text:  # only white space: it gets no labels
                answers.append(PredictedLabels(None, None, None))
            elif labels.multiple:
                names = tuple(compress(labels.names, decision))
                answers.append(PredictedLabels(names, None, tuple(row)))
            else:
                name = labels.names[decision]
                answers.append(PredictedLabels((name,), row[decision], tuple(row)))
        self._count(answers, classified.num_cut)
        return answers

    def _count(self, answers: list[PredictedLabels], num_cut: int) -> None:
        for name, count in Counter(
            name for answer in answers for name in answer.given or ()
        ).items():
            self.summary.given[name] += count
        self.summary.not_judged += sum(answer.given is None for answer in answers)
        self.summary.cut += num_cut

    def _form_for(self, window: list[TextRow]) -> Form:
        """Choose the form by the columns of the first window; those of tables are the same in all
        rows.
        """
        columns = list(dict.fromkeys(name for row in window for name in row.columns))
        added = AnswerColumns.beside(columns, self._classifier.record.labels)
        for note in added.notes:
            self._tell(note)
        if self._kind == "jsonl":
            return JsonLines(added)
        has_header = self._source.reading.has_header or self._source.kind not in {".csv", ".tsv"}
        if not has_header:
            self._tell(
                f"no header, as in the input; columns: {', '.join([*columns, *added.names])}"
            )
        separator = {"csv": ",", "tsv": "\t"}[self._kind]
        return TableRows(
            columns, added, separator, self._recipe.label_rules.separator, has_header=has_header
        )

    def _kept(self, output: Path | None) -> str:
        if not self.summary.texts:
            if output is not None:
                partial_of(output).unlink(missing_ok=True)
            return ""
        where, rows = "on standard output", f"{self.summary.texts:,} rows before are"
        if output is not None:
            where = f"in {partial_of(output)}"
        if self.summary.texts == 1:
            rows = "row before is"
        return f" The {rows} {where}."


def _forget(text: str) -> None:
    """Write nothing."""


def _forget_standard_output() -> None:
    """Send standard output, which nobody reads any more, to the null device, so that the rest of
    its buffer raises no error when the process ends.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
