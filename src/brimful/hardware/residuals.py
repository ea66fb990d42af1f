"""How much more or less memory earlier runs on a device took than was predicted. No torch.

The tensors of a step are traced; what lies between and beside them is not. Part of that grows with
the tensors (holes of an allocator), part does not (libraries). So what a run took more is added in
proportion to the tensors where a plan has fewer, and never more of it; what it took less is taken
off.
"""

import statistics
from dataclasses import dataclass

from brimful.base.types import Numbers
from brimful.hardware.calibration import (
    LAST_RUNS,
    RunNote,
    current_versions,
    is_same_minor,
    stored,
)

PEAK = "peak_memory_bytes"
BESIDE_TENSORS = ("allocator slack", "process", "CUDA context and libraries")
"""Terms of a plan's memory that are no tensors."""
FEWEST_RUNS = 2
MOST_APART = 0.1
"""Runs agree if they lie within this share of the predicted peak (assumption)."""
MOST_SHARE = 0.25
"""A predicted peak is changed by at most this share of it (assumption)."""
SHRINKAGE_RUNS = 1
"""Number of runs with which a correction would go half of the way. One, not three as of times:
runs whose memory does not agree are not used at all.
"""
LEAST_MARGIN = 0.02
"""Least distance between the runs and an end of the interval, as a share of the predicted peak
(assumption).
"""


@dataclass(frozen=True)
class MemoryCorrection:
    """What earlier runs say about one predicted peak, in bytes to add to it.

    Attributes:
        bytes_: Bytes to add to the expected peak.
        low, high: Ends of an interval around what the runs took.
        runs: Their number.
    """

    bytes_: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Residuals:
    """Earlier runs of one kind. `runs`: of each, in bytes, by how much its peak was above its
    prediction, and its tensors. `unread`: why nothing could be read of them, empty where it could.
    """

    runs: tuple[tuple[float, float], ...] = ()
    unread: str = ""

    def at(self, tensors_bytes: float, peak_bytes: float) -> MemoryCorrection | None:
        """Return what the runs say about a plan with so many bytes of tensors and this predicted
        peak; None where there are fewer than two, or where they do not agree.

        With n runs and x what each says: bytes = median(x) n / (n + 1), at most a quarter of the
        peak.
        """
        # What was missing is taken off whole, so that memory still grows with the micro-batch.
        said = [
            more * min(1.0, tensors_bytes / own) if more > 0 else more for more, own in self.runs
        ]
        n = len(said)
        if n < FEWEST_RUNS or max(said) - min(said) > MOST_APART * peak_bytes:
            return None
        most, margin = MOST_SHARE * peak_bytes, LEAST_MARGIN * peak_bytes
        values = (
            statistics.median(said) * n / (n + SHRINKAGE_RUNS),
            min(said) - margin,
            max(said) + margin,
        )
        value, low, high = (min(max(each, -most), most) for each in values)
        return MemoryCorrection(value, low, high, n)


NO_RESIDUALS = Residuals()


def residuals_of(device_name: str, kind: str) -> Residuals:
    """Return the last runs of a kind on a device, with this minor version of torch.

    Args:
        device_name: Exact name.
        kind: Kind of memory, as in `RunNote.memory_kind`.
    """
    torch_now, kept = current_versions()["torch"], stored(device_name)
    found = [
        residual
        for run in kept.runs
        if kind and run.memory_kind == kind
        if is_same_minor(run.versions.get("torch", ""), torch_now)
        if (residual := residual_of(run)) is not None
    ]
    return Residuals(tuple(found[-LAST_RUNS:]), kept.note)


def residual_of(run: RunNote) -> tuple[float, float] | None:
    """Return by how many bytes a run's peak was above its prediction, and the bytes of its tensors;
    None where that is not known.
    """
    tensors = tensors_bytes(run.memory_terms)
    if PEAK not in run.measured or tensors <= 0:
        return None
    return run.measured[PEAK] - run.predicted[PEAK], tensors


def tensors_bytes(memory_terms: Numbers) -> float:
    """Return the bytes of a step's tensors, of its memory by term."""
    return sum(size for name, size in memory_terms.items() if name not in BESIDE_TENSORS)
