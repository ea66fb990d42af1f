"""The stored calibration of a device: its measured rates, and measurements of runs beside their
predictions. Plain JSON; no torch.

One file per device in the cache folder. A file that cannot be read is ignored with a note, and the
next save replaces it.
"""

import hashlib
import math
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from brimful.base.env import cache_folder, hidden_instructions
from brimful.base.errors import RunFolderError
from brimful.base.libraries import version_of
from brimful.base.rundir import read_json, remove_file, write_json_atomically
from brimful.base.text import plural
from brimful.base.types import Bounds, Json, JsonDict, Numbers, Texts
from brimful.hardware.device import Device
from brimful.hardware.rates import Rates

SCHEMA = 1
LAST_RUNS = 20
"""Number of last runs that a correction uses."""
KEPT_RUNS = 200
SHRINKAGE_RUNS = 3
"""Number of runs with which a correction goes half of the way."""
LEAST_LOG_SPREAD = 0.2
"""Least half-width of the prior 90 % interval of log(measured / predicted); assumption."""
APPLIED = ("step_time_s",)
"""Predictions that are corrected; the others are only stored and shown."""


@dataclass(frozen=True)
class Calibration:
    """Measured rates of one device and the conditions that they are valid for.

    Attributes:
        device: Its exact name.
        rates: The roofline's parameters.
        threads: Number of CPU threads; None on GPUs.
        extras: Further rates by name: disk_bytes_per_s (written and synced), loader_tokens_per_s,
            ...
        versions: brimful, python, torch, and the driver where there is one.
        made: Seconds since the epoch.
        points: Number of measured operators.
    """

    device: str
    rates: Rates = field(hash=False)
    threads: int | None
    extras: Numbers = field(hash=False)
    versions: Texts = field(hash=False)
    made: float
    points: int

    def to_json(self) -> JsonDict:
        """Plain values for JSON; `from_json` gives an equal Calibration."""
        return {**asdict(self), "rates": self.rates.to_json()}

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """The Calibration that `to_json` described.

        Raises:
            KeyError, TypeError, ValueError: a key is missing or unknown, or a rate is not positive
                and finite.
        """
        rates = Rates.from_json(value["rates"])
        per_class = [
            *rates.flop_per_s.values(),
            rates.bytes_per_s,
            rates.cached_bytes_per_s,
            value["extras"],
        ]
        wrong = [
            speed
            for speeds in per_class
            for speed in speeds.values()
            if not (math.isfinite(speed) and speed > 0)
        ]
        if wrong:
            raise ValueError(f"a rate is {wrong[0]}")
        return cls(**{**value, "rates": rates})

    def mismatch(self, threads: int | None) -> str:
        """Return why it does not hold for this torch and number of threads; "" if it does."""
        if _minor(self.versions.get("torch", "")) != _minor(version_of("torch") or ""):
            return (
                f"it was measured with torch {self.versions.get('torch')}, this is"
                f" {version_of('torch') or ''}"
            )
        if self.threads != threads:
            return f"it was measured with {self.threads} threads, the plan uses {threads}"
        return ""


@dataclass(frozen=True)
class Described:
    """What ran, for later plans and for people who compare runs. Plain values, without names of
    people, folders or files.

    Attributes:
        memory_kind: Runs of one kind say something about each other's memory; empty: of none.
        memory_terms: Predicted bytes by term; they add up to the predicted peak.
        time_terms: Predicted seconds of a step by term.
        shown: Value, low and high by name, as the plan showed them, corrections included.
        settings: Settings of recipe and plan: what decides memory and time.
    """

    memory_kind: str = ""
    memory_terms: Numbers = field(hash=False, default_factory=dict)
    time_terms: Numbers = field(hash=False, default_factory=dict)
    shown: Mapping[str, Sequence[float]] = field(hash=False, default_factory=dict)
    settings: Json = field(hash=False, default_factory=dict)


NOT_DESCRIBED = Described()


@dataclass(frozen=True, kw_only=True)
class RunNote(Described):
    """Measurements and predictions of one run by name; `made` in seconds since the epoch, `basis`
    as returned by `basis_of`.
    """

    key: str
    made: float
    measured: Numbers = field(hash=False)
    predicted: Numbers = field(hash=False)
    versions: Texts = field(hash=False)
    basis: str = ""


@dataclass(frozen=True)
class Stored:
    """Everything stored about a device; `note` says what could not be read. `device`: its exact
    name; empty where nothing is stored.
    """

    calibration: Calibration | None = None
    runs: tuple[RunNote, ...] = ()
    note: str = ""
    device: str = ""


@dataclass(frozen=True)
class Correction:
    """How measurements on this device compare with predictions.

    Attributes:
        factor: Multiply a prediction by it.
        low, high: 90 % interval of measured over predicted; both 1 without runs.
        runs: Number of runs.
        median: Median of measured over predicted.
    """

    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    runs: int = 0
    median: float = 1.0


NOT_CORRECTED = Correction()


def load(device: Device, threads: int | None = None) -> Calibration | None:
    """Return the stored calibration if it holds for this torch and number of threads (default: the
    device's), else None; `reason` returns why.
    """
    kept = stored(device.name).calibration
    if kept is None or kept.mismatch(threads or device.threads):
        return None
    return kept


def reason(device: Device, threads: int | None = None) -> str:
    """Return why `load` returns None; "" if it returns a calibration."""
    kept = stored(device.name)
    if kept.calibration is None:
        return (
            kept.note
            or f"{device.name} was never calibrated: `brimful calibrate` takes under a minute"
        )
    mismatch = kept.calibration.mismatch(threads or device.threads)
    if not mismatch:
        return ""
    return (
        f"the calibration of {device.name} is not used: {mismatch}. Run `brimful calibrate` again."
    )


def stored(device_name: str) -> Stored:
    """All that is remembered of a device, usable or not."""
    return read_file(path_of(device_name))


def read_file(path: Path) -> Stored:
    """All that a device's file remembers; nothing where it is missing or damaged."""
    if not path.exists():
        return Stored()
    try:
        return _read(path)
    except (
        RunFolderError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
    ) as error:
        return Stored(
            note=(
                f"{path} cannot be read and is ignored ({error!r}); it is written anew by the next"
                " calibration or run"
            )
        )


def save(calibration: Calibration) -> Path:
    """Store a calibration in place of the one before; stored runs stay.

    Raises:
        RunFolderError: it cannot be written.
    """
    return _write(calibration.device, calibration, stored(calibration.device).runs)


def reset(device_name: str) -> bool:
    """Delete everything stored about a device; return whether there was something."""
    return remove_file(path_of(device_name))


def note_run(
    device_name: str,
    *,
    measured: Numbers,
    predicted: Numbers,
    key: str,
    versions: Texts | None = None,
    applied: Numbers | None = None,
    basis: str = "",
    described: Described = NOT_DESCRIBED,
) -> None:
    """Store the measurements of a run with its predictions.

    Names that are not in both, and values that are not positive and finite, are left out. Nothing
    is written if nothing is left.

    Args:
        device_name: Exact name.
        measured: Measured values by name, as in `Plan.predicted`.
        predicted: The same names.
        key: What ran, for people: the recipe's name.
        versions: Versions of libraries; by default those of this process.
        applied: Correction factors in the predictions. They are divided out, so that corrections do
            not build on each other.
        basis: Basis of the predicted times, from `basis_of`.
        described: What ran.

    Raises:
        RunFolderError: it cannot be written.
    """
    usable = {
        name
        for name in measured
        if _is_positive(measured[name]) and _is_positive(predicted.get(name))
    }
    if not usable:
        return
    factors = applied or {}
    run = RunNote(
        key=key,
        made=time.time(),
        measured={name: float(measured[name]) for name in sorted(usable)},
        predicted={
            name: float(predicted[name]) / factors.get(name, 1.0) for name in sorted(usable)
        },
        versions=dict(versions or current_versions()),
        basis=basis,
        **asdict(described),
    )
    kept = stored(device_name)
    _write(device_name, kept.calibration, (*kept.runs, run)[-KEPT_RUNS:])


def basis_of(rates: Rates, device: Device) -> str:
    """Return the basis of predicted times: the source of the rates and the number of threads. Only
    runs with the same basis correct them.
    """
    if device.threads is None:
        return rates.source
    return f"{rates.source}, {plural(device.threads, 'thread')}"


def correction(
    device_name: str, name: str, *, basis: str, share: Bounds = (1.0, 1.0)
) -> Correction:
    """Return the correction of predictions of a value from the last runs on this device.

    With n ratios measured / predicted of the last 20 runs and their logarithms x: log(factor) =
    median(x) n / (n + 3), so that few runs move little. The interval reaches h below the smaller
    and h above the larger of log(factor) and median(x), so that a device that is steadily slower
    than its rates say is inside from the first run on: h^2 = (n s^2 + 3 p^2) / (n + 3), with s the
    90 % half-width 1.645 x 1.4826 x median |x - median(x)|, and p half of log(high / low) of the
    share of the rates, at least 0.2.

    Runs with another minor version of torch do not count. For times, neither do runs with another
    basis, nor those before the present calibration: their predictions came from other rates.

    Args:
        device_name: Exact name.
        name: Name of the quantity, as in `Plan.predicted`.
        basis: Basis of the predictions to correct, from `basis_of`; ignored for memory.
        share: Measured over predicted time that the rates themselves promise (`Rates.share`).
    """
    ratios = list(_ratios(stored(device_name), name, basis))[-LAST_RUNS:]
    if not ratios:
        return NOT_CORRECTED
    logs = [math.log(ratio) for ratio in ratios]
    n, middle = len(logs), statistics.median(logs)
    spread = 1.645 * 1.4826 * statistics.median(abs(value - middle) for value in logs)
    prior = max(LEAST_LOG_SPREAD, math.log(share[1] / share[0]) / 2)
    shift = middle * n / (n + SHRINKAGE_RUNS)
    half = math.sqrt((n * spread**2 + SHRINKAGE_RUNS * prior**2) / (n + SHRINKAGE_RUNS))
    return Correction(
        math.exp(shift),
        math.exp(min(shift, middle) - half),
        math.exp(max(shift, middle) + half),
        n,
        math.exp(middle),
    )


def corrections(device_name: str) -> dict[tuple[str, str], Correction]:
    """Return the correction of every predicted value with stored runs, by name and basis; memory
    has the basis "".
    """
    pairs = {
        (name, "" if _is_memory(name) else run.basis)
        for run in stored(device_name).runs
        for name in run.measured
    }
    entries = {
        (name, basis): correction(device_name, name, basis=basis) for name, basis in sorted(pairs)
    }
    return {pair: entry for pair, entry in entries.items() if entry.runs}


def current_versions() -> Texts:
    """Return the versions of brimful and torch in this process."""
    return {name: version_of(name) or "" for name in ("brimful", "torch")}


def path_of(device_name: str) -> Path:
    """Return the file of a device: its name in portable characters, and a few digits of its
    hash. A CPU some of whose instructions may not be used counts as another one.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")[:60]
    full_name = " ".join([device_name, *hidden_instructions()])
    digest = hashlib.sha256(full_name.encode()).hexdigest()[:6]
    return cache_folder() / "calibration" / f"{readable}-{digest}.json"


def _ratios(kept: Stored, name: str, basis: str) -> Iterator[float]:
    torch_now, is_memory = _minor(version_of("torch") or ""), _is_memory(name)
    since = kept.calibration.made if kept.calibration else 0.0
    for run in kept.runs:
        is_of_these_rates = is_memory or (run.made >= since and run.basis == basis)
        if (
            name in run.measured
            and is_of_these_rates
            and _minor(run.versions.get("torch", "")) == torch_now
        ):
            yield run.measured[name] / run.predicted[name]


def _is_memory(name: str) -> bool:
    return name.endswith("_bytes")


def _read(path: Path) -> Stored:
    values = read_json(path, is_cached=True)
    if values["schema"] != SCHEMA:
        raise ValueError(f"schema {values['schema']}, this version reads {SCHEMA}")
    calibration = (
        None if values["calibration"] is None else Calibration.from_json(values["calibration"])
    )
    runs = tuple(RunNote(**run) for run in values["runs"])
    for run in runs:
        if not all(
            _is_positive(each.get(name))
            for each in (run.measured, run.predicted)
            for name in run.measured
        ):
            raise ValueError(f"run {run.key} holds a value that is not positive")
        if not all(math.isfinite(value) for value in run.memory_terms.values()):
            raise ValueError(f"run {run.key} holds a term that is no number")
    return Stored(calibration, runs, device=str(values["device"]))


def _write(device_name: str, calibration: Calibration | None, runs: tuple[RunNote, ...]) -> Path:
    path = path_of(device_name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{path.parent} cannot be made: {error}. Point BRIMFUL_CACHE to a folder that can be"
            " written."
        ) from error
    written = None if calibration is None else calibration.to_json()
    write_json_atomically(
        path,
        {
            "schema": SCHEMA,
            "device": device_name,
            "calibration": written,
            "runs": [asdict(run) for run in runs],
        },
        with_checksum=True,
    )
    return path


def _is_positive(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )


def is_same_minor(one: str, other: str) -> bool:
    """Return whether two versions agree in their first two numbers."""
    return _minor(one) == _minor(other)


def _minor(version: str) -> str:
    return ".".join(version.split("+", maxsplit=1)[0].split(".")[:2])
