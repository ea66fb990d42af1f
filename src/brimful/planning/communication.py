"""Time that several devices take to exchange weights and gradients, and how much of it their
computing hides. No torch.

The model and its figures are those that benchmarks/time_truth.py fits to published runs on several
GPUs (benchmarks/records/time_truth.json): computing, gathering and the program combine by the norm
of RUN_AHEAD_NORM, and a share of what is gathered is never hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brimful.hardware.catalog import link_of
from brimful.hardware.groups import Group
from brimful.planning.plan import Spread
from brimful.planning.timing import RUN_AHEAD_NORM, StepTime

LINK_SHARES = {
    "NVLink": (0.45, 0.61, 0.80),
    "Infinity Fabric": (0.40, 0.61, 0.80),
    "PCIe": (0.20, 0.32, 0.75),
}
"""Low, expected and high rate of a collective over the link's in one direction. NVLink: fitted
0.61, NCCL's tests 0.78 on A100. PCIe: fitted 10.2 of 32 GB/s between consumer GPUs, through the
host. Infinity Fabric: as NVLink (assumption). Low and high are assumptions.
"""
UNKNOWN_LINK = (2e9, 10e9, 300e9)
"""Bytes per second where the catalog has no link (assumption)."""
MACHINE_BYTES_PER_S = {8: 200e9, 9: 400e9, 10: 400e9}
"""Network of a machine of eight NVLink GPUs in one direction, by generation: a card of 200 or 400
Gbit/s for each GPU (NVIDIA DGX data sheets).
"""
OTHER_MACHINE_BYTES_PER_S = 12.5e9
"""Of any other machine: 100 Gbit/s (assumption)."""
MACHINE_SHARES = (0.25, 1.03, 1.10)
"""Of that; fitted 1.03. Low: what providers rent with fewer cards (assumption)."""
UNIT_S = 0.00126
"""Time of the program for each unit that FSDP gathers in a pass (fitted)."""
NEVER_HIDDEN = (0.10, 0.24, 0.60)
"""Share of a gather that no computing hides, or that slows computing down: fitted 0.24; low and
high are assumptions.
"""
LAST_BACKWARD = 2 / 3
"""Of a pass, the backward pass, during which replicated gradients are sent."""


@dataclass(frozen=True)
class Exchange:
    """What a device exchanges with the others.

    Attributes:
        gathered_bytes: Weights that are gathered in one pass over the model.
        gradient_bytes: Of all trained weights.
        units: Groups of weights that are gathered one after another.
    """

    gathered_bytes: int
    gradient_bytes: int
    units: int


@dataclass(frozen=True)
class Shared:
    """The time of a step on several devices.

    Attributes:
        time: Expected.
        low_s, high_s: What waiting takes, where links are fast or slow; in `time` it is the term
            "communication".
        basis: What it rests on.
    """

    time: StepTime
    low_s: float
    high_s: float
    basis: str


@dataclass(frozen=True)
class Links:
    """How long it takes to gather a byte of what devices hold parts of, in seconds.

    Attributes:
        within_s: Among the devices of a machine.
        between_s: Among machines, all devices of each at once.
    """

    within_s: float
    between_s: float

    @property
    def all_s(self) -> float:
        """Among all devices of all machines."""
        return max(self.within_s, self.between_s)


def shared_time(
    time: StepTime, passes: int, group: Group, spread: Spread, exchange: Exchange
) -> Shared:
    """Return the time of a step whose devices exchange what they must.

    Args:
        time: Of one device's share, without waiting.
        passes: Forward and backward passes of its step.
        group: The devices.
        spread: How the model is spread over them.
        exchange: Of one device.
    """
    low, expected, high = (
        _waiting_s(time, passes, spread, exchange, links, never_hidden)
        for links, never_hidden in zip(_links_of(group), NEVER_HIDDEN, strict=True)
    )
    together = replace(
        time, seconds=time.seconds + expected, terms={**time.terms, "communication": expected}
    )
    link = link_of(group.device.name)
    joined = "a link that is not known" if link is None else link.name
    basis = f"{group.count} devices, joined by {joined}"
    if group.machines > 1:
        basis += ", and by a network between machines that is assumed"
    return Shared(together, low, high, basis)


def _waiting_s(
    time: StepTime,
    passes: int,
    spread: Spread,
    exchange: Exchange,
    links: Links,
    never_hidden: float,
) -> float:
    """Return the seconds of a step in which a device only waits."""
    pass_s = (time.seconds - time.terms.get("optimizer update", 0.0)) / passes
    parts_bytes = 2 * exchange.gathered_bytes + exchange.gradient_bytes
    if spread == "replicated":
        sent_s = 2 * exchange.gradient_bytes * links.all_s
        return _exposed(LAST_BACKWARD * pass_s, (sent_s, 0.0), never_hidden)
    sent_s = parts_bytes * links.all_s
    if spread == "hybrid":
        sent_s = parts_bytes * links.within_s + 2 * exchange.gradient_bytes * links.between_s
    return passes * _exposed(pass_s, (sent_s, 2 * exchange.units * UNIT_S), never_hidden)


def _exposed(computing_s: float, beside_s: Sequence[float], never_hidden: float) -> float:
    norm = RUN_AHEAD_NORM
    together: float = sum(each**norm for each in (computing_s, *beside_s)) ** (1 / norm)
    return together - computing_s + never_hidden * beside_s[0]


def _links_of(group: Group) -> list[Links]:
    """Return how long a byte takes: fast, expected and slow."""
    link = link_of(group.device.name)
    rates = UNKNOWN_LINK
    if link is not None:
        kind = next(kind for kind in LINK_SHARES if link.name.startswith(kind))
        low, expected, high = (share * link.bytes_per_s for share in LINK_SHARES[kind])
        rates = (low, expected, high)
    within = [(1 - 1 / group.per_machine) / rate for rate in rates]
    between = [0.0, 0.0, 0.0]
    if group.machines > 1:
        generation = (group.device.compute_capability or (0, 0))[0]
        whole = OTHER_MACHINE_BYTES_PER_S
        if link is not None and link.name.startswith("NVLink"):
            whole = MACHINE_BYTES_PER_S.get(generation, whole)
        between = [(1 - 1 / group.machines) / (share * whole) for share in MACHINE_SHARES]
    return [Links(*pair) for pair in reversed(list(zip(within, between, strict=True)))]
