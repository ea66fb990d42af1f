"""Time that several devices take to exchange weights and gradients, and how much of it their
computing hides. No torch.

Computing, gathering and the program combine by the norm of RUN_AHEAD_NORM, and a share of what is
gathered is never hidden. The expected figures are those that benchmarks/time_truth.py fits to
published runs on several GPUs (hardware/efficiencies.toml); benchmarks/time_plans.py tells how near
this model comes to such runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brimful.base.types import Numbers
from brimful.hardware import fitted
from brimful.hardware.catalog import link_of
from brimful.hardware.groups import Group
from brimful.hardware.links import measured as measured_link
from brimful.planning.plan import Prediction, Spread
from brimful.planning.timing import RUN_AHEAD_NORM, StepTime

LINK_SHARES = {
    "NVLink": (0.45, 0.80),
    "Infinity Fabric": (0.40, 0.80),
    "PCIe": (0.20, 0.75),
}
"""Low and high rate of a collective over the link's in one direction (assumptions; NCCL's tests
reach 0.78 on A100). Expected is what was fitted; Infinity Fabric as NVLink (assumption).
"""
PCIE_BYTES_PER_S = 32e9
"""One direction of the links of the GPUs whose runs were fitted: PCIe 4.0 with 16 lanes."""
UNKNOWN_LINK = (2e9, 10e9, 300e9)
"""Bytes per second where the catalog has no link (assumption)."""
MEASURED_SHARES = (0.8, 1.1)
"""Low and high rate over one that `brimful calibrate --devices all` measured (assumption)."""
MACHINE_BYTES_PER_S = {8: 200e9, 9: 400e9, 10: 400e9}
"""Network of a machine of eight NVLink GPUs in one direction, by generation: a card of 200 or 400
Gbit/s for each GPU (NVIDIA DGX data sheets).
"""
OTHER_MACHINE_BYTES_PER_S = 12.5e9
"""Of any other machine: 100 Gbit/s (assumption)."""
MACHINE_SHARES = (0.25, 1.10)
"""Of that, low and high. Low: what providers rent with fewer cards (assumption)."""
NEVER_HIDDEN = (0.10, 0.60)
"""Share of a gather that no computing hides, or that slows computing down: low and high
(assumptions).
"""
LAST_BACKWARD = 2 / 3
"""Of a pass, the backward pass, during which replicated gradients are sent."""


@dataclass(frozen=True)
class Reached:
    """What exchanges between devices reach, as expected.

    Attributes:
        nvlink: Rate of a collective over NVLink's in one direction.
        pcie_bytes_per_s: The same between GPUs that PCIe joins, through the host.
        node: Rate between machines over that of their network cards.
        unit_s: Time of the program for each unit that FSDP gathers in a pass.
        never_hidden: Share of a gather that no computing hides, or that slows computing down.
    """

    nvlink: float
    pcie_bytes_per_s: float
    node: float
    unit_s: float
    never_hidden: float

    @classmethod
    def of(cls, values: Numbers) -> "Reached":
        """Return what fitted values say, by their names in efficiencies.toml."""
        names = ("nvlink", "pcie", "node", "host unit", "exposed")
        return cls(*(values[name] for name in names))

    def share_of(self, link: str) -> float:
        """Return the rate of a collective over that of a link, by the link's kind."""
        return self.pcie_bytes_per_s / PCIE_BYTES_PER_S if link == "PCIe" else self.nvlink


@dataclass(frozen=True)
class Exchange:
    """What a device exchanges with the others.

    Attributes:
        gathered_bytes: Weights that are gathered in one pass over the model.
        gradient_bytes: The bytes of the gradients of all trained weights.
        units: Groups of weights that are gathered one after another.
    """

    gathered_bytes: int
    gradient_bytes: int
    units: int


@dataclass(frozen=True)
class Links:
    """How long it takes to gather a byte of what devices hold parts of, in seconds.

    Attributes:
        within_s: Seconds among the devices of a machine.
        between_s: Seconds among machines, all devices of each at once.
    """

    within_s: float
    between_s: float

    @property
    def all_s(self) -> float:
        """Among all devices of all machines."""
        return max(self.within_s, self.between_s)


def waiting_time(
    time: StepTime,
    passes: int,
    group: Group,
    spread: Spread,
    exchange: Exchange,
    reached: Reached | None = None,
) -> Prediction:
    """Return the seconds that a step takes longer because its devices exchange what they must:
    fewer where links are fast, more where they are slow.

    Args:
        time: The time of one device's share, without waiting.
        passes: Forward and backward passes of its step.
        group: The devices.
        spread: How the model is spread over them.
        exchange: The exchange of one device.
        reached: Expected rates; None: as fitted.
    """
    reached = reached or Reached.of(fitted.efficiencies().values)
    least, most = NEVER_HIDDEN
    hidden = (
        min(least, reached.never_hidden),
        reached.never_hidden,
        max(most, reached.never_hidden),
    )
    low, expected, high = (
        _waiting_s(time, passes, spread, exchange, links, replace(reached, never_hidden=share))
        for links, share in zip(_links_of(group, reached), hidden, strict=True)
    )
    link = link_of(group.device.name)
    joined = "a link that is not known" if link is None else link.name
    if measured_link(group.device.name):
        joined = "links whose rate was measured here"
    basis = f"{group.count} devices, joined by {joined}"
    if group.machines > 1:
        basis += ", and by a network between machines that is assumed"
    return Prediction(expected, low, high, basis)


def _waiting_s(
    time: StepTime,
    passes: int,
    spread: Spread,
    exchange: Exchange,
    links: Links,
    reached: Reached,
) -> float:
    """Return the seconds of a step in which a device only waits."""
    pass_s = (time.seconds - time.terms.get("optimizer update", 0.0)) / passes
    parts_bytes = 2 * exchange.gathered_bytes + exchange.gradient_bytes
    if spread == "replicated":
        sent_s = 2 * exchange.gradient_bytes * links.all_s
        return _exposed(LAST_BACKWARD * pass_s, (sent_s, 0.0), reached.never_hidden)
    sent_s = parts_bytes * links.all_s
    if spread == "hybrid":
        sent_s = parts_bytes * links.within_s + 2 * exchange.gradient_bytes * links.between_s
    program_s = 2 * exchange.units * reached.unit_s
    return passes * _exposed(pass_s, (sent_s, program_s), reached.never_hidden)


def _exposed(computing_s: float, beside_s: Sequence[float], never_hidden: float) -> float:
    norm = RUN_AHEAD_NORM
    together: float = sum(each**norm for each in (computing_s, *beside_s)) ** (1 / norm)
    return together - computing_s + never_hidden * beside_s[0]


def _links_of(group: Group, reached: Reached) -> list[Links]:
    """Return how long a byte takes: fast, expected and slow."""
    link = link_of(group.device.name)
    rates = UNKNOWN_LINK
    if link is not None:
        kind = next(kind for kind in LINK_SHARES if link.name.startswith(kind))
        low, high = LINK_SHARES[kind]
        shares = _around(low, reached.share_of(kind), high)
        slow, expected, fast = (share * link.bytes_per_s for share in shares)
        rates = (slow, expected, fast)
    if here := measured_link(group.device.name):
        slow, fast = MEASURED_SHARES
        rates = (slow * here.bytes_per_s, here.bytes_per_s, fast * here.bytes_per_s)
    within = [(1 - 1 / group.per_machine) / rate for rate in rates]
    between = [0.0, 0.0, 0.0]
    if group.machines > 1:
        generation = (group.device.compute_capability or (0, 0))[0]
        whole = OTHER_MACHINE_BYTES_PER_S
        if link is not None and link.name.startswith("NVLink"):
            whole = MACHINE_BYTES_PER_S.get(generation, whole)
        low, high = MACHINE_SHARES
        shares = _around(low, reached.node, high)
        between = [(1 - 1 / group.machines) / (share * whole) for share in shares]
    return [Links(*pair) for pair in reversed(list(zip(within, between, strict=True)))]


def _around(low: float, expected: float, high: float) -> tuple[float, float, float]:
    """Return the three in order, where a fit may lie outside of what was assumed."""
    return min(low, expected), expected, max(high, expected)
