"""What a recipe takes on each device, as a view: memory by term, a table with every number, what
would help, and reasons.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from brimful.base.text import plural
from brimful.base.types import Texts
from brimful.base.units import format_bytes, format_count, format_named
from brimful.planning.plan import Prediction, Predictions
from brimful.planning.remedies import Remedy
from brimful.planning.surveyed import Surveyed
from brimful.report.bars import MOST_PARTS, Bar, Bars, parts
from brimful.report.page.plan_page import choice_table
from brimful.report.plan.table import INTERVAL, Entries, Entry, between
from brimful.report.table import Cell, Gauge, Row, Table, table_of
from brimful.report.views import Block, Heading, Paragraph, View, fold, section, text

UNCERTAIN, OTHERS = "may not fit", "Everything else"
TIMES = {"total_time_s": "In all", "cost_usd": "Cost", "energy_wh": "Energy"}
TIMES_OF_A_BILLION = {"billion_tokens_s": "1B tokens", "billion_tokens_usd": "Cost of 1B"}
"""What is told in place of TIMES where the length of training is not known."""
PREDICTED = {
    "step_time_s": "optimizer step",
    "tokens_per_s": "tokens/s",
    "mfu": "MFU",
    "reference_time_s": "reference",
    "sampling_time_s": "sampling",
    "verifying_time_s": "verifying",
    "scoring_time_s": "scoring",
    "training_time_s": "training",
    "evaluation_time_s": "evaluation",
    "checkpoint_time_s": "checkpoints",
    "start_time_s": "start",
    "total_time_s": "in all",
    "billion_tokens_s": "a billion tokens",
    "energy_wh": "energy",
    "cost_usd": "cost",
    "billion_tokens_usd": "cost of a billion tokens",
}
"""Predictions of time and what follows from it, in the order in which they are shown."""
ABOUT = (
    "Intervals of times and costs hold 9 of 10 runs; of memory they say what the driver may show."
    " A bar of the table ends at what the device has. Micro-batch:"
    " sequences at once x passes per step, and how many sequences at once surely fit."
)
LOOKS = "Looking for what would make it fit ..."


def fit_view(
    title: str, surveyed: Entries, notes: Sequence[Paragraph] = (), *, looks_closely: bool = False
) -> View:
    """Return what a recipe takes on each device.

    Args:
        title: of the view.
        surveyed: the recipe on the devices.
        notes: what else to know.
        looks_closely: whether what would make it fit is still looked for.
    """
    columns = TIMES
    if not any("total_time_s" in times_of(entry) for entry in surveyed):
        columns = TIMES_OF_A_BILLION
    names = ("Device", "Fits?", "Room", "Peak memory", "Micro-batch", "Step", *columns.values())
    table = Table(names, tuple(_row(entry, columns) for entry in surveyed))
    priced = any({"cost_usd", "billion_tokens_usd"} & times_of(entry).keys() for entry in surveyed)
    note = f"{ABOUT}{' Cost by the dated prices of the catalog.' * priced}"
    unsure = [entry for entry in surveyed if not is_sure(entry)]
    planned = [entry for entry in surveyed if isinstance(entry, Surveyed)]
    sections = (
        section("fit-table", "Numbers", table, Paragraph(note, "note")),
        section(
            "fit-advice",
            "What does not surely fit",
            *(block for each in unsure for block in _advice(each, looks_closely=looks_closely)),
        ),
        section("fit-memory", "Memory at the peak", _memory(planned)),
        section("fit-reasons", "Why", *(block for each in planned for block in _why(each))),
    )
    lead = _counted(planned[0]) if planned else ""
    return View(title, "plan", lead, tuple(notes), tuple(each for each in sections if each.blocks))


def is_sure(entry: Entry) -> bool:
    """Whether a recipe surely fits a device."""
    return isinstance(entry, Surveyed) and entry.verdict == "fits"


def times_of(entry: Entry) -> Predictions:
    """Return predictions of time and what follows from it; none where nothing is known, or where
    the recipe does not fit.
    """
    if not isinstance(entry, Surveyed) or entry.verdict == "does not fit":
        return {}
    return {name: entry.predicted[name] for name in PREDICTED if name in entry.predicted}


def _counted(entry: Surveyed) -> str:
    footprint = entry.derived.footprint
    line = f"{format_count(footprint.parameters)} parameters"
    if footprint.trainable != footprint.parameters:
        line += f", of which {format_count(footprint.trainable)} train"
    return f"{line}."


def _peak(entry: Surveyed) -> Prediction:
    """Return what the driver shows at the peak. Where a step fits, the allocator reserves no more
    than the device has, because it releases unused blocks.
    """
    footprint, peak = entry.derived.footprint, entry.derived.footprint.driver
    high = peak.high
    if entry.verdict == "fits":
        high = min(high, max(footprint.usable_bytes, peak.value))
    return replace(peak, low=max(0, peak.low), high=high)


def _row(entry: Entry, columns: Texts) -> Row:
    if not isinstance(entry, Surveyed):
        return (entry.device.name, Cell("unknown"), "", *(Cell("-"),) * (3 + len(columns)))
    footprint, peak, times = entry.derived.footprint, _peak(entry), times_of(entry)
    verdict = UNCERTAIN if entry.verdict == "uncertain" else entry.verdict
    capacity = format_bytes(footprint.usable_bytes)
    terms = ", ".join(f"{name} {format_bytes(size)}" for name, size in footprint.terms.items())
    about = f"{entry.device.name} {verdict}: {format_bytes(peak.value)} of {capacity}. {terms}"
    ends = (0, footprint.usable_bytes)
    batch = f"{footprint.micro_batch} x {len(entry.derived.plan.micro_batches)}"
    return (
        entry.device.name,
        Cell(verdict),
        Gauge(ends, peak.value, (peak.low, peak.high), about, f"of {capacity}"),
        replace(_cell("peak_bytes", peak), note=_beyond(peak, footprint.usable_bytes)),
        Cell(batch, note=_largest(entry)),
        *(_cell(name, times.get(name)) for name in ("step_time_s", *columns)),
    )


def _cell(name: str, prediction: Prediction | None) -> Cell:
    if prediction is None:
        return Cell("-")
    form, ends = partial(format_named, name), (prediction.low, prediction.high)
    # Both ends may be below a cent, say.
    return Cell(prediction.value, form, ends if form(ends[0]) != form(ends[1]) else None)


def _beyond(peak: Prediction, capacity: int) -> str:
    """`needs 2.5 x what it has`; empty where even the upper end of the peak fits."""
    needed, most = peak.value / capacity, peak.high / capacity
    if needed > 1:
        return f"needs {needed:.1f} x what it has" if needed >= 1.05 else "needs more than it has"
    return "may need more than it has" if most > 1 else ""


def _largest(entry: Surveyed) -> str:
    """Return how many sequences at a time fit; `largest` counts those that surely do."""
    is_uncertain = entry.verdict == "uncertain"
    if entry.derived.largest:
        return f"up to {entry.derived.largest} {'surely fit' if is_uncertain else 'fit'}"
    if entry.derived.footprint.micro_batch > 1:
        return "not even 1 surely fits"
    return "1 may fit" if is_uncertain else "not even 1 fits"


def _advice(entry: Entry, *, looks_closely: bool) -> Iterator[Block]:
    yield Heading(entry.device.name)
    if not isinstance(entry, Surveyed):
        yield Paragraph(entry.reason)
    else:
        yield Paragraph(reason_of(entry))
        helps = [remedy_line(each) for each in entry.remedies]
        if entry.smallest_device:
            helps.append(f"{entry.smallest_device} holds it")
        yield from text(LOOKS * looks_closely, "note")
        yield from text("What would take less, each by itself:" * bool(helps))
        yield from (Paragraph(each, "advice") for each in helps)


def reason_of(entry: Surveyed) -> str:
    """`8 sequences of 1,024 tokens at a time take about 9.5 GiB of 14.6 GiB`."""
    footprint, recipe = entry.derived.footprint, entry.derived.prepared.recipe
    batch = f"{plural(footprint.micro_batch, 'sequence')} of {recipe.sequence_length:,} tokens"
    taken, usable = map(format_bytes, (footprint.driver.value, footprint.usable_bytes))
    size = f"about {taken} of {usable}"
    match footprint.verdict:
        case "fits":
            return f"{batch} at a time take {size}"
        case "uncertain":
            return f"{batch} at a time take {size}, which is too close to be sure"
    if footprint.micro_batch == 1:
        return f"even {batch} would take {size}"
    return f"{batch} at a time would take {size}"


def remedy_line(remedy: Remedy) -> str:
    """Return what a remedy changes and what then fits, in a line."""
    if remedy.largest:
        fits = f"up to {plural(remedy.largest, 'sequence')} at a time fit"
    elif remedy.footprint.verdict == "uncertain":
        fits = "one sequence may fit"
    else:
        fits = "one sequence still does not fit"
    how = f" ({remedy.set})" if remedy.set else ""
    size = format_bytes(remedy.footprint.driver.value)
    return f"{remedy.name}{how}: {size} for one sequence, {fits}; {remedy.change}"


def _memory(planned: Sequence[Surveyed]) -> Bars | None:
    """Return the terms at the peak as bars on one scale; the same terms look alike in all, and what
    is small on every device is added up.
    """
    sizes: Counter[str] = Counter()
    for entry in planned:
        sizes.update(entry.derived.footprint.terms)
    large = [name for name, _ in sizes.most_common(MOST_PARTS - 1)]
    names, bars = [*(name for name in sizes if name in large), OTHERS], []
    for entry in planned:
        terms: Counter[str] = Counter()
        for name, size in entry.derived.footprint.terms.items():
            terms[name if name in large else OTHERS] += size
        shown = [name for name in names if terms[name] > 0]
        drawn = parts([(name, terms[name]) for name in shown], "bytes", [*map(names.index, shown)])
        bars.append(Bar(entry.device.name, tuple(drawn), format_bytes(terms.total())))
    return Bars("", "Memory at the peak", tuple(bars), has_sizes=False) if bars else None


def _why(entry: Surveyed) -> tuple[Block, ...]:
    """Return every term, every choice and every predicted time of a device, behind a line."""
    footprint, times = entry.derived.footprint, times_of(entry)
    terms = [(name, Cell(size, format_bytes)) for name, size in footprint.terms.items()]
    predicted = [
        (
            label,
            format_named(name, times[name].value),
            between(name, times[name]),
            times[name].basis,
        )
        for name, label in PREDICTED.items()
        if name in times
    ]
    return fold(
        f"{entry.device.name}: every term, and why it was planned so",
        table_of(("Term at the peak", "Size"), terms),
        choice_table(entry.derived.plan),
        table_of(("Time and cost", "", INTERVAL, "Predicted from"), predicted),
    )
