"""Hand a run's numbers to loggers such as TensorBoard: one protocol, one file per logger.

A logger never disturbs the training. It writes in a thread of its own, and if it fails that is said
once and the run goes on without it: metrics.jsonl has the same numbers.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from brimful.base.discover import module_in, names_in
from brimful.base.libraries import how_to_install
from brimful.base.rundir import read_journal
from brimful.base.types import Counts, Json, JsonDict, Numbers
from brimful.base.warning_codes import coded
from brimful.recipe.choices import LOGGERS_PACKAGE
from brimful.report.live.progress import Listener
from brimful.runs.files import JOURNAL_FILE
from brimful.runs.records import (
    CheckpointRecord,
    EvaluationRecord,
    Record,
    SessionEnd,
    SessionStart,
    StepRecord,
    read_record,
)

TRAIN = "train"
"""Group of the steps' values; an evaluation's group is its split."""
STEP_SCALARS = (
    "loss",
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
    "memory_bytes",
    "loss_scale",
    "skipped",
)
EVALUATION_SCALARS = (
    "loss",
    "perplexity",
    "bits_per_byte",
    "accuracy",
    "macro_f1",
    "f1",
    "precision",
    "recall",
    "pr_auc",
    "roc_auc",
)
FLUSH_EVERY_S = 5.0
OPENING_S, CLOSING_S = 30.0, 20.0
"""Longest wait for a logger before the first step, and at the end of a session for what it has not
sent yet."""


@dataclass(frozen=True)
class LoggedRun:
    """What a logger is told about a run.

    Attributes:
        folder: The run folder.
        run_id: A number that is the same in every session of the run, wherever its folder lies.
        project: Project under which the run is logged; None: what the logger's own settings say.
        settings: The recipe, nested.
        first_new_step: The first step that this session logs.
        recorded: The last step that earlier sessions recorded, by group; steps from first_new_step
            up to it are done again.
    """

    folder: Path
    run_id: str
    project: str | None = None
    settings: Json = field(default_factory=dict)
    first_new_step: int = 0
    recorded: Counts = field(default_factory=dict)

    @property
    def unique_name(self) -> str:
        """The name of the folder with the beginning of the run's number."""
        return f"{self.folder.name}-{self.run_id[:8]}"


class Log(Protocol):
    """An open log of one run. Its methods are called from one thread, which may wait; any exception
    ends the logging, not the run.
    """

    @property
    def held(self) -> Counts:
        """The last step that the log holds already, by group. Those and earlier ones are not added
        again; empty where the log replaces what is repeated.
        """

    def add(self, group: str, values: Numbers, step: int, unix_s: float | None) -> None:
        """Add values of a step, each to be shown as `group/name`."""

    def flush(self) -> None:
        """Send or write what was added."""

    def close(self, is_finished: bool) -> None:
        """Write the rest and close. `is_finished`: the run came to its end."""


@dataclass(frozen=True)
class Logger:
    """A place that shows the numbers of runs.

    Attributes:
        label: Its name as its makers write it.
        open: Opens the log of a run, or goes on with that of an earlier session. Raises
            ImportError where the package is missing, any other exception where it cannot be used.
        install: What to do where the package is missing, as a sentence.
        look: The command that shows the curves of a run folder; empty: they are on a server.
        notice: What the user should know once the log is open; empty: nothing.
    """

    label: str
    open: Callable[[LoggedRun], Log]
    install: Callable[[], str]
    look: Callable[[Path], str]
    notice: Callable[[LoggedRun], str] = lambda _: ""


def from_extra(extra: str) -> Callable[[], str]:
    """Return the sentence that says how to install the packages of an extra, made when needed."""
    return lambda: f"{how_to_install(extra)}."


def known_loggers() -> list[str]:
    """Return the names that `run.loggers` may list."""
    return names_in(LOGGERS_PACKAGE, ".py")


def find_logger(name: str) -> Logger:
    """Return the `LOGGER` of the file of that name; BrimfulError lists the known ones."""
    logger: Logger = module_in(LOGGERS_PACKAGE, name, "logger").LOGGER
    return logger


def recorded_steps(journal: Path) -> Counts:
    """Return the last step in a journal by group; empty where there is no journal."""
    steps: dict[str, int] = {}
    for record in map(read_record, read_journal(journal) if journal.exists() else ()):
        if group := _group_of(record):
            steps[group] = max(record.step, steps.get(group, 0))
    return steps


@contextmanager
def logging_listener(
    names: Sequence[str], run: LoggedRun, note: Callable[[str], None]
) -> Iterator[Listener]:
    """Hand a session's records to loggers.

    Args:
        names: Files of `brimful/report/live/loggers`.
        run: The run as it is before the session; its journal is read.
        note: Receives, at most once per logger, what the user should know and, at most once, the
            reason why nothing (more) is logged. Called in the caller's thread.
    """
    known = replace(run, recorded=recorded_steps(run.folder / JOURNAL_FILE))
    with ExitStack() as closing:
        writers = [_Writer(find_logger(name), known, note) for name in names]
        for writer in writers:
            closing.callback(writer.close)

        def listen(record: JsonDict) -> None:
            for writer in writers:
                writer(record)

        yield listen


class _Writer:
    """Writes to one logger in a thread of its own. The logger is opened when the first record
    comes, because that record says at which step a resumed run goes on.
    """

    def __init__(self, logger: Logger, run: LoggedRun, note: Callable[[str], None]) -> None:
        self._logger, self._run, self._note = logger, run, note
        self._records: queue.SimpleQueue[JsonDict | None] = queue.SimpleQueue()
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_open = threading.Event()
        self._is_off = False

    def __call__(self, record: JsonDict) -> None:
        if self._thread is None:
            self._start(replace(self._run, first_new_step=_first_new_step(read_record(record))))
        if not self._is_off:
            self._records.put(record)
        self._tell()

    def _start(self, run: LoggedRun) -> None:
        """Open the log in the thread. A server that does not answer delays the training only so
        long; what a logger prints while it opens does not mix with other output.
        """
        self._thread = threading.Thread(
            target=self._run_thread, args=(run,), name=f"logger {self._logger.label}", daemon=True
        )
        self._thread.start()
        self._is_open.wait(OPENING_S)

    def _run_thread(self, run: LoggedRun) -> None:
        label = self._logger.label
        try:
            log = self._logger.open(run)
            if notice := self._logger.notice(run):
                self._notes.put(notice)
            self._is_open.set()
            try:
                is_finished = self._write_all(log)
            except Exception:
                with suppress(Exception):
                    log.close(False)
                raise
            log.close(is_finished)
        except ImportError as error:
            self._stop(f"{label} is not written: {error}. {self._logger.install()}")
        except Exception as error:  # another project's code: it may raise anything
            more = " any more" if self._is_open.is_set() else ""
            self._stop(f"{label} is not written{more}: {_in_words(error)}")
        finally:
            self._is_open.set()

    def _write_all(self, log: Log) -> bool:
        """Write records until None comes; return whether the run came to its end."""
        flushed_s, is_finished = time.monotonic(), False
        while (values := self._records.get()) is not None:
            record = read_record(values)
            _write(log, record)
            is_due = time.monotonic() - flushed_s > FLUSH_EVERY_S and self._records.empty()
            if is_due or isinstance(record, EvaluationRecord | CheckpointRecord | SessionEnd):
                log.flush()
                flushed_s = time.monotonic()
            is_finished = isinstance(record, SessionEnd) and record.reason == "finished"
        return is_finished

    def _stop(self, problem: str) -> None:
        self._is_off = True
        self._notes.put(f"{problem} The run goes on; metrics.jsonl has the same numbers.")

    def _tell(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._note(coded("B310", self._notes.get_nowait()))

    def close(self) -> None:
        """Write what is pending and close the log, within CLOSING_S."""
        if self._thread is None:
            return
        self._records.put(None)
        self._thread.join(CLOSING_S)
        self._tell()
        if self._thread.is_alive():
            self._note(
                coded(
                    "B310",
                    f"{self._logger.label} has not taken all values after {CLOSING_S:.0f} s and is"
                    " not waited for any longer; metrics.jsonl has the same numbers.",
                )
            )


def _write(log: Log, record: Record) -> None:
    group, step = _group_of(record), record.step
    if not group or step <= log.held.get(group, -1):
        return
    names = STEP_SCALARS if group == TRAIN else EVALUATION_SCALARS
    written = [(name, record.values.get(name)) for name in names]
    if isinstance(record, StepRecord | EvaluationRecord):
        written += record.named.items()
    values = {name: value for name, value in written if isinstance(value, int | float)}
    if values:
        log.add(group, values, step, record.time)


def _group_of(record: Record) -> str:
    """Return under which group a record's values are logged; empty: it is not logged."""
    match record:
        case StepRecord():
            return TRAIN
        case EvaluationRecord():
            return record.split
    return ""


def _first_new_step(record: Record) -> int:
    """Return the step from which on points of an earlier process are void."""
    is_resumed = isinstance(record, SessionStart) and record.resumed
    return record.step + 1 if is_resumed else record.step


def _in_words(error: Exception) -> str:
    """Return an error's first line, as a sentence."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{first.rstrip('.')}."
