"""What a recipe takes on each device, as a view: memory by term, a table with every number, what
would help, and reasons.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from brimful.base.text import plural
from brimful.base.units import format_bytes, format_count, format_named
from brimful.planning.memory import Footprint
from brimful.planning.plan import Plan, Prediction
from brimful.planning.remedies import Remedy
from brimful.planning.surveyed import Surveyed
from brimful.report.bars import MOST_PARTS, Bar, Bars, parts
from brimful.report.page.plan_page import choice_table
from brimful.report.plan.answer import headroom_of
from brimful.report.plan.job import job_table
from brimful.report.plan.table import INTERVAL, Entries, Entry, between, column_note, device_table
from brimful.report.table import Cell, Row, Table, table_of
from brimful.report.views import Block, Heading, Paragraph, View, fold, section, text

OTHERS = "Everything else"
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
_percent = "{:.1%}".format
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
    note = Paragraph(f"{column_note(surveyed)} A bar ends at what the device has.", "note")
    unsure = [entry for entry in surveyed if not is_sure(entry)]
    planned = [entry for entry in surveyed if isinstance(entry, Surveyed)]
    sections = (
        section("fit-table", "Numbers", device_table(surveyed), note),
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


def _counted(entry: Surveyed) -> str:
    footprint = entry.derived.footprint
    line = f"{format_count(footprint.parameters)} parameters"
    if footprint.trainable != footprint.parameters:
        line += f", of which {format_count(footprint.trainable)} train"
    return f"{line}."


def _advice(entry: Entry, *, looks_closely: bool) -> Iterator[Block]:
    yield Heading(entry.device.name)
    if not isinstance(entry, Surveyed):
        yield Paragraph(entry.reason)
    else:
        yield Paragraph(reason_of(entry))
        yield from text(LOOKS * looks_closely, "note")
        yield from help_blocks(entry)


def help_blocks(entry: Surveyed) -> Iterator[Block]:
    """Return what would take less than a device has, and what else would hold the recipe."""
    yield from text("What would take less, each by itself:" * bool(entry.remedies))
    yield from (Paragraph(remedy_line(each), "advice") for each in entry.remedies)
    if entry.smallest_device and entry.derived.plan.devices == 1:
        smallest = f"The smallest device of the catalog that holds it: {entry.smallest_device}."
        yield Paragraph(smallest, "advice")


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
    summary = f"{entry.device.name}: every term, and why it was planned so"
    return fold(summary, *device_blocks(entry))


def device_blocks(entry: Surveyed) -> Iterator[Block]:
    """Return how one device runs a recipe: every choice, what memory is for, how many sequences
    fit at a time, and what time and cost are made of.
    """
    plan, footprint = entry.derived.plan, entry.derived.footprint
    if entry.chain is not None:
        planned = entry.chain.planned
        which = f"The training of {planned}, which needs most" if planned else "One training"
        yield Paragraph(f"{which}:")
    yield Paragraph(plan.division())
    if footprint.trainable != footprint.parameters:
        yield Paragraph(_counted(entry))
    if choices := choice_table(plan):
        yield choices
    yield Heading(f"Memory at the peak, in the {footprint.peak_phase} phase")
    yield _terms(footprint)
    yield Table(("In all", "Size", INTERVAL), tuple(_peak_rows(footprint)))
    yield Paragraph(_room(footprint))
    if len(entry.table) > 1:
        yield Heading("Micro-batches")
        yield _micro_batches(entry.table, footprint.micro_batch)
    if footprint.verdict != "does not fit":
        yield Heading("Time and cost")
        yield from _times(plan)
    if entry.chain is not None:
        yield Heading("The whole job")
        yield job_table(entry.chain)


def _terms(footprint: Footprint) -> Table:
    total = sum(footprint.terms.values()) or 1
    rows = [
        (name, Cell(size, format_bytes), Cell(size / total, _percent))
        for name, size in footprint.terms.items()
    ]
    return Table(("Term", "Size", "Share"), tuple(rows))


def _peak_rows(footprint: Footprint) -> Iterator[Row]:
    for name, peak in peaks(footprint).items():
        yield name, Cell(peak.value, format_bytes), between("peak_bytes", peak)


def peaks(footprint: Footprint) -> dict[str, Prediction]:
    """Return the predicted peaks of tensors, of what the allocator reserves, and of the driver."""
    return {
        "allocated": footprint.allocated,
        "reserved": footprint.reserved,
        "in all": footprint.driver,
    }


def _room(footprint: Footprint) -> str:
    line = (
        f"{footprint.verdict}: {format_bytes(footprint.usable_bytes)} to use, head-room"
        f" {headroom_of(footprint)}"
    )
    if footprint.is_tight:
        line += (
            f", less than the {format_bytes(footprint.room_bytes)} that a plan leaves where it can:"
            " the allocator will give back memory that it only caches"
        )
    return line


def _micro_batches(table: Sequence[Footprint], chosen: int) -> Table:
    rows = []
    for footprint in table:
        verdict = footprint.verdict + " tightly" * footprint.is_tight
        verdict += " \N{LEFTWARDS ARROW} plan" * (footprint.micro_batch == chosen)
        sizes = (Cell(peak.value, format_bytes) for peak in peaks(footprint).values())
        rows.append((footprint.micro_batch, *sizes, headroom_of(footprint), verdict))
    columns = ("Sequences at once", "Allocated", "Reserved", "In all", "Head-room", "")
    return Table(columns, tuple(rows))


def _times(plan: Plan) -> Iterator[Block]:
    """Return time, energy and cost with their intervals and what they are predicted from, and the
    parts of a step.
    """
    known = {
        label: (name, plan.predicted[name])
        for name, label in PREDICTED.items()
        if name in plan.predicted
    }
    if not known:
        yield Paragraph("Not predicted, as no rate is known for this device and precision.")
        return
    rows = [
        (label, format_named(name, each.value), between(name, each))
        for label, (name, each) in known.items()
    ]
    sources = [(label, each.basis) for label, (_, each) in known.items() if each.basis]
    if not {"cost_usd", "billion_tokens_usd"} & plan.predicted.keys():
        rows.append(("cost", "no price known", ""))
        sources.append(("cost", "say what an hour costs in US dollars: --price 2.5"))
    yield Table(("", "Value", INTERVAL), tuple(rows))
    yield Table(("", "Predicted from"), tuple(sources))
    whole_s = sum(plan.time_terms.values())
    terms = [
        (term, Cell(seconds, partial(format_named, "time_s")), Cell(seconds / whole_s, _percent))
        for term, seconds in plan.time_terms.items()
        if "step_time_s" in plan.predicted
    ]
    if parts_of_step := table_of(("Of a step", "Time", "Share"), terms):
        yield parts_of_step
    if plan.total_steps is None:
        yield Paragraph(
            "The length of the run is known once the data are read; training.steps=N or"
            " training.tokens=N says it now."
        )
