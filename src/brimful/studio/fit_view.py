"""What a recipe takes on each device, as a view: memory by term, a table with every number, what
would help, and reasons.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from brimful.base.text import setting_text
from brimful.base.units import format_bytes, format_count, format_named
from brimful.planning.plan import Prediction
from brimful.report.bars import MOST_PARTS, Bar, Bars, parts
from brimful.report.table import Cell, Gauge, Row, Table
from brimful.report.views import Block, Chapter, Heading, Paragraph, View, fold, section, text
from brimful.studio.fit import DeviceFit, Fit

UNCERTAIN, OTHERS = "may not fit", "Everything else"
TIMES = {"total_time_s": "In all", "cost_usd": "Cost", "energy_wh": "Energy"}
TIMES_OF_A_BILLION = {"billion_tokens_s": "1B tokens", "billion_tokens_usd": "Cost of 1B"}
"""In their place where the length of training is not known."""
ABOUT = (
    "Intervals of times and costs hold 9 of 10 runs; of memory they say what the driver may show."
    " A bar of the table ends at what the device has. Micro-batch:"
    " sequences at once x passes per step, and how many sequences at once surely fit."
)
LOOKS = "Looking for what would make it fit ..."


def fit_view(fit: Fit, *, looks_closely: bool = False) -> View:
    """Return what a recipe takes on each device.

    Args:
        fit: What it takes.
        looks_closely: What would make it fit is still looked for.
    """
    columns = TIMES
    if not any(device.total_time_s for device in fit.devices):
        columns = TIMES_OF_A_BILLION
    names = ("Device", "Fits?", "Room", "Peak memory", "Micro-batch", "Step", *columns.values())
    table = Table(names, tuple(_row(device, columns) for device in fit.devices))
    priced = any(device.cost_usd or device.billion_tokens_usd for device in fit.devices)
    note = f"{ABOUT}{' Cost by the dated prices of the catalog.' * priced}"
    advice = [
        block
        for device in fit.devices
        if device.verdict != "fits"
        for block in _advice(device, looks_closely=looks_closely)
    ]
    return View(
        fit.title,
        "plan",
        _counted(fit),
        tuple(Paragraph(each, "note") for each in fit.notes),
        (
            section("fit-table", "Numbers", table, Paragraph(note, "note")),
            *([section("fit-advice", "What does not surely fit", *advice)] if advice else []),
            *_memory(fit.devices),
            section("fit-reasons", "Why", *(block for each in fit.devices for block in _why(each))),
        ),
    )


def _counted(fit: Fit) -> str:
    if not fit.parameters:
        return ""
    line = f"{format_count(fit.parameters)} parameters"
    if fit.trainable != fit.parameters:
        line += f", of which {format_count(fit.trainable)} train"
    return f"{line}."


def _peak(device: DeviceFit) -> Prediction | None:
    """Return what the driver shows at the peak. Where a step fits, the allocator reserves no more
    than the device has, because it releases unused blocks.
    """
    peak = device.peak_bytes
    if peak is None:
        return None
    high = peak.high
    if device.verdict == "fits":
        high = min(high, max(device.capacity_bytes, peak.value))
    return replace(peak, low=max(0, peak.low), high=high)


def _row(device: DeviceFit, columns: dict[str, str]) -> Row:
    verdict = UNCERTAIN if device.verdict == "uncertain" else device.verdict
    peak = _peak(device)
    batch = f"{device.micro_batch} x {device.accumulation}" if peak else "-"
    return (
        device.device,
        Cell(verdict),
        _room(device, verdict, peak),
        replace(_cell("peak_bytes", peak), note=_beyond(peak, device.capacity_bytes)),
        Cell(batch, note=_largest(device)),
        *(_cell(name, getattr(device, name)) for name in ("step_time_s", *columns)),
    )


def _room(device: DeviceFit, verdict: str, peak: Prediction | None) -> object:
    """Where the peak lies between nothing and what the device has."""
    if peak is None:
        return ""
    capacity = format_bytes(device.capacity_bytes)
    terms = ", ".join(f"{name} {format_bytes(size)}" for name, size in device.terms)
    about = f"{device.device} {verdict}: {format_bytes(peak.value)} of {capacity}. {terms}"
    interval = (peak.low, peak.high)
    return Gauge((0, device.capacity_bytes), peak.value, interval, about, f"of {capacity}")


def _cell(name: str, prediction: Prediction | None) -> Cell:
    if prediction is None:
        return Cell("-")
    form, ends = partial(format_named, name), (prediction.low, prediction.high)
    # Both ends may be below a cent, say.
    return Cell(prediction.value, form, ends if form(ends[0]) != form(ends[1]) else None)


def _beyond(peak: Prediction | None, capacity: int) -> str:
    """`needs 2.5 x what it has`; empty where even the upper end of the peak fits."""
    if peak is None:
        return ""
    needed, most = peak.value / capacity, peak.high / capacity
    if needed > 1:
        return f"needs {needed:.1f} x what it has" if needed >= 1.05 else "needs more than it has"
    return "may need more than it has" if most > 1 else ""


def _largest(device: DeviceFit) -> str:
    """Return how many sequences at a time fit; `largest_micro_batch` counts those that surely
    do.
    """
    is_uncertain = device.verdict == "uncertain"
    if device.peak_bytes is None:
        return ""
    if device.largest_micro_batch:
        return f"up to {device.largest_micro_batch} {'surely fit' if is_uncertain else 'fit'}"
    if device.micro_batch > 1:
        return "not even 1 surely fits"
    return "1 may fit" if is_uncertain else "not even 1 fits"


def _advice(device: DeviceFit, *, looks_closely: bool) -> list[Block]:
    return [
        Heading(device.device),
        *text(device.reason),
        *text(LOOKS * looks_closely, "note"),
        *text("What would take less, each by itself:" * bool(device.remedies)),
        *(Paragraph(each, "advice") for each in device.remedies),
    ]


def _memory(devices: Sequence[DeviceFit]) -> list[Chapter]:
    """Return the terms at the peak as bars on one scale; the same terms look alike in all, and what
    is small on every device is added up.
    """
    sizes: Counter[str] = Counter()
    for device in devices:
        sizes.update(dict(device.terms))
    large = [name for name, _ in sizes.most_common(MOST_PARTS - 1)]
    names, bars = [*(name for name in sizes if name in large), OTHERS], []
    for device in devices:
        terms: Counter[str] = Counter()
        for name, size in device.terms:
            terms[name if name in large else OTHERS] += size
        shown = [name for name in names if terms[name] > 0]
        drawn = parts([(name, terms[name]) for name in shown], "bytes", [*map(names.index, shown)])
        if drawn:
            bars.append(Bar(device.device, tuple(drawn), format_bytes(terms.total())))
    whole = Bars("", "Memory at the peak", tuple(bars), has_sizes=False)
    return [section("fit-memory", "Memory at the peak", whole)] if bars else []


def _why(device: DeviceFit) -> tuple[Block, ...]:
    """Return every term and every choice of a device, behind a line."""
    if not device.terms:
        return ()
    terms = tuple((name, Cell(size, format_bytes)) for name, size in device.terms)
    made = tuple((each.name, setting_text(each.value), each.reason) for each in device.choices)
    return fold(
        f"{device.device}: every term, and why it was planned so",
        Table(("Term at the peak", "Size"), terms),
        Table(("Choice", "Value", "Reason"), made),
    )
