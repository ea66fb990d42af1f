"""What is remembered of a device, for a terminal and as JSON: measured rates, and how runs compared
with their predictions.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from brimful.base.text import plural
from brimful.base.types import JsonDict
from brimful.base.units import format_bytes
from brimful.base.warning_codes import coded
from brimful.hardware import calibration, links
from brimful.hardware.calibrate import Progress as Tell
from brimful.hardware.calibration import APPLIED, Calibration, Correction
from brimful.hardware.device import Device
from brimful.hardware.rates import CLASSES, MATRIX_CLASSES, SIXTEEN_BIT, THIN, Rates
from brimful.hardware.residuals import residuals_of
from brimful.report.table import Table, table_of
from brimful.report.terminal import told
from brimful.report.views import Block, Heading, Paragraph, text

SPEED_UP = "_speed_up"
EXTRAS = {
    "disk_bytes_per_s": "written to the disk and synced",
    "loader_tokens_per_s": "read by the data loader",
}


@contextmanager
def measuring(console: Console) -> Iterator[Tell]:
    """A line that says what is measured now; nothing where the output is no terminal."""
    columns = (
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=None)

        def tell(name: str, done: int, total: int) -> None:
            progress.update(task, description=name, completed=done, total=total)

        yield tell


def to_json(device: Device, threads: int | None) -> JsonDict:
    """Everything that is remembered of a device, as plain values.

    `unused` says why its calibration is not used, None when it is. Of each correction, `median` is
    that of measured over predicted and `applied` what plans multiply by, None where they are not
    corrected.
    """
    kept = calibration.stored(device.name)
    return {
        "device": device.name,
        "file": str(calibration.path_of(device.name)),
        "calibration": kept.calibration.to_json() if kept.calibration else None,
        "unused": calibration.reason(device, threads) or None,
        "link": asdict(link) if (link := links.measured(device.name)) else None,
        "runs": [asdict(run) for run in kept.runs],
        "memory_residuals": {
            kind: [
                {"above_prediction_bytes": more, "tensors_bytes": tensors} for more, tensors in runs
            ]
            for kind, runs in _residuals_by_kind(device.name).items()
        },
        "corrections": [
            {
                "name": name,
                "basis": basis,
                "median": entry.median,
                "applied": _applied(name, basis, entry),
                "runs": entry.runs,
            }
            for (name, basis), entry in calibration.corrections(device.name).items()
        ],
    }


def render(device: Device, threads: int | None, width: int) -> Text:
    """The same for a terminal of `width` columns."""
    return told(_blocks(device, threads), width)


def _blocks(device: Device, threads: int | None) -> Iterator[Block]:
    kept, file = calibration.stored(device.name), calibration.path_of(device.name)
    if kept.calibration is not None:
        yield from _calibration_blocks(kept.calibration)
    if unused := calibration.reason(device, threads):
        yield Paragraph(f"! {coded('B106', unused)}", "advice")
    if link := links.measured(device.name):
        yield Paragraph(link.told)
    yield Heading("Runs here")
    yield _runs(len(kept.runs), calibration.corrections(device.name))
    yield from map(Paragraph, memory_lines(device.name))
    yield Paragraph(f"{file}; `brimful calibrate --reset` forgets it")


def memory_lines(device_name: str) -> list[str]:
    """Return what earlier runs took more than predicted, a line for each kind of run."""
    lines = []
    for kind, runs in _residuals_by_kind(device_name).items():
        more = ", ".join(f"{'-' * (each < 0)}{format_bytes(abs(each))}" for each, _ in runs)
        lines.append(f"memory above its prediction, {kind}: {more}")
    return lines


def _residuals_by_kind(device_name: str) -> dict[str, list[tuple[float, float]]]:
    kinds = sorted({run.memory_kind for run in calibration.stored(device_name).runs} - {""})
    found = {kind: list(residuals_of(device_name, kind).runs) for kind in kinds}
    return {kind: runs for kind, runs in found.items() if runs}


def _calibration_blocks(measured: Calibration) -> Iterator[Block]:
    rates = measured.rates
    threads = "" if measured.threads is None else f", {plural(measured.threads, 'thread')}"
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(measured.made))
    versions = ", ".join(f"{name} {version}" for name, version in measured.versions.items())
    yield Paragraph(f"{measured.device}{threads}, measured {made} ({versions})")
    low, high = rates.share
    yield Paragraph(
        f"{measured.points} operators; nine of ten take {low:.2f} to {high:.2f} times what these"
        " rates say"
    )
    yield Heading("Products, GFLOP/s")
    yield _products(rates)
    yield Heading("Moved, GB/s")
    yield _movements(rates)
    yield Heading("Operators and data")
    speed_ups = [
        f"{name.removesuffix(SPEED_UP)} {value:.2f}x"
        for name, value in measured.extras.items()
        if name.endswith(SPEED_UP)
    ]
    yield from text(f"all threads against one: {', '.join(speed_ups)}" * bool(speed_ups))
    yield Paragraph(
        f"smallest operator {_microseconds(rates.launch_s)}, issuing one"
        f" {_microseconds(rates.host_s)}"
    )
    extras = [
        _extra(name, value)
        for name, value in measured.extras.items()
        if not name.endswith(SPEED_UP)
    ]
    yield from text(", ".join(extras))


def _extra(name: str, per_s: float) -> str:
    """`read by the data loader 250M tokens/s`."""
    rate = format_bytes(per_s) if "bytes" in name else f"{per_s / 1e6:,.0f}M tokens"
    return f"{EXTRAS.get(name, name)} {rate}/s"


def _products(rates: Rates) -> Table:
    dtypes = dict.fromkeys(dtype for known in rates.flop_per_s.values() for dtype in known)
    rows = [
        (name, *(_giga(rates.flop_per_s[name].get(dtype)) for dtype in dtypes))
        for name in ("matrix", THIN, *MATRIX_CLASSES[1:])
        if rates.flop_per_s.get(name)
    ]
    return Table(("", *dtypes), tuple(rows))


def _movements(rates: Rates) -> Table:
    """By class; operators that were told apart are in the JSON."""
    columns = {
        "fp32": (rates.bytes_per_s, ""),
        "16-bit": (rates.bytes_per_s, SIXTEEN_BIT),
        "fp32 in cache": (rates.cached_bytes_per_s, ""),
        "16-bit in cache": (rates.cached_bytes_per_s, SIXTEEN_BIT),
    }
    rows = [
        (name, *(_giga(speeds.get(name + suffix)) for speeds, suffix in columns.values()))
        for name in CLASSES
        if name in rates.bytes_per_s and name not in MATRIX_CLASSES
    ]
    return Table(("", *columns), tuple(rows))


def _giga(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e9:,.0f}"


def _runs(count: int, corrections: Mapping[tuple[str, str], Correction]) -> Block:
    """What predictions are corrected by, or that nothing is."""
    rows = []
    for (name, basis), entry in corrections.items():
        applied = _applied(name, basis, entry)
        factor = "not applied" if applied is None else f"{applied:.2f}"
        rows.append((name, f"{entry.median:.2f}", factor, entry.runs, basis))
    columns = ("", "measured / predicted", "plans multiply by", "runs", "predicted from")
    nothing = "no run is remembered yet"
    if count:
        nothing = f"{count} runs remembered; nothing to correct predictions with yet"
    return table_of(columns, rows) or Paragraph(nothing)


def _applied(name: str, basis: str, entry: Correction) -> float | None:
    return entry.factor if name in APPLIED and basis else None


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"
