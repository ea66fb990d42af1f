"""The result of planning a recipe on a device, to show and to write."""

from dataclasses import dataclass, field

from brimful.base.types import JsonDict
from brimful.hardware.device import Device
from brimful.planning.cost import Conditions
from brimful.planning.derive import Derived
from brimful.planning.job import OF_JOB, JobPhase, WholeJob
from brimful.planning.memory import Footprint
from brimful.planning.plan import Predictions, Verdict
from brimful.planning.remedies import Remedy


@dataclass(frozen=True)
class Surveyed:
    """A recipe on one device.

    Attributes:
        derived: The plan and its memory.
        table: Footprints of other micro-batches, the plan's among them.
        remedies: What would take less, where it does not surely fit; of one device among several
            only the cheapest change that makes it fit.
        smallest_device: The catalog's smallest NVIDIA device that holds the recipe as it is, or for
            several devices the smallest number of them; only where this one does not.
        conditions: What the cost of the plan rests on.
        job: All that the recipe does, of which the plan is one training; None: that alone.
    """

    derived: Derived
    table: tuple[Footprint, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    smallest_device: str | None = None
    conditions: Conditions = field(default_factory=Conditions)
    job: WholeJob | None = None

    @property
    def device(self) -> Device:
        return self.derived.prepared.device

    @property
    def chain(self) -> WholeJob | None:
        """The job, where it is more than the one training of the plan."""
        return self.job if self.job is not None and len(self.job.phases) > 1 else None

    @property
    def verdict(self) -> Verdict:
        return self.chain.verdict if self.chain else self.derived.footprint.verdict

    @property
    def memory(self) -> tuple[float, int]:
        """Bytes that the job's worst phase needs, and what it can use."""
        footprint, worst = self.derived.footprint, self.chain and self.chain.worst
        if isinstance(worst, JobPhase) and worst.memory is not None:
            return worst.memory.value, worst.usable_bytes
        return footprint.driver.value, footprint.usable_bytes

    @property
    def predicted(self) -> Predictions:
        """The plan's predictions, with time, energy and cost of the whole job."""
        predicted = self.derived.plan.predicted
        if self.chain is None:
            return predicted
        alone = {name: each for name, each in predicted.items() if name not in OF_JOB}
        return alone | self.chain.predicted

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        return {
            "device": self.device.name,
            "verdict": self.verdict,
            "largest_micro_batch": self.derived.largest,
            "plan": self.derived.plan.to_json(),
            "memory": self.derived.footprint.to_json(),
            "table": [footprint.to_json() for footprint in self.table],
            "remedies": [remedy.to_json() for remedy in self.remedies],
            "smallest_device": self.smallest_device,
            **({} if self.chain is None else {"job": self.chain.to_json()}),
        }


@dataclass(frozen=True)
class Unplanned:
    """A device for which nothing can be said, and why."""

    device: Device
    reason: str

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        return {"device": self.device.name, "verdict": "cannot be estimated", "reason": self.reason}
