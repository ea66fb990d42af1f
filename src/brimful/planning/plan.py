"""The Plan: how a recipe runs on one device, the reasons, and the predicted time and memory."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Literal

from brimful.base.errors import PlanError
from brimful.base.text import aligned_and_wrapped, setting_text, wrapped
from brimful.base.types import Counts, Json, JsonDict, Numbers
from brimful.base.units import format_between, format_count, format_named
from brimful.planning.step import Recompute

Verdict = Literal["fits", "uncertain", "does not fit"]
Spread = Literal["replicated", "sharded", "hybrid"]
PACKED_EXPERTS = "packed"
"""Value of the choice `experts` where their weights are in 4 bits, too."""
_UNITS = ("_bytes", "_s", "_wh", "_usd")


@dataclass(frozen=True)
class Choice:
    """One decision of the plan, with its reason and the second-best value."""

    name: str
    value: str | int | float | bool
    reason: str
    alternative: str | int | float | bool | None = None


@dataclass(frozen=True)
class Prediction:
    """An expected value with its interval, and how it was derived."""

    value: float
    low: float
    high: float
    basis: str

    def times(self, factor: float, basis: str = "") -> "Prediction":
        """Return so many of the same."""
        return Prediction(self.value * factor, self.low * factor, self.high * factor, basis)

    def by(self, other: "Prediction", basis: str = "") -> "Prediction":
        """Return the product with another positive number."""
        ends = self.low * other.low, self.high * other.high
        return Prediction(self.value * other.value, *ends, basis)


Predictions = dict[str, Prediction]
"""By the name of what is predicted."""


@dataclass(frozen=True)
class BaseScoring:
    """What a tuning run finds out about the model as it was before tuning.

    Attributes:
        loss_share: The share of the usual validation sequences whose loss is computed before the
            first step, 0 to 1; below 1 the tuned model is scored on the same ones at the end.
        samples: Whether both models continue the same prompts at the end.
        tasks: Whether the recipe's tasks are scored of it, too.
    """

    loss_share: float = 0.0
    samples: bool = False
    tasks: bool = False


def summed(parts: Iterable[tuple[str, Prediction]], basis: str) -> Prediction:
    """Return the sum of predictions, each with what its error comes from. Errors of one source are
    correlated, so their intervals add; those of several sources combine in quadrature.
    """
    value, below, above = 0.0, dict[str, float](), dict[str, float]()
    for source, part in parts:
        value += part.value
        below[source] = below.get(source, 0.0) + part.value - part.low
        above[source] = above.get(source, 0.0) + part.high - part.value
    return Prediction(
        value, value - math.hypot(*below.values()), value + math.hypot(*above.values()), basis
    )


def verdict_on(prediction: Prediction, limit: float) -> Verdict:
    """Return whether a predicted value surely, perhaps or surely not stays within a limit."""
    if prediction.high <= limit:
        return "fits"
    return "uncertain" if prediction.low <= limit else "does not fit"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that the training loop needs to know about the device.

    Attributes:
        micro_batches: Sequences per forward and backward pass of one optimizer step; their sum is
            the effective batch. On several devices those of the first rank, whose share of it is
            the largest.
        total_steps: Optimizer updates of the run; None where the length is in epochs and the data
            is not read yet.
        predicted: Predictions by name: peak_memory_bytes, on a GPU allocated_memory_bytes and
            device_memory_bytes; where a time is predicted step_time_s, tokens_per_s and mfu; and
            what `cost.whole_run` adds: training_time_s (steps alone), evaluation_time_s,
            checkpoint_time_s, start_time_s, of a tuning run base_time_s, of preferences
            reference_time_s, total_time_s, energy_wh and cost_usd, or billion_tokens_s and
            billion_tokens_usd; and base_answers_time_s, which comes after the run and is not part
            of its total.
        memory_terms: Bytes by term; they add up to the predicted peak.
        time_terms: Seconds of one step by term; they add up to the predicted step time. Empty where
            no time is predicted.
        evaluate_every: Optimizer steps between evaluations; None where that is not settled before
            the data are read, and in plans of earlier versions.
        evaluation_share: Time of scoring a sequence over time of training on it; None where no time
            is predicted.
        fixed_share: Share of the step time that does not shrink with its positions, as far as it
            was timed.
        correction: What predicted times were multiplied by because of earlier runs.
        rates_basis: What predicted times rest on: `hardware.calibration.basis_of` the rates.
        memory_kind: Runs of the same kind say something about each other's memory
            (`earlier_runs.memory_kind`); empty: of none, and in plans of earlier versions.
        memory_correction_bytes: What earlier runs added to the predicted peak.
        offload: What checkpointed blocks keep lies in the host's memory until the backward pass.
        base: What is found out about the model before tuning; None where nothing is tuned, and in
            plans of earlier versions.
        devices: How many share an optimizer step.
        whole_batch: The effective batch where several devices share it; None on one device.
        rows_per_sample: sequences that a sample makes: `Kind.rows_per_sample`.
        spread: replicated: each of them holds the whole model; sharded: a part of it; hybrid: a
            part, and each machine all parts.
        packs_experts: Experts are in 4 bits like linear layers; not in plans of earlier versions.
    """

    recipe: str
    device: Json
    choices: tuple[Choice, ...]
    micro_batches: tuple[int, ...]
    precision: str
    attention: str
    recompute: Recompute
    compile: bool
    offload: bool = False
    optimizer: str = "fused"
    packing: str = "stream"
    loss_chunk: int
    loader_workers: int = 1
    threads: int | None
    parameters: int
    sequence_length: int
    total_steps: int | None
    predicted: Predictions
    memory_terms: Counts
    time_terms: Numbers = field(default_factory=dict)
    evaluate_every: int | None = None
    evaluation_share: float | None = None
    fixed_share: float = 0.0
    correction: float = 1.0
    rates_basis: str = ""
    memory_kind: str = ""
    memory_correction_bytes: float = 0.0
    base: BaseScoring | None = None
    devices: int = 1
    whole_batch: int | None = None
    rows_per_sample: int = 1
    spread: Spread = "replicated"
    packs_experts: bool = False

    @property
    def lies_in_parts(self) -> bool:
        """Whether no device holds the whole model."""
        return self.devices > 1 and self.spread != "replicated"

    @property
    def effective_batch(self) -> int:
        return self.whole_batch or sum(self.micro_batches)

    @property
    def tokens_per_step(self) -> int:
        """Positions of an optimizer step of full sequences."""
        return self.effective_batch * self.rows_per_sample * self.sequence_length

    def to_json(self) -> JsonDict:
        """The content of plan.json."""
        values = asdict(self)
        predicted = values.pop("predicted")
        if self.rows_per_sample == 1:  # as plans of earlier versions
            values.pop("rows_per_sample")
        if not self.packs_experts:
            values.pop("packs_experts")
        full = [size for size in self.micro_batches if size == self.micro_batches[0]]
        return {
            **values,
            "micro_batch": self.micro_batches[0],
            "accumulation": len(full),
            "remainder": sum(self.micro_batches) - sum(full),
            "effective_batch": self.effective_batch,
            "predicted": (
                {name: entry["value"] for name, entry in predicted.items()}
                | {"parameters": self.parameters}
            ),
            "predicted_interval": {
                name: [entry["low"], entry["high"]] for name, entry in predicted.items()
            },
            "basis": {name: entry["basis"] for name, entry in predicted.items()},
        }

    def passes(self) -> str:
        """Return how an optimizer step is divided: `102 passes of 5 and one of 2`."""
        micro, full = self.micro_batches[0], self.to_json()["accumulation"]
        rest = sum(self.micro_batches) - full * micro
        where = f" on each of {self.devices} devices" * (self.devices > 1)
        passes = f"{full} pass{'es' * (full != 1)} of {micro}{f' and one of {rest}' * bool(rest)}"
        return passes + where

    def division(self) -> str:
        """Return the size of the model, and of an optimizer step and its passes, as a line."""
        rows = f"{self.rows_per_sample} x " * (self.rows_per_sample > 1)
        return (
            f"{format_count(self.parameters)} parameters, {self.effective_batch} x"
            f" {rows}{self.sequence_length} = {self.tokens_per_step:,} tokens a step, in"
            f" {self.passes()}"
        )

    def explain(self, width: int = 120) -> str:
        """Return the plan in lines of at most `width` characters: the division of a step, choices
        with reasons, predictions with what they rest on.
        """
        lines = wrapped(f"{self.device['name']}: {self.division()}", width, 2)
        rows = [(f"  {each.name}", setting_text(each.value), each.reason) for each in self.choices]
        lines += aligned_and_wrapped(rows, width)
        for name, entry in self.predicted.items():
            between = format_between(partial(format_named, name), entry.low, entry.high)
            unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
            label = name.replace("_per_s", " per second").removesuffix(unit).replace("_", " ")
            basis = f"{f'{between}; ' * bool(between)}{entry.basis}"
            value = format_named(name, entry.value)
            lines += wrapped(f"  predicted {label}: {value} ({basis})", width, 4)
        return "\n".join(lines)


def plan_from_json(values: Json) -> Plan:
    """Return the Plan that `to_json` described, also one of an earlier version without fields that
    have a default.

    Raises:
        PlanError: the values are not a plan.
    """
    try:
        predicted = {
            name: Prediction(values["predicted"][name], low, high, values["basis"][name])
            for name, (low, high) in values["predicted_interval"].items()
        }
        plain = {each.name: values[each.name] for each in fields(Plan) if each.name in values}
        if "fused_optimizer" in values:
            plain.setdefault("optimizer", "fused" if values["fused_optimizer"] else "for_loop")
        choices = tuple(Choice(**choice) for choice in values["choices"])
        if plain.get("base") is not None:
            plain["base"] = BaseScoring(**plain["base"])
        return Plan(
            **{
                **plain,
                "choices": choices,
                "micro_batches": tuple(values["micro_batches"]),
                "predicted": predicted,
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(
            f"not a plan that this version of brimful can read: {error!r}. Make a new one."
        ) from error
