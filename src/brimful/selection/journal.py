"""Samples on disk: appended as they are verified, read again by a resumed drawing, and at the end
the two files that others read.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from brimful.base.errors import RunFolderError
from brimful.base.rundir import (
    Journal,
    read_journal,
    records_lost,
    write_journal_atomically,
    write_text_atomically,
)
from brimful.base.text import shortened
from brimful.base.types import Json, JsonDict
from brimful.data.formats import Message, Prompt
from brimful.model.fingerprint import is_same_model
from brimful.selection.choose import SelectionRules, prefix
from brimful.selection.sample import JudgedSample, SampledPrompt, by_question

JOURNAL_FILE = "drawn.jsonl"
"""Everything that was drawn, in the order it came back."""
SAMPLES_FILE = "samples.jsonl"
"""The samples that count, by question and number, with their fates."""
TRAINING_FILE = "train.jsonl"
PAIRS_FILE = "pairs.jsonl"
"""Kept samples as rows to fine-tune on."""


_NO_SAMPLE = frozenset({"decides", "backend"})


def is_sample(record: Json) -> bool:
    """Return whether a record of the journal is a sample, and not about how they are drawn."""
    return not _NO_SAMPLE & record.keys()


class SampleJournal:
    """The samples of one folder, one record each, behind a header that says what decides them.

    Args:
        folder: Exists; the caller holds its lease.
        decides: What every sample depends on, by name: the model's fingerprint, questions, sampling
            settings, verifier, template. JSON values. What is only chosen by, such as how many are
            kept, does not belong here: it may change between two drawings.

    Attributes:
        held: What was drawn before, in the order it came back; of twins the first.
        backend: What wrote the samples last, in words; empty before any was asked for.

    Raises:
        RunFolderError: the folder's samples were drawn with something else (names what changed), or
            a record is no sample.
    """

    def __init__(self, folder: Path, decides: Json) -> None:
        self.held: list[JudgedSample] = []
        self.backend = ""
        self._known: set[tuple[str, int]] = set()
        path = folder / JOURNAL_FILE
        records = list(read_journal(path))
        if records and "decides" in records[0] and records_lost(path):
            write_journal_atomically(path, records)  # the lost ones are drawn again, alike
        self._journal = Journal(path)
        try:
            self._read(folder, dict(decides))
        except BaseException:
            self._journal.close()
            raise

    def append(self, sample: JudgedSample) -> bool:
        """Write a sample down; False, and nothing is written, where its question and number are
        there already.
        """
        if not self._is_new(sample):
            return False
        self._journal.append(sample.to_json())
        return True

    @property
    def num_records(self) -> int:
        """Records in the file: samples, and how they are drawn."""
        return self._journal.num_records

    def note_backend(self, backend: str) -> None:
        """Write down what writes the samples from here on."""
        if backend != self.backend:
            self.backend = backend
            self._journal.append({"backend": backend})

    def sync(self) -> None:
        """Durable up to here, also after a power cut; a killed process loses nothing that was
        appended.
        """
        self._journal.sync()

    def close(self) -> None:
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self, folder: Path, decides: JsonDict) -> None:
        records = list(read_journal(self._journal.path))
        if not records:
            self._journal.append({"decides": decides})
            return
        stored = records[0].get("decides")
        if isinstance(stored, dict) and is_same_model(
            stored.get("author"), str(decides.get("author"))
        ):
            stored["author"] = decides["author"]
        _refuse_other(folder, stored, json.loads(json.dumps(decides)))
        for line, record in enumerate(records[1:], start=2):
            if "backend" in record:
                self.backend = str(record["backend"])
                continue
            sample = JudgedSample.from_json(record, f"{self._journal.path}, record {line}")
            if self._is_new(sample):
                self.held.append(sample)

    def _is_new(self, sample: JudgedSample) -> bool:
        count = len(self._known)
        self._known.add((sample.question, sample.number))
        return len(self._known) > count


def write_samples(
    folder: Path,
    questions: Sequence[SampledPrompt],
    samples: Iterable[JudgedSample],
    rules: SelectionRules,
) -> list[JudgedSample]:
    """Write the samples that count and the rows to train on; each file is replaced as a whole.

    Args:
        folder: Folder that they are written to.
        questions: Questions in the order of the files.
        samples: All that were drawn, in any order; those of other questions are left out.
        rules: What is kept.

    Returns:
        The samples that count, with their fates. Where none is kept, there is no file to train on,
        an older one is removed.

    Raises:
        RunFolderError: no space, no permission; the older file is as it was.
    """
    drawn = by_question(questions, samples)
    counted = [
        (question, sample)
        for question in questions
        for sample in prefix(drawn[question.id], rules, question.known_paths)
    ]
    write_journal_atomically(folder / SAMPLES_FILE, (_record(*pair) for pair in counted))
    rows = [
        training_row(question.prompt or (Message("user", question.text),), sample.completion)
        for question, sample in counted
        if sample.fate == "kept"
    ]
    if rows:
        write_text_atomically(
            folder / TRAINING_FILE, "".join(json.dumps(row) + "\n" for row in rows)
        )
    else:
        (folder / TRAINING_FILE).unlink(missing_ok=True)
    return [sample for _, sample in counted]


def training_row(prompt: Prompt, completion: str) -> JsonDict:
    """A row for method `sft`, in the format prompt: both text, or both lists of messages."""
    if isinstance(prompt, str):
        return {"prompt": prompt, "completion": completion}
    messages = [message.to_json() for message in prompt]
    tools = {"tools": prompt[0].fields["tools"]} if "tools" in prompt[0].fields else {}
    answer = {"role": "assistant", "content": completion}
    return {"prompt": messages, "completion": [answer], **tools}


def kept_paths(folders: Iterable[Path]) -> dict[str, frozenset[str]]:
    """Return by question the paths that were kept in drawings before."""
    kept: dict[str, set[str]] = {}
    for folder in folders:
        for sample in read_journal(folder / SAMPLES_FILE):
            if sample["fate"] == "kept":
                kept.setdefault(sample["id"], set()).add(sample["path"])
    return {name: frozenset(paths) for name, paths in kept.items()}


def _record(question: SampledPrompt, sample: JudgedSample) -> JsonDict:
    """A line of samples.jsonl: what was asked in words, and all about the answer."""
    return {
        "id": question.id,
        **sample.to_json(),
        "question": question.text,
        "reference": question.reference,
    }


def _refuse_other(folder: Path, before: object, now: JsonDict) -> None:
    if before == now:
        return
    if not isinstance(before, dict):
        raise RunFolderError(
            f"{folder / JOURNAL_FILE} does not say what its samples were drawn with. Remove it, or"
            " choose another folder."
        )
    changes = [
        f"{name} (was {_short(before.get(name))}, now {_short(now.get(name))})"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    raise RunFolderError(
        f"{folder} holds samples that were drawn with something else: {', '.join(changes)}. Samples"
        " of two kinds are not mixed: set the recipe back to go on with these, or remove the"
        " folder or choose another name with run.name=NAME to draw new ones."
    )


def _short(value: object) -> str:
    return shortened(json.dumps(value), 60)
