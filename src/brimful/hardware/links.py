"""What exchanges between the devices of this machine were measured to reach. Plain JSON, one file
per device in the cache folder; no torch. A file that cannot be read counts as none.
"""

import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from brimful.base.env import cache_folder
from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_json, remove_file, write_json_atomically


@dataclass(frozen=True)
class MeasuredLink:
    """Sums over all devices, timed.

    Attributes:
        device: Exact name of each.
        devices: How many took part.
        bytes_per_s: Rate of a large sum of n devices: 2 (1 - 1/n) of its bytes pass each device's
            link.
        latency_s: Time of a sum of a few bytes.
        backend: torch's library for it: nccl or gloo.
        torch: Version.
        made: Seconds since the epoch.
    """

    device: str
    devices: int
    bytes_per_s: float
    latency_s: float
    backend: str
    torch: str
    made: float

    @property
    def told(self) -> str:
        """What was measured, for people."""
        day = time.strftime("%Y-%m-%d", time.localtime(self.made))
        return (
            f"{self.devices} x {self.device}: {self.bytes_per_s / 1e9:.3g} GB/s each in sums over"
            f" all ({self.backend}, torch {self.torch}, measured {day}), {self.latency_s * 1e6:.0f}"
            " us for a few bytes"
        )


def path_of(device: str) -> Path:
    """Return the file of a device."""
    digest = hashlib.sha256(device.encode()).hexdigest()[:16]
    return cache_folder() / "links" / f"{digest}.json"


def save(link: MeasuredLink) -> None:
    """Store a measurement in place of an older one."""
    path = path_of(link.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomically(path, asdict(link), with_checksum=True)


def measured(device: str) -> MeasuredLink | None:
    """Return what was measured between devices of this name; None if nothing was."""
    path = path_of(device)
    if not path.is_file():
        return None
    try:
        link = MeasuredLink(**read_json(path, is_cached=True))
        is_sound = link.device == device and link.devices > 1 and link.bytes_per_s > 0
    except (RunFolderError, TypeError):
        return None
    return link if is_sound else None


def forget(device: str) -> bool:
    """Remove what was measured; return whether anything was."""
    return remove_file(path_of(device))
