"""The records of a run's journal, metrics.jsonl: one class for each kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from brimful.base.rundir import finite
from brimful.base.types import Bounds, Json, Numbers
from brimful.runs.parsing import WHOLE, parse


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record of any kind; of one that this version does not know, this is all that is read.

    Attributes:
        step: Optimizer steps done when it was written.
        time: Time at which it was written, in Unix seconds.
        seconds: How long took what it is about.
        values: The record as it was written, for tables that show every field.
    """

    kind: str = ""
    step: int = 0
    time: float | None = None
    seconds: float | None = None
    values: Json = field(default_factory=dict, repr=False, metadata=WHOLE)

    def number(self, name: str) -> float | None:
        """Return the field of this name as a finite number, None where it is none."""
        return finite(self.values.get(name))


@dataclass(frozen=True, kw_only=True)
class StepRecord(Record):
    """An optimizer step. Times are means over the steps that were read from the device together.

    Attributes:
        loss: Mean nats per learned token (of a classifier: per text).
        tokens: Learned from since the run began.
        skipped: Updates left out since the run began because a gradient was not finite, or of a
            spike that the recipe skips.
        spikes: Steps since the run began whose loss or gradient norm was far above the usual.
        core_wait_s: Part of the step time on a CPU that training waited for a core that another
            program had.
        memory_bytes: The peak so far.
        allocated_bytes: The peak of tensors so far, on a CUDA device.
        named: Further values of the method, by name, the most telling first.
    """

    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    tokens: float | None = None
    skipped: int | None = None
    spikes: int | None = None
    loss_scale: float | None = None
    step_time_s: float | None = None
    loader_wait_s: float | None = None
    core_wait_s: float = 0.0
    tokens_per_second: float | None = None
    memory_bytes: float | None = None
    allocated_bytes: float | None = None
    named: Numbers = field(default_factory=dict)

    @property
    def own_time_s(self) -> float | None:
        """The step time without what other programs took of it; None where none was measured."""
        return None if self.step_time_s is None else self.step_time_s - self.core_wait_s


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(Record):
    """An evaluation while training.

    Attributes:
        objective: What the best model has least of; None in a run whose objective is the loss.
        best: Whether it is the best so far.
        windows: How many were scored.
        named: Further values of the method, by name, the most telling first.
    """

    split: str = "validation"
    loss: float | None = None
    perplexity: float | None = None
    bits_per_byte: float | None = None
    loss_interval: Bounds | None = None
    bits_per_byte_interval: Bounds | None = None
    objective: float | None = None
    windows: int | None = None
    tokens_per_second: float | None = None
    best: bool = False
    named: Numbers = field(default_factory=dict)

    @property
    def minimized(self) -> float | None:
        """What the best evaluation has least of: the objective where there is one, else the
        loss.
        """
        return self.objective if "objective" in self.values else self.loss

    @cached_property
    def metrics(self) -> Numbers:
        """Every number of the record by name, such as the metrics of a classifier."""
        numbers = {name: finite(value) for name, value in self.values.items()}
        return {name: number for name, number in numbers.items() if number is not None}


@dataclass(frozen=True, kw_only=True)
class BaseRecord(Record):
    """The held-out loss of the model before tuning, or of the tuned one on the same sequences.

    Attributes:
        model: BASE_MODEL or TUNED_MODEL.
        share: Share of the usual validation sequences, 0 to 1.
        tokens: Learned tokens that were scored.
    """

    model: str = ""
    share: float | None = None
    split: str = "validation"
    loss: float | None = None
    tokens: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReferenceRecord(Record):
    """Answers were scored by the model from before training; `seconds` is what that took in all
    sessions.
    """


@dataclass(frozen=True, kw_only=True)
class RoundRecord(Record):
    """A round of rewarded answers, with the seconds of its phases where they were done now, not in
    an earlier session.
    """

    sampling_s: float = 0.0
    verifying_s: float = 0.0
    scoring_s: float = 0.0


BASE_MODEL, TUNED_MODEL = "base", "tuned"


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord(Record):
    """A checkpoint that was written, its size and how long that took."""

    bytes: float | None = None


ROUTINE = "checked: "
"""Prefix of events that report a check without a problem. The journal and the report keep them, the
console does not show them.
"""


@dataclass(frozen=True, kw_only=True)
class EventRecord(Record):
    """Something that happened besides plain steps, in words."""

    message: str = ""


@dataclass(frozen=True, kw_only=True)
class SessionStart(Record):
    """The start of a session: of the run, or of its continuation from a checkpoint.

    Attributes:
        tokens_per_step: Positions that a step feeds, padding among them.
    """

    run: str = ""
    total_steps: int | None = None
    tokens_per_step: float | None = None
    resumed: bool = False


@dataclass(frozen=True, kw_only=True)
class SessionEnd(Record):
    """The end of a session that was not killed; `reason` is "finished" or why it stopped."""

    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class OutOfMemoryRecord(Record):
    """Memory ran out, and the work was repeated in smaller micro-batches.

    Attributes:
        phase: "training" or "evaluation".
        larger, smaller: Sequences per micro-batch before and after.
        where: The pass that failed and what it asked for, or the split.
    """

    phase: str = ""
    larger: tuple[int, ...] = field(default=(), metadata={"key": "from"})
    smaller: tuple[int, ...] = field(default=(), metadata={"key": "to"})
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class LoaderRecord(Record):
    """How long batches take to make, measured after a session whose steps waited for them.

    Attributes:
        loader_workers: Threads that made batches while training.
        seconds_per_batch: Seconds by number of threads.
        batches: Batches timed, by number of threads.
    """

    loader_workers: int = 0
    seconds_per_batch: Mapping[int, float] = field(default_factory=dict)
    batches: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """How one of several ranks got on since the last checkpoint, in means per step.

    Attributes:
        machine: That it runs on.
        computing_s: Time in passes, without communication.
        communication_s: Time in which weights or gradients were exchanged or waited for. Where
            every rank holds the whole model, what passes hide is not counted.
        memory_bytes: The peak so far.
    """

    rank: int = 0
    machine: str = ""
    computing_s: float = 0.0
    communication_s: float = 0.0
    memory_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class RanksRecord(Record):
    """How the ranks of a run on several devices got on."""

    ranks: tuple[RankShare, ...] = ()

    @property
    def slowest(self) -> RankShare:
        """The rank that computes longest: the others wait for it."""
        return max(self.ranks, key=lambda each: each.computing_s)

    @property
    def communication_share(self) -> float:
        """Share of communication in the time of all ranks in a step, 0 to 1."""
        talking = sum(each.communication_s for each in self.ranks)
        return talking / (talking + sum(each.computing_s for each in self.ranks) or 1.0)


RECORDS: dict[str, type[Record]] = {
    "step": StepRecord,
    "evaluation": EvaluationRecord,
    "base": BaseRecord,
    "reference": ReferenceRecord,
    "round": RoundRecord,
    "checkpoint": CheckpointRecord,
    "event": EventRecord,
    "start": SessionStart,
    "end": SessionEnd,
    "out_of_memory": OutOfMemoryRecord,
    "loader": LoaderRecord,
    "ranks": RanksRecord,
}
"""Types of records by the kind that a line of the journal names."""


def read_record(values: Json) -> Record:
    """Return a line of the journal as a record of its kind."""
    return parse(RECORDS.get(str(values.get("kind")), Record), values)


def series(records: Sequence[Record], name: str) -> tuple[list[int], list[float]]:
    """Return steps and finite values of one field; records without it are left out."""
    points = [
        (record.step, value) for record in records if (value := record.number(name)) is not None
    ]
    return [step for step, _ in points], [value for _, value in points]
