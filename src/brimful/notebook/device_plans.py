"""Plans of a recipe for several devices, from `brimful plan --json`, as HTML and as text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from brimful.base.text import setting_text
from brimful.base.units import (
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_money,
    format_named,
)
from brimful.notebook.panel import BOX, COLOURS, FAINT
from brimful.planning.plan import Plan
from brimful.runs.facts import DeviceFacts
from brimful.runs.parsing import Bounds, Json, mapping, parse
from brimful.runs.plans import interval_of, read_plan

VERDICTS = {
    "fits": ("yes", COLOURS["done"]),
    "uncertain": ("perhaps", COLOURS["stopped"]),
    "does not fit": ("no", COLOURS["failed"]),
}
"""The answer to "does it fit?", and its colour."""
NOT_ESTIMATED = ("?", "inherit")
TIME_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "step": ("step_time_s", format_duration),
    "tokens/s": ("tokens_per_s", format_count),
    "in all": ("total_time_s", format_duration),
    "energy": ("energy_wh", format_energy),
    "cost": ("cost_usd", format_money),
}
"""Column -> the prediction that it shows, and how."""
COLUMNS = ("device", "fits", "memory at the peak", "batch", *TIME_COLUMNS)
TIME_NAMES = {
    "tokens_per": "tokens per second",
    "mfu": "MFU",
    "total": "in all",
    "start": "until the first step",
}


@dataclass(frozen=True, kw_only=True)
class ExpectedValue:
    """What is predicted, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Memory that a plan needs on a device.

    Attributes:
        driver_bytes: As the driver counts it.
        usable_bytes: What the device has for it.
        terms_bytes: The terms of the peak.
    """

    driver_bytes: ExpectedValue
    usable_bytes: float
    terms_bytes: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class MemorySaving:
    """A change that takes less memory."""

    name: str
    change: str


@dataclass(frozen=True, kw_only=True)
class JobTotals:
    """What a job of several phases takes, by the names of its predictions."""

    predicted: Mapping[str, ExpectedValue] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """The plan of a recipe for one device.

    Attributes:
        verdict: A key of `VERDICTS`; another where nothing can be estimated.
        plan: None there.
        reason: Why there is none.
        job: All that the recipe does, where that is more than the plan's training.
    """

    device: str
    verdict: str
    plan: Plan | None
    reason: str
    memory: MemoryNeed
    remedies: tuple[MemorySaving, ...] = field(default=())
    job: JobTotals = field(default_factory=JobTotals)

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    @property
    def total_time_s(self) -> float | None:
        """Return the predicted time of the whole run, None where it is not predicted."""
        return self.predicted("total_time_s")

    def predicted(self, name: str) -> float | None:
        if name in self.job.predicted:
            return self.job.predicted[name].value
        prediction = self.plan.predicted.get(name) if self.plan else None
        return None if prediction is None else prediction.value


def read_device_plan(values: Json) -> DevicePlan:
    """Return an entry of `brimful plan --json`."""
    return parse(DevicePlan, values, plan=read_plan(mapping(values.get("plan"))))


def device_table(plans: Sequence[DevicePlan]) -> tuple[str, str]:
    """Return a row for each device, the first being this one, as HTML and as text. Columns without
    any value are left out.
    """
    rows = [_row(plan) for plan in plans]
    columns = [index for index, _ in enumerate(COLUMNS) if any(row[index] for row in rows)]
    head = "".join(
        '<th scope="col" style="text-align:left;padding:2px 12px 2px'
        f' 0">{escape(COLUMNS[index])}</th>'
        for index in columns
    )
    body = ""
    for number, (plan, row) in enumerate(zip(plans, rows, strict=True)):
        cells = "".join(_cell(plan, COLUMNS[index], row[index]) for index in columns)
        if number == 0:
            here = f' <span style="{FAINT}">← this one</span></td>'
            body += f'<tr style="font-weight:600">{cells.replace("</td>", here, 1)}</tr>'
        else:
            body += f"<tr>{cells}</tr>"
    html = (
        '<div style="overflow-x:auto"><table'
        ' style="font:inherit;border-collapse:collapse;margin:8px'
        f' 0"><tr>{head}</tr>{body}</table></div>'
    )
    lines = [COLUMNS, *rows]
    widths = {index: max(len(line[index]) for line in lines) for index in columns}
    text = [
        "  ".join(line[index].ljust(width) for index, width in widths.items()).rstrip()
        for line in lines
    ]
    return html, "\n".join(text)


def _cell(plan: DevicePlan, column: str, text: str) -> str:
    colour = "inherit"
    if column == "fits":
        colour = VERDICTS.get(plan.verdict, NOT_ESTIMATED)[1]
    style = f"padding:2px 12px 2px 0;color:{colour};white-space:nowrap"
    return f'<td style="{style}">{escape(text)}</td>'


def _row(entry: DevicePlan) -> tuple[str, ...]:
    plan = entry.plan
    if plan is None:
        return (entry.device, "?", entry.reason, "", *("" for _ in TIME_COLUMNS))
    of_all = format_bytes(parse(DeviceFacts, plan.device).memory_bytes or 0)
    peak = f"{format_bytes(entry.memory.driver_bytes.value)} of {of_all}"
    verdict = VERDICTS.get(entry.verdict, NOT_ESTIMATED)[0]
    times = []
    for name, form in TIME_COLUMNS.values():
        value = None if entry.verdict == "does not fit" else entry.predicted(name)
        times.append("" if value is None else form(value))
    return (entry.device, verdict, peak, _batch(plan), *times)


def _batch(plan: Plan) -> str:
    """Return the batch as `8 x 2 + 3`: sequences in a micro-batch, micro-batches, and the rest."""
    if not plan.micro_batches:
        return ""
    size = plan.micro_batches[0]
    count = plan.micro_batches.count(size)
    rest = plan.effective_batch - count * size
    return f"{size} x {count}" + (f" + {rest}" if rest else "")


def recommendation(plans: Sequence[DevicePlan]) -> str:
    """Return whether this device will do, and which one would be faster or holds the run at all."""
    here, *others = plans
    fitting = [plan for plan in others if plan.fits]
    if not here.fits:
        holds = f"It fits on: {', '.join(plan.device for plan in fitting) or 'none of these'}."
        if here.plan is None:
            return f"Here it cannot be planned: {here.reason.rstrip('.')}. {holds}"
        return f"It does not surely fit here. {holds} `nb.plan` says what would make it fit."
    here_s = here.total_time_s
    sentence = "It fits here; its length is known once the data are read"
    if here_s:
        sentence = f"It fits here and would take about {format_duration(here_s)}"
        times = {plan.device: plan.total_time_s for plan in fitting}
        faster = {device: time for device, time in times.items() if time and time < here_s}
        if faster:
            device, time_s = min(faster.items(), key=lambda entry: entry[1])
            sentence += f"; on {device}, the quickest of these, {format_duration(time_s)}"
    return f"{sentence}. batch: sequences in a micro-batch x micro-batches in a step."


def plan_page(entry: DevicePlan) -> tuple[str, str]:
    """Return one device's plan, memory term by term and every choice, as HTML and as text."""
    plan = entry.plan
    if plan is None:
        return f'<div style="{BOX}">{escape(entry.reason)}</div>', entry.reason
    answer, colour = VERDICTS[entry.verdict]
    peak = entry.memory.driver_bytes
    title = f"{plan.recipe} on {entry.device}"
    verdict = (
        f"fits: {answer}; peak {format_bytes(peak.value)} ({format_bytes(peak.low)} to"
        f" {format_bytes(peak.high)}), {format_bytes(entry.memory.usable_bytes)} to use"
    )
    terms = [(name, size) for name, size in entry.memory.terms_bytes.items() if size]
    choices = [(each.name, setting_text(each.value), each.reason) for each in plan.choices]
    times = [
        (_time_name(name), format_named(name, each.value), _interval(name, interval_of(each)))
        for name, each in plan.predicted.items()
        if name != "peak_memory_bytes"
    ]
    remedies = [f"{each.name}: {each.change}" for each in entry.remedies]
    parts = [
        f"<div><b>{escape(title)}</b> · <span",
        f' style="color:{colour};font-weight:600">{escape(verdict)}</span></div>',
        _memory_bar(terms, peak.value),
        _table(("choice", "", "why"), choices),
        _table(("predicted", "", "9 of 10 runs"), times),
        *(f"<div>{escape(line)}</div>" for line in remedies),
    ]
    lines = [
        f"{title}: {verdict}",
        *(f"  {name}: {format_bytes(size)}" for name, size in terms),
        *(f"  {name}: {value} - {reason}" for name, value, reason in choices),
        *(f"  {name}: {value}" for name, value, _ in times),
        *remedies,
    ]
    return f'<div style="{BOX}">{"".join(parts)}</div>', "\n".join(lines)


def _memory_bar(terms: Sequence[tuple[str, float]], total: float) -> str:
    """Return memory at the peak as one bar, and its terms by name."""
    bar, names = "", ""
    for place, (name, size) in enumerate(terms):
        colour = f"hsl({360 * place // len(terms)} 55% 55%)"
        share = 100 * size / max(total, 1)
        bar += f'<div style="width:{share:.2f}%;background:{colour}"></div>'
        square = f"display:inline-block;width:9px;height:9px;background:{colour}"
        names += f'<span><span style="{square}"></span> {escape(name)} {format_bytes(size)}</span>'
    label = escape(", ".join(f"{name} {format_bytes(size)}" for name, size in terms))
    return (
        f'<div role="img" aria-label="memory at the peak: {label}"'
        ' style="display:flex;height:14px;margin:6px'
        f' 0;border-radius:3px;overflow:hidden">{bar}</div><div'
        f' style="display:flex;flex-wrap:wrap;gap:2px 14px">{names}</div>'
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cell = "text-align:left;padding:1px 12px 1px 0;vertical-align:top"
    head_row = "".join(f'<th scope="col" style="{cell}">{escape(title)}</th>' for title in head)
    body = ["".join(f'<td style="{cell}">{escape(text)}</td>' for text in row) for row in rows]
    lines = "".join(f"<tr>{line}</tr>" for line in [head_row, *body])
    return f'<table style="font:inherit;border-collapse:collapse;margin:8px 0">{lines}</table>'


def _time_name(name: str) -> str:
    for unit in ("_time_s", "_wh", "_usd", "_s"):
        name = name.removesuffix(unit)
    return TIME_NAMES.get(name, name.replace("_", " "))


def _interval(name: str, interval: Bounds | None) -> str:
    if interval is None:
        return ""
    low, high = (format_named(name, end) for end in interval)
    return f"{low} to {high}"
