"""A job: all that one command does with a recipe, as phases. Each has its time, its memory on the
device and its verdict; what they come to is what the job takes. No torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from brimful.base.types import JsonDict
from brimful.planning.cost import Conditions, cost, energy
from brimful.planning.plan import Plan, Prediction, Predictions, Verdict, summed

TRAINING, SAMPLING, VERIFYING, ANSWERS = "training", "sampling", "verifying", "task answers"
REFERENCE, SCORING, HELD_OUT = "reference", "scoring", "held-out answers"
"""Names of phases, in plans, journals of chains and reports."""
SOURCES = {
    SAMPLING: "answers",
    ANSWERS: "answers",
    HELD_OUT: "answers",
    REFERENCE: "training",
    SCORING: "training",
}
"""What the error of a phase's time comes from, where that is not the phase itself."""
OF_JOB = ("total_time_s", "energy_wh", "cost_usd")
"""Predictions of the whole job."""
ORDER: tuple[Verdict, ...] = ("fits", "uncertain", "does not fit")


@dataclass(frozen=True)
class JobPhase:
    """One kind of work of a job, with all its repetitions.

    Attributes:
        name: One of the names above.
        about: How often, and of what; or why nothing is known.
        time_s: Time of all of it; None where it is not known.
        memory: Peak on the device in bytes; None where it takes none, or that is not known.
        usable_bytes: Memory of the device that it can use.
        verdict: Whether it fits there.
        variant: The variant of a study; of others empty.
    """

    name: str
    about: str
    time_s: Prediction | None
    memory: Prediction | None = None
    usable_bytes: int = 0
    verdict: Verdict = "fits"
    variant: str = ""

    @property
    def title(self) -> str:
        """`training of lora-8`."""
        return f"{self.name} of {self.variant}" if self.variant else self.name

    @property
    def _need(self) -> tuple[int, float]:
        used = self.memory.value / self.usable_bytes if self.memory and self.usable_bytes else 0.0
        return ORDER.index(self.verdict), used

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class WholeJob:
    """What a recipe's job takes on one device.

    Attributes:
        phases: Phases in order.
        conditions: Price and power of the device.
        planned: The variant of a study whose plan is shown.
        with_steps: Returns the same job with another number of optimizer steps in each training.
        plans: Plans of the trainings that fit, by variant of a study; "" is that of all others.
    """

    phases: tuple[JobPhase, ...]
    conditions: Conditions = field(default_factory=Conditions)
    planned: str = ""
    with_steps: "Callable[[int], WholeJob] | None" = field(default=None, repr=False, compare=False)
    plans: Mapping[str, Plan] = field(default_factory=dict, repr=False, compare=False)

    @property
    def worst(self) -> JobPhase:
        """The phase that decides whether the job fits: the one that needs most memory among those
        with the worst verdict.
        """
        return max(self.phases, key=lambda phase: phase._need)

    @property
    def verdict(self) -> Verdict:
        return self.worst.verdict

    @property
    def predicted(self) -> Predictions:
        """Time, energy and cost of the whole job, by the names in OF_JOB, as far as known."""
        total = total_of(self.phases)
        if total is None:
            return {}
        predicted = {"total_time_s": total}
        if self.conditions.power_w:
            predicted["energy_wh"] = energy(total, self.conditions.power_w)
        if self.conditions.price is not None:
            predicted["cost_usd"] = cost(total, self.conditions.price)
        return predicted

    def predicted_at(self, steps: int) -> Predictions:
        """`predicted`, with another number of optimizer steps in each training."""
        return self.predicted if self.with_steps is None else self.with_steps(steps).predicted

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        return {
            "verdict": self.verdict,
            "worst_phase": self.worst.title,
            "phases": [phase.to_json() for phase in self.phases],
            "predicted": {name: asdict(entry) for name, entry in self.predicted.items()},
        }


def total_of(phases: Sequence[JobPhase]) -> Prediction | None:
    """Return the time of all phases that fit; None where one of them is not known, or none fits."""
    done = [phase for phase in phases if phase.verdict != "does not fit"]
    times = [
        (SOURCES.get(phase.name, phase.name), phase.time_s)
        for phase in done
        if phase.time_s is not None
    ]
    if not times or len(times) < len(done):
        return None
    basis = "the phases one after another" if len(times) > 1 else times[0][1].basis
    return summed(times, basis)
