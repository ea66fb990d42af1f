"""Labels and probabilities written beside the columns that their texts came with, as csv, tsv or
JSON lines.
"""

import csv
import gzip
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from brimful.base.errors import DataError, RequestError, RunFolderError
from brimful.base.text import printable
from brimful.base.types import Json, JsonDict
from brimful.data.labels import Labels

KINDS = ("csv", "tsv", "jsonl")
Write = Callable[[str], None]
_KIND_OF = {".csv": "csv", ".tsv": "tsv"}
_NOT_AS_TSV = ("\t", "\n", "\r")


@dataclass(frozen=True)
class PredictedLabels:
    """The prediction for one text.

    Attributes:
        given: Names of the predicted labels, one unless a text may have several; None: the text was
            not classified.
        probability: Probability of the predicted label; None where there is none, or a text may
            have several.
        probabilities: Probability of every label; None: the text was not classified.
    """

    given: tuple[str, ...] | None
    probability: float | None
    probabilities: tuple[float, ...] | None


@dataclass(frozen=True)
class AnswerColumns:
    """Names of the columns that are added.

    Attributes:
        given: label, or labels where a text may have several.
        probability: Column of the given label's probability; None where a text may have several
            labels.
        of_labels: One per label, in their order.
        notes: What was named otherwise, because the input has a column of that name.
    """

    given: str
    probability: str | None
    of_labels: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def beside(cls, columns: Iterable[str], labels: Labels) -> "AnswerColumns":
        """`label`, `probability` and `p_LABEL`, or with `_predicted` behind where a column is
        called that already.
        """
        taken, notes = set(columns), []

        def free(name: str) -> str:
            chosen = name
            while chosen in taken:
                chosen += "_predicted"
            if chosen != name:
                notes.append(f"the input has a column {name}; the prediction is in {chosen}")
            taken.add(chosen)
            return chosen

        probability = None
        if labels.multiple:
            given = free("labels")
        else:
            given, probability = free("label"), free("probability")
        return cls(
            given, probability, tuple(free(f"p_{name}") for name in labels.names), tuple(notes)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in order."""
        return tuple(self.values(PredictedLabels(None, None, None)))

    def values(self, answer: PredictedLabels) -> JsonDict:
        """Values by column, in order; null for a text that was not classified."""
        values: JsonDict = {self.given: None}
        if answer.given is not None:
            values[self.given] = list(answer.given)
        if self.probability is not None:
            if answer.given is not None:
                values[self.given] = answer.given[0]
            values[self.probability] = _short(answer.probability)
        each = answer.probabilities or (None,) * len(self.of_labels)
        for name, value in zip(self.of_labels, each, strict=True):
            values[name] = _short(value)
        return values


class JsonLines:
    """A JSON object a line: the row's own fields, then the answer's."""

    def __init__(self, added: AnswerColumns) -> None:
        self._added = added

    def head(self) -> str:
        """Nothing."""
        return ""

    def line(self, columns: Json, answer: PredictedLabels, where: str) -> str:
        """Raise DataError if the row has a field with the name of the prediction's, which rows
        before it did not have.
        """
        if clash := next((name for name in self._added.names if name in columns), None):
            raise DataError(
                f"{where}: a field {clash} stands only in this and later rows, and the prediction's"
                " field is called that. Rename the row's."
            )
        row = {**columns, **self._added.values(answer)}
        return json.dumps(row, ensure_ascii=False, default=str) + "\n"


class TableRows:
    """Comma- or tab-separated fields under a header; null is an empty field, several labels are
    joined, other values that are no text are JSON.

    Args:
        columns: Columns of the input, in order.
        added: Columns of answers, behind those.
        separator: What stands between fields.
        joint: What stands between several labels.
        has_header: False: the input has none either.
    """

    def __init__(
        self,
        columns: Sequence[str],
        added: AnswerColumns,
        separator: str,
        joint: str,
        *,
        has_header: bool,
    ) -> None:
        self._columns, self._known, self._added = list(columns), set(columns), added
        self._separator, self._joint, self._has_header = separator, joint, has_header

    def head(self) -> str:
        """The names of the columns."""
        if not self._has_header:
            return ""
        return self._joined([*self._columns, *self._added.names], "the header")

    def line(self, columns: Json, answer: PredictedLabels, where: str) -> str:
        """Raise DataError if the row has a field that rows before it did not have, or, in a tsv,
        text with tabs or line breaks.
        """
        if odd := columns.keys() - self._known:
            raise DataError(
                f"{where}: a field {min(odd)} stands only in this and later rows, so the table has"
                " no column for it. Write --as jsonl."
            )
        added = self._added.values(answer)
        return self._joined(
            [*map(self._cell, map(columns.get, self._columns)), *map(self._cell, added.values())],
            where,
        )

    def _cell(self, value: Any) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return self._joint.join(value)
        return json.dumps(value, ensure_ascii=False, default=str)

    def _joined(self, fields: list[str], where: str) -> str:
        if self._separator == "\t":
            return "\t".join(_tsv_field(field, where) for field in fields) + "\n"
        line = io.StringIO()
        # With "\r\n" as its line end the writer also quotes a lone carriage return.
        csv.writer(line, lineterminator="\r\n").writerow(fields)
        return line.getvalue().removesuffix("\r\n") + "\n"


Form = JsonLines | TableRows
"""How rows become lines."""


def output_format(asked: str | None, output: Path | None, source_kind: str) -> str:
    """csv, tsv or jsonl: what is asked for, else by the end of the output's name, else as the
    input; plain text and parquet become jsonl.

    Raises:
        RequestError: another kind is asked for.
    """
    if asked is not None:
        if asked not in KINDS:
            raise RequestError(f"--as {asked}: predictions are written as {', '.join(KINDS)}.")
        return asked
    kind = _KIND_OF.get(source_kind, "jsonl")
    if output is None:
        return kind
    suffix = Path(output.name.removesuffix(".gz")).suffix.lower()
    return {".jsonl": "jsonl", ".ndjson": "jsonl", **_KIND_OF}.get(suffix, kind)


@contextmanager
def writing(output: Path | None) -> Iterator[Write]:
    """Yield a function that writes text into a file, or to standard output (None), and flushes it.
    A terminal gets control characters written out.

    A file is written under its name with `.partial` appended and renamed when all is written; an
    older file stays until then. If writing ends early, the partial file stays. A name that ends in
    .gz is compressed.

    Raises:
        RunFolderError: it cannot be written.
    """
    if output is None:
        shown = printable if sys.stdout.isatty() else str
        yield lambda text: _write(sys.stdout.buffer, shown(text))
        return
    part, open_bytes = partial_of(output), cast("Callable[..., IO[bytes]]", open)
    if output.name.lower().endswith(".gz"):
        open_bytes = cast("Callable[..., IO[bytes]]", gzip.open)
    try:
        with open_bytes(part, "wb") as file:
            yield partial(_write, file)
        os.replace(part, output)
    except OSError as error:
        raise RunFolderError(
            f"{output} cannot be written: {error}. Free space, fix the permissions, or choose"
            " another --output."
        ) from error


def partial_of(output: Path) -> Path:
    """Where a file is written that is not complete yet."""
    return output.with_name(f"{output.name}.partial")


def _write(file: Any, text: str) -> None:
    # Half a surrogate pair is escaped as in JSON.
    file.write(text.encode("utf-8", errors="backslashreplace"))
    file.flush()


def _short(value: float | None) -> float | None:
    """Six digits: more than fp32 arithmetic can tell apart."""
    if value is None:
        return None
    return float(f"{value:.6g}")


def _tsv_field(text: str, where: str) -> str:
    """Quoted only where it would be taken for a quoted field otherwise (see
    `data.tables.tsv_rows`).
    """
    if any(mark in text for mark in _NOT_AS_TSV):
        raise DataError(
            f"{where}: a field holds a tab or a line break, which a tsv cannot. Write --as csv or"
            " --as jsonl."
        )
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return '"' + text.replace('"', '""') + '"'
    return text
