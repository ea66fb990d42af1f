"""The result of planning a recipe on a device, to show and to write."""

from dataclasses import dataclass, field
from typing import Any

from brimful.hardware.device import Device
from brimful.planning.cost import Conditions
from brimful.planning.derive import Derived
from brimful.planning.memory import Footprint
from brimful.planning.plan import Verdict
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
    """

    derived: Derived
    table: tuple[Footprint, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    smallest_device: str | None = None
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def device(self) -> Device:
        return self.derived.prepared.device

    @property
    def verdict(self) -> Verdict:
        return self.derived.footprint.verdict

    def to_json(self) -> dict[str, Any]:
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
        }


@dataclass(frozen=True)
class Unplanned:
    """A device for which nothing can be said, and why."""

    device: Device
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"device": self.device.name, "verdict": "cannot be estimated", "reason": self.reason}
