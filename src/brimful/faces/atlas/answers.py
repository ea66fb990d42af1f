"""The tables of an atlas as plain values: what each question takes on each device.

A device's cell is a list in the order of `CELL`, or one number: the place in `reasons` of why
nothing can be said.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from brimful.base.errors import PlanError, RequestError
from brimful.base.types import JsonDict
from brimful.base.units import MIB
from brimful.faces.atlas.scope import Question
from brimful.faces.studio.fit import surveyed_for
from brimful.faces.studio.fit_request import FitRequest
from brimful.planning.plan import Prediction
from brimful.planning.surveyed import Unplanned
from brimful.report.plan.table import Entry, times_of

CELL = (
    "verdict",
    "peak_mib",
    "peak_low_mib",
    "peak_high_mib",
    "micro_batch",
    "accumulation",
    "how",
    "step_s",
    "step_low_s",
    "step_high_s",
)
"""What a cell holds. `verdict` is a place in VERDICTS, `how` one in `ways`; where it does
not fit, the seconds are left out.
"""
VERDICTS = ("fits", "uncertain", "does not fit")
HOW = ("precision", "attention", "recompute", "compile")
"""Choices of a plan that a way names, in this order."""


@dataclass
class Tables:
    """The tables of one model and method: a table for each length, batch and number of tokens.

    Attributes:
        title: What is trained, but for length and batch.
        recipe: The first question's recipe, as YAML; others differ in `sequence_length`,
            `sequences` and `tokens`.
        tables: Tables by `LENGTH/BATCH/TOKENS`: a cell for each device, in the order of the atlas;
            or the name of a table that is equal.
        ways: Precision, attention, recomputation and compiling, as cells name them by number.
        reasons: Why nothing can be said of a device, as cells name them by number.
        left_out: `LENGTH/BATCH/TOKENS` -> why there is no table.
    """

    model: str
    method: str
    title: str = ""
    recipe: str = ""
    parameters: int = 0
    trainable: int = 0
    tables: dict[str, list[Any] | str] = field(default_factory=dict)
    ways: list[list[Any]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, question: Question, devices: Sequence[str]) -> None:
        """Answer a question for these devices, or note why it cannot be planned for at all."""
        key = key_of(question)
        try:
            found, surveyed = surveyed_for(
                FitRequest(
                    question.model,
                    method=question.method,
                    sequence_length=question.length,
                    effective_batch=question.batch,
                    tokens=question.tokens,
                    devices=tuple(devices),
                )
            )
        except (PlanError, RequestError) as error:
            self.left_out[key] = str(error)
            return
        self.title = self.title or found.title.rpartition(", ")[0]
        self.recipe = self.recipe or found.to_yaml()
        table = [self.cell(entry) for entry in surveyed]
        self.tables[key] = next(
            (name for name, each in self.tables.items() if each == table), table
        )

    def cell(self, entry: Entry) -> list[Any] | int:
        """Return the cell of a device; ways and reasons that are new are added."""
        if isinstance(entry, Unplanned):
            return _place(self.reasons, entry.reason)
        footprint, plan = entry.derived.footprint, entry.derived.plan
        self.parameters, self.trainable = footprint.parameters, footprint.trainable
        made = {choice.name: choice.value for choice in plan.choices}
        cell: list[Any] = [
            VERDICTS.index(footprint.verdict),
            *_rounded(footprint.driver, 1 / MIB),
            footprint.micro_batch,
            len(plan.micro_batches),
            _place(self.ways, [made.get(name) for name in HOW]),
        ]
        if step_time := times_of(entry).get("step_time_s"):
            cell += _rounded(step_time)
        return cell

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        return asdict(self)


def key_of(question: Question) -> str:
    """Return the name of a question's table."""
    return f"{question.length}/{question.batch}/{question.tokens}"


def tables_of(
    questions: Sequence[Question],
    devices: Sequence[str],
    answered: Callable[[Question], None],
) -> Tables:
    """Answer questions about one model and method.

    Args:
        questions: Questions, at least one.
        devices: Exact names from the catalog.
        answered: Is told each question when it is answered.
    """
    tables = Tables(questions[0].model, questions[0].method)
    for question in questions:
        tables.add(question, devices)
        answered(question)
    return tables


def _place(known: list[Any], value: object) -> int:
    """Return where a value stands in a list; it is added at the end if it is new."""
    if value not in known:
        known.append(value)
    return known.index(value)


def _rounded(prediction: Prediction, scale: float = 1.0) -> list[float]:
    ends = (prediction.value, prediction.low, prediction.high)
    return [_to_digits(end * scale) for end in ends]


def _to_digits(value: float) -> float:
    """Return a number rounded to ten significant digits; whole ones as int, to save space.

    Pages show up to six digits of these numbers and of what is computed from them. With no more
    than six here, some pages differed by one in the last digit from `brimful plan`.
    """
    rounded = float(f"{value:.10g}")
    return int(rounded) if rounded == int(rounded) else rounded
