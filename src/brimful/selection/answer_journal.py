"""Answers that a model is rewarded for, on disk: appended as they are drawn, read again by a run
that goes on.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from brimful.base.rundir import Journal, read_journal

ANSWERS_FILE = "answers.jsonl"


@dataclass(frozen=True)
class DrawnAnswer:
    """An answer as it was drawn.

    Attributes:
        question: Id of what was asked.
        number: Number among the answers to its question in its round.
        token_ids: Token ids with the token that ended it.
        log_probs: Log-probability of each token, nats, as the sampler computed it.
        finish: Why it ended.
        text: What was judged.
    """

    question: str
    number: int
    token_ids: list[int]
    log_probs: list[float]
    finish: str
    text: str


_KEYS = [each.name for each in fields(DrawnAnswer)]
Key = tuple[str, int]
"""Question and number."""


class AnswerJournal:
    """The answers of a run, by round and by the weights that drew them; then, for each round, what
    was found of its answers.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = path = folder / ANSWERS_FILE
        self._drawn: dict[tuple[int, str], dict[Key, DrawnAnswer]] = {}
        self._found: dict[int, dict[str, Any]] = {}
        for record in read_journal(path):
            self._take(record)
        self._journal: Journal | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While entered, what is added is written down."""
        with Journal(self._path) as self._journal:
            yield

    def _take(self, record: Mapping[str, Any]) -> None:
        number = int(record["round"])
        if "found" in record:
            self._found[number] = record["found"]
            return
        answer = DrawnAnswer(**{key: record[key] for key in _KEYS})
        drawn = self._drawn.setdefault((number, record["weights"]), {})
        drawn[answer.question, answer.number] = answer

    def drawn(self, number: int, weights: str) -> dict[Key, DrawnAnswer]:
        """Return what these weights have drawn in a round so far."""
        return self._drawn.get((number, weights), {})

    def found(self, number: int) -> dict[str, Any] | None:
        """Return what was found of a round, last; None: it is not complete."""
        return self._found.get(number)

    def whole(self, number: int) -> dict[str, Any] | None:
        """Return what was found of a round whose answers are all there; None: it is not complete,
        or damaged lines are missing.
        """
        found = self.found(number)
        is_whole = found and len(self.drawn(number, found["weights"])) == len(found["rewards"])
        return found if is_whole else None

    def append(self, number: int, weights: str, answer: DrawnAnswer) -> None:
        """Write an answer down."""
        self._write({"round": number, "weights": weights, **asdict(answer)})

    def complete(self, number: int, found: Mapping[str, Any]) -> None:
        """Write down what was found of a round, durably; earlier rounds are forgotten."""
        self._write({"round": number, "found": dict(found)})
        if self._journal is not None:
            self._journal.sync()
        self._drawn = {key: each for key, each in self._drawn.items() if key[0] >= number}

    def _write(self, record: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.append(record)
        self._take(record)
