"""What short measurements found of this machine, kept from one start to the next: matrix rates, and
timed passes of steps. Plain JSON in the cache folder; no torch.

An entry is measured again where other programs disturbed it, where it is old, where torch or the
number of threads is another, and where a run took another time than it says.
"""

import hashlib
import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from brimful.base.env import cache_folder
from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_json, remove_file, write_json_atomically
from brimful.base.types import Json, Numbers
from brimful.hardware.calibration import current_versions, is_same_minor, path_of

SCHEMA = 3
BUSY_FROM = 0.05
"""Share of the wanted processor time that other programs took, from which a measurement counts as
disturbed.
"""
BF16_PAYS_FROM = 1.3
"""Rate of bf16 products over that of fp32, measured on a CPU, from which casting pays (assumption).
"""
UNSURE = 1.15
"""Nearer to `BF16_PAYS_FROM` than by this factor, what was decided before stays."""
KEPT_S = 30 * 86_400.0
"""An entry is measured again after a month: drivers, firmware and settings change."""
MOST_STEPS = 300


@dataclass(frozen=True)
class MatrixRates:
    """Rates of matrix products of one CPU.

    Attributes:
        flop_per_s: Rate of one thread by dtype: the fastest that any measurement or run has shown.
        lost_share: Share of the processor time that other programs took in the least disturbed
            measurement.
        made: Time of that, in seconds since the epoch.
        torch: Version that measured.
        bf16_pays: Products in bf16 are so much faster than in fp32 that casting to it pays.
    """

    flop_per_s: Numbers = field(hash=False)
    lost_share: float
    made: float
    torch: str
    bf16_pays: bool


@dataclass(frozen=True)
class KeptRates:
    """Everything kept about a device.

    Attributes:
        matrix: None where none was measured.
        steps: Timed passes as JSON, by a digest of what was timed.
        doubted: Time at which a run last took another time than was kept, in seconds since the
            epoch; older entries are measured again.
    """

    matrix: MatrixRates | None = None
    steps: Json = field(hash=False, default_factory=dict)
    doubted: float = 0.0

    def is_fresh(self, made: float, lost_share: float, now: float) -> bool:
        """Return whether an entry still holds."""
        is_recent = self.doubted < made <= now <= made + KEPT_S
        return is_recent and lost_share < BUSY_FROM


def read_kept(device_name: str) -> KeptRates:
    """Return what is kept about a device; nothing where the file is missing, damaged or of another
    version.
    """
    path = kept_path(device_name)
    if not path.exists():
        return KeptRates()
    try:
        values = read_json(path, is_cached=True)
        if values["schema"] != SCHEMA:
            return KeptRates()
        matrix = None if values["matrix"] is None else MatrixRates(**values["matrix"])
        if matrix is not None:
            if not is_same_minor(matrix.torch, current_versions()["torch"]):
                return KeptRates()
            matrix = replace(matrix, flop_per_s=dict(matrix.flop_per_s))
        return KeptRates(matrix, dict(values["steps"]), float(values["doubted"]))
    except (RunFolderError, KeyError, TypeError, ValueError, AttributeError):
        return KeptRates()  # a damaged file is measured again


def keep_matrix_rates(
    device_name: str,
    flop_per_s: Numbers,
    lost_share: float,
    *,
    has_bf16_instructions: bool = False,
) -> MatrixRates:
    """Keep measured rates of one thread, and return the fastest seen so far.

    Whether bf16 pays follows from their ratio. Where that is near the border, it stays as it was,
    and the instructions decide for a first measurement that other programs disturbed.
    """
    kept, measured_at = read_kept(device_name), time.time()
    before = kept.matrix
    fastest = dict(flop_per_s)
    if before is not None:
        for dtype, rate in before.flop_per_s.items():
            fastest[dtype] = max(rate, fastest.get(dtype, 0.0))
        is_sounder = kept.is_fresh(before.made, 0.0, measured_at)
        if is_sounder and before.lost_share < lost_share:
            measured_at, lost_share = before.made, before.lost_share
    gain = fastest.get("bf16", 0.0) / fastest.get("fp32", math.inf)
    bf16_pays = gain >= BF16_PAYS_FROM
    if 1 / UNSURE < gain / BF16_PAYS_FROM < UNSURE:
        if before is not None:
            bf16_pays = before.bf16_pays
        elif lost_share >= BUSY_FROM:
            bf16_pays = has_bf16_instructions
    torch = current_versions()["torch"]
    made = MatrixRates(fastest, lost_share, measured_at, torch, bf16_pays)
    _write(device_name, replace(kept, matrix=made))
    return made


def raise_matrix_rate(device_name: str, dtype: str, flop_per_s: float) -> bool:
    """Keep a rate of one thread that a run reached, if it is faster than the kept one; return
    whether it was.
    """
    kept = read_kept(device_name)
    if kept.matrix is None or flop_per_s <= kept.matrix.flop_per_s.get(dtype, 0.0):
        return False
    rates = {**kept.matrix.flop_per_s, dtype: flop_per_s}
    _write(device_name, replace(kept, matrix=replace(kept.matrix, flop_per_s=rates)))
    return True


def keep_step(device_name: str, key: str, timed: Json) -> None:
    """Keep the timed passes of a step."""
    kept = read_kept(device_name)
    steps = {name: step for name, step in kept.steps.items() if name != digest(key)}
    newest = list(steps.items())[-MOST_STEPS + 1 :]
    _write(device_name, replace(kept, steps={**dict(newest), digest(key): dict(timed)}))


def doubt(device_name: str) -> None:
    """Have everything measured again at the next start, because a run took another time."""
    _write(device_name, replace(read_kept(device_name), doubted=time.time()))


def forget(device_name: str) -> bool:
    """Delete what is kept about a device; return whether there was something."""
    return remove_file(kept_path(device_name))


def digest(key: str) -> str:
    """Return the name under which a step is kept."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def kept_path(device_name: str) -> Path:
    """Return the file of a device."""
    return cache_folder() / "rates" / path_of(device_name).name


def _write(device_name: str, kept: KeptRates) -> None:
    """Write the file. Errors are ignored: the next start then measures again."""
    path = kept_path(device_name)
    matrix = None if kept.matrix is None else asdict(kept.matrix)
    with suppress(OSError, RunFolderError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(
            path,
            {
                "schema": SCHEMA,
                "device": device_name,
                "matrix": matrix,
                "steps": dict(kept.steps),
                "doubted": kept.doubted,
            },
            with_checksum=True,
        )
