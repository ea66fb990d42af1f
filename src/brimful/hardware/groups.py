"""Several devices of one kind in a job, as a person writes them: `8 x H100`, `2 x 8 x H100`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from brimful.base.errors import DeviceError
from brimful.hardware import catalog
from brimful.hardware.device import Device

MOST_PER_MACHINE = 8
"""GPUs of a machine, as vendors build and providers rent them (NVIDIA HGX, AMD's UBB)."""
MOST_NAMES = 3
"""Names of devices in one line."""
_GROUP = re.compile(r"\s*(\d+)\s*[x×*]\s*(?:(\d+)\s*[x×*]\s*)?(.+)", re.IGNORECASE)

_ANOTHER = re.compile(r"\d\s*[x×*]\s", re.IGNORECASE)
"""A further number of devices, where a name is expected."""
_TURNED = re.compile(r"\s*(.*[a-z\d]\S*)\s+[x×*]\s*(\d{1,3})\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Group:
    """Devices of one kind that share a job.

    Attributes:
        device: One of them.
        per_machine: How many devices each machine has.
        machines: How many there are.
    """

    device: Device
    per_machine: int = 1
    machines: int = 1

    @property
    def count(self) -> int:
        return self.per_machine * self.machines

    @property
    def name(self) -> str:
        """`2 x 8 x NVIDIA H100 80GB HBM3`; of one device its name."""
        if self.count == 1:
            return self.device.name
        machines = f"{self.machines} x " * (self.machines > 1)
        return f"{machines}{self.per_machine} x {self.device.name}"

    @property
    def named_device(self) -> Device:
        """One of the devices, by the name of the group."""
        return replace(self.device, name=self.name)


def family_notes(texts: Iterable[str]) -> list[str]:
    """Return a sentence for each of several texts, as `parse` takes them, that names a family of
    devices: which of them is meant.
    """
    names = [found[3] if (found := _GROUP.fullmatch(text)) else text.strip() for text in texts]
    return [note for name in dict.fromkeys(names) if (note := catalog.family_note(name))]


def parse(text: str) -> Group:
    """Return the devices of the catalog that a text names.

    Raises:
        DeviceError: no such device; several kinds in one job; a number that no machine holds.
    """
    if "+" in text:
        raise DeviceError(
            f"{text!r}: a job runs on devices of one kind, because all wait for the slowest. To"
            " compare, separate them by a comma."
        )
    if turned := _TURNED.fullmatch(text):
        raise DeviceError(f"{text!r}: write the number first, {f'{turned[2]} x {turned[1]}'!r}.")
    found = _GROUP.fullmatch(text)
    if found is None:
        return Group(catalog.get(text))
    first, second, name = int(found[1]), found[2], found[3]
    if _ANOTHER.search(name):
        raise DeviceError(
            f"{text!r}: a job has one number of devices of one kind, or a number of machines and"
            " that of devices in each, such as '2 x 8 x NAME'. To compare jobs, separate them by a"
            " comma."
        )
    if name == "here":
        raise DeviceError(
            f"{text!r}: name a device of the catalog; `brimful devices` lists them. Several devices"
            " of this machine are planned for as a run starts: `brimful train --devices N`."
        )
    machines, per_machine = (first, int(second)) if second else (1, first)
    if not machines or not per_machine:
        raise DeviceError(f"{text!r}: a job needs at least one device.")
    if per_machine > MOST_PER_MACHINE:
        whole, rest = divmod(per_machine * machines, MOST_PER_MACHINE)
        instead = f"{whole + bool(rest)} x {MOST_PER_MACHINE} x {name}"
        raise DeviceError(
            f"{text!r}: a machine holds at most {MOST_PER_MACHINE} devices. Write {instead!r} for"
            " several machines."
        )
    device = catalog.get(name)
    if not shares_jobs(device) and per_machine * machines > 1:
        raise DeviceError(f"{text!r}: {device.name} cannot share a job with others. Leave one.")
    return Group(device, per_machine, machines)


def shares_jobs(device: Device) -> bool:
    """Return whether several of a device can train one model together."""
    return device.kind == "cuda"


def alone_though_asked(devices: Iterable[Device]) -> str | None:
    """Return which devices are planned alone where groups of each are asked for, and why; None
    where all can share a job.
    """
    names = list(dict.fromkeys(each.name for each in devices if not shares_jobs(each)))
    if not names:
        return None
    shown = ", ".join(names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        shown += f" and {len(names) - MOST_NAMES} more"
    return f"{shown} cannot share a job with others, so --up-to adds no groups: one is planned."


def growing(device: Device, most: int) -> list[Group]:
    """Return groups of 1, 2, 4, ... devices up to `most`; beyond a machine in whole machines."""
    counts = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return [group_of(device, count) for count in counts if count == 1 or shares_jobs(device)]


def group_of(device: Device, count: int) -> Group:
    """Return a number of devices in as few machines as hold them.

    Args:
        count: A power of two.

    Raises:
        DeviceError: the device cannot share a job.
    """
    if not shares_jobs(device) and count > 1:
        raise DeviceError(f"{device.name} cannot share a job with others.")
    return Group(device, min(count, MOST_PER_MACHINE), max(1, count // MOST_PER_MACHINE))
