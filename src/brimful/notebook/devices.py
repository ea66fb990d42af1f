"""Which device is this, and what would a recipe need on it and on others: tables for a notebook,
made by `brimful plan` in a process of its own.
"""

import functools
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import psutil
import pynvml

from brimful.base.env import notebook_is_small
from brimful.base.units import (
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_money,
    format_named,
)
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.notebook.cell import require_notebook, show
from brimful.notebook.job import ask
from brimful.notebook.panel import BOX, COLOURS, FAINT
from brimful.recipe import load

COMPARED = (
    "Tesla T4",
    "NVIDIA L4",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H200",
)
"""What Colab, Kaggle and rented machines offer, from small to large."""
VERDICTS = {
    "fits": ("yes", COLOURS["done"]),
    "uncertain": ("perhaps", COLOURS["stopped"]),
    "does not fit": ("no", COLOURS["failed"]),
}
COLUMNS = (
    "device",
    "fits",
    "memory at the peak",
    "batch",
    "step",
    "tokens/s",
    "in all",
    "energy",
    "cost",
)
NO_GPU = (
    "no GPU here. In Colab: Runtime > Change runtime type; on Kaggle: Settings > Accelerator."
    " Planning needs none."
)
Json = dict[str, Any]


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver names it, asked without using it.

    Attributes:
        known: Its row of the catalog; None where there is none.
    """

    name: str
    memory_bytes: int
    used_bytes: int
    known: Device | None

    def told(self) -> str:
        """In a sentence."""
        parts = [
            f"{self.name}, {format_bytes(self.memory_bytes)},"
            f" {format_bytes(self.memory_bytes - self.used_bytes)} of it free"
        ]
        if self.known is None:
            parts.append(
                "the catalog has no such GPU, so times are not predicted until `brimful calibrate`"
                " measured it"
            )
        else:
            parts.append(
                "computes in bf16"
                if self.known.abilities.bf16
                else "has no bf16: brimful computes in fp16 with loss scaling, or in fp32"
            )
        return "; ".join(parts)


def gpu(recipe: str | Path | None = None, *overrides: str, on: Sequence[str] | None = None) -> None:
    """Show which device this is; with a recipe, also what that would need here and on other
    devices, so that it can be said which one to ask for.

    Args:
        recipe: A shipped recipe's name or a .yaml file.
        overrides: `key=value` changes.
        on: Exact names of the devices to compare with; `brimful plan RECIPE --on all` lists them.
            Default: `COMPARED`, none of them with BRIMFUL_NOTEBOOK=small.

    Raises:
        RecipeError, CommandFailed: the recipe breaks a rule, or no plan can be made; with the
            reason.
    """
    require_notebook()
    here = [each.told() for each in gpus()] or [f"{_machine()}; {NO_GPU}"]
    told = "".join(f"<div><b>This machine</b> · {escape(line)}</div>" for line in here)
    if recipe is None:
        show(f'<div style="{BOX}">{told}</div>', "\n".join(here))
        return
    _surveyed.cache_clear()
    entries = surveyed(recipe, overrides, on)
    table, text = device_table(entries)
    note = _what_to_do(entries)
    show(
        f'<div style="{BOX}">{told}{table}<div style="{FAINT}">{escape(note)}</div></div>',
        "\n".join([*here, text, note]),
    )


def plan(recipe: str | Path, *overrides: str, on: Sequence[str] | None = None) -> None:
    """Show how a recipe would run on this device: memory term by term, every choice with its
    reason, time, energy and cost.

    Args:
        recipe, overrides, on: See `gpu`; what that found out already is not asked again.

    Raises:
        RecipeError, CommandFailed: see `gpu`.
    """
    require_notebook()
    show(*closely(surveyed(recipe, overrides, on)[0]))


def gpus() -> list[Gpu]:
    """NVIDIA's GPUs by the driver's count; none without a driver. Makes no CUDA context, which
    would take memory from the training.
    """
    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return [_gpu(handle) for handle in handles]
    except pynvml.NVMLError:
        return []


def _gpu(handle: Any) -> Gpu:
    name, memory = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = name.decode() if isinstance(name, bytes) else str(name)
    return Gpu(name, int(memory.total), int(memory.used), catalog.find(name))


def _machine() -> str:
    return (
        f"{platform.system()} {platform.machine()}, {psutil.cpu_count()} CPU threads,"
        f" {format_bytes(psutil.virtual_memory().total)} of memory"
    )


def surveyed(
    recipe: str | Path, overrides: Sequence[str], on: Sequence[str] | None = None
) -> list[Json]:
    """This device and the others as `brimful plan --json` tells them; this one first, and not again
    among the others.

    Raises:
        RecipeError, CommandFailed: see `gpu`.
    """
    load(str(recipe), list(overrides))  # what is wrong with it is told at once
    entries: list[Json] = json.loads(
        _surveyed(str(recipe), tuple(overrides), _compared() if on is None else tuple(on))
    )["devices"]
    return [
        entries[0],
        *(entry for entry in entries[1:] if entry["device"] != entries[0]["device"]),
    ]


def _compared() -> tuple[str, ...]:
    return () if notebook_is_small() else COMPARED


@functools.lru_cache(maxsize=4)
def _surveyed(recipe: str, overrides: tuple[str, ...], on: tuple[str, ...]) -> str:
    return ask(["plan", recipe, *overrides, "--json", "--on", ",".join(["here", *on])])


def device_table(entries: Sequence[Json]) -> tuple[str, str]:
    """A row for each device, the first being this one, as HTML and as text."""
    rows = [_row(entry) for entry in entries]
    shown = [index for index, _ in enumerate(COLUMNS) if any(row[index] for row in rows)]
    head = "".join(
        '<th scope="col" style="text-align:left;padding:2px 12px 2px'
        f' 0">{escape(COLUMNS[index])}</th>'
        for index in shown
    )
    body = ""
    for number, (entry, row) in enumerate(zip(entries, rows, strict=True)):
        cells = [_cell(entry, index, row[index]) for index in shown]
        cells[0] = (
            cells[0].replace("</td>", f' <span style="{FAINT}">← this one</span></td>')
            if number == 0
            else cells[0]
        )
        body += f'<tr style="{"font-weight:600" * (number == 0)}">{"".join(cells)}</tr>'
    html = (
        '<div style="overflow-x:auto"><table'
        ' style="font:inherit;border-collapse:collapse;margin:8px'
        f' 0"><tr>{head}</tr>{body}</table></div>'
    )
    widths = [max(len(row[index]) for row in [COLUMNS, *rows]) for index in shown]
    text = [
        "  ".join(
            row[index].ljust(width) for index, width in zip(shown, widths, strict=True)
        ).rstrip()
        for row in [COLUMNS, *rows]
    ]
    return html, "\n".join(text)


def _cell(entry: Json, index: int, text: str) -> str:
    colour = (
        VERDICTS.get(str(entry.get("verdict")), ("", "inherit"))[1]
        if COLUMNS[index] == "fits"
        else "inherit"
    )
    return (
        f'<td style="padding:2px 12px 2px 0;color:{colour};white-space:nowrap">{escape(text)}</td>'
    )


def _row(entry: Json) -> tuple[str, ...]:
    name, plan = str(entry["device"]), entry.get("plan")
    if plan is None:
        return (name, "?", str(entry.get("reason", "")), "", "", "", "", "", "")
    predicted, verdict = plan["predicted"], VERDICTS.get(entry["verdict"], ("?", ""))[0]
    peak = (
        f"{format_bytes(entry['memory']['driver_bytes']['value'])} of"
        f" {format_bytes(plan['device']['memory_bytes'])}"
    )
    batch = f"{plan['micro_batch']} x {plan['accumulation']}" + f" + {plan['remainder']}" * bool(
        plan["remainder"]
    )
    if entry["verdict"] == "does not fit":
        return (name, verdict, peak, batch, "", "", "", "", "")
    forms = (
        (("step_time_s",), format_duration),
        (("tokens_per_s",), format_count),
        (("total_time_s",), format_duration),
        (("energy_wh",), format_energy),
        (("cost_usd",), format_money),
    )
    return (name, verdict, peak, batch, *(_first(predicted, names, form) for names, form in forms))


def _first(predicted: Mapping[str, float], names: Sequence[str], form: Any) -> str:
    return next((str(form(predicted[name])) for name in names if name in predicted), "")


def _what_to_do(entries: Sequence[Json]) -> str:
    """Whether this device will do, and which one would be quicker or holds it at all."""
    here, others = entries[0], [entry for entry in entries[1:] if entry.get("verdict") == "fits"]
    timed = [entry for entry in others if "total_time_s" in entry["plan"]["predicted"]]
    quickest = min(
        timed, key=lambda entry: float(entry["plan"]["predicted"]["total_time_s"]), default=None
    )
    if here.get("verdict") != "fits":
        holds = (
            f"It fits on: {', '.join(str(entry['device']) for entry in others) or 'none of these'}."
        )
        if here.get("plan") is None:
            return f"Here it cannot be planned: {str(here.get('reason')).rstrip('.')}. {holds}"
        return f"It does not surely fit here. {holds} `nb.plan` says what would make it fit."
    here_s = here["plan"]["predicted"].get("total_time_s")
    told = (
        f"It fits here and would take about {format_duration(here_s)}"
        if here_s
        else "It fits here; its length is known once the data are read"
    )
    if (
        quickest is not None
        and here_s
        and float(quickest["plan"]["predicted"]["total_time_s"]) < here_s
    ):
        told += (
            f"; on {quickest['device']}, the quickest of these,"
            f" {format_duration(quickest['plan']['predicted']['total_time_s'])}"
        )
    return f"{told}. batch: sequences in a micro-batch x micro-batches in a step."


def closely(entry: Json) -> tuple[str, str]:
    """One device's plan as HTML and as text."""
    plan = entry.get("plan")
    if plan is None:
        return f'<div style="{BOX}">{escape(str(entry.get("reason")))}</div>', str(
            entry.get("reason")
        )
    memory, (word, colour) = entry["memory"], VERDICTS[entry["verdict"]]
    peak = memory["driver_bytes"]
    between = f"{format_bytes(peak['low'])} to {format_bytes(peak['high'])}"
    title = f"{plan['recipe']} on {entry['device']}"
    verdict = (
        f"fits: {word}; peak {format_bytes(peak['value'])} ({between}),"
        f" {format_bytes(memory['usable_bytes'])} to use"
    )
    terms = [(name, float(value)) for name, value in memory["terms_bytes"].items() if value]
    choices = [
        (str(each["name"]), _plain(each["value"]), str(each["reason"])) for each in plan["choices"]
    ]
    times = [
        (name, value, plan["predicted_interval"].get(name))
        for name, value in plan["predicted"].items()
        if name not in {"parameters", "peak_memory_bytes"}
    ]
    timed = [
        (_label(name), format_named(name, value), _between(name, interval))
        for name, value, interval in times
    ]
    remedies = [f"{each['name']}: {each['change']}" for each in entry.get("remedies", [])]
    html = (
        f'<div style="{BOX}"><div><b>{escape(title)}</b> · <span'
        f' style="color:{colour};font-weight:600">{escape(verdict)}</span></div>'
        f"{_bar(terms, float(peak['value']))}{_table(('choice', '', 'why'), choices)}{_table(('predicted', '', '9 of 10 runs'), timed)}"
        + "".join(f"<div>{escape(line)}</div>" for line in remedies)
        + "</div>"
    )
    lines = [f"{title}: {verdict}", *(f"  {name}: {format_bytes(size)}" for name, size in terms)]
    lines += (
        [f"  {name}: {value} - {reason}" for name, value, reason in choices]
        + [f"  {name}: {value}" for name, value, _ in timed]
        + remedies
    )
    return html, "\n".join(lines)


def _bar(terms: Sequence[tuple[str, float]], total: float) -> str:
    """Memory at the peak as one bar, and its terms by name."""
    hues = [int(360 * index / max(1, len(terms))) for index, _ in enumerate(terms)]
    sizes = [
        (name, size, f"hsl({hue} 55% 55%)") for (name, size), hue in zip(terms, hues, strict=True)
    ]
    parts = "".join(
        f'<div style="width:{100 * size / max(total, 1):.2f}%;background:{colour}"></div>'
        for _, size, colour in sizes
    )
    names = "".join(
        f'<span><span style="display:inline-block;width:9px;height:9px;background:{colour}"></span>'
        f" {escape(name)} {format_bytes(size)}</span>"
        for name, size, colour in sizes
    )
    label = escape(", ".join(f"{name} {format_bytes(size)}" for name, size, _ in sizes))
    return (
        f'<div role="img" aria-label="memory at the peak: {label}"'
        ' style="display:flex;height:14px;margin:6px'
        f' 0;border-radius:3px;overflow:hidden">{parts}</div><div'
        f' style="display:flex;flex-wrap:wrap;gap:2px 14px">{names}</div>'
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cell = "text-align:left;padding:1px 12px 1px 0;vertical-align:top"
    titles = "".join(f'<th scope="col" style="{cell}">{escape(title)}</th>' for title in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{cell}">{escape(text)}</td>' for text in row) + "</tr>"
        for row in rows
    )
    return (
        '<table style="font:inherit;border-collapse:collapse;margin:8px'
        f' 0"><tr>{titles}</tr>{body}</table>'
    )


def _label(name: str) -> str:
    stem = name
    for unit in ("_time_s", "_wh", "_usd", "_s"):
        stem = stem.removesuffix(unit)
    return {
        "tokens_per": "tokens per second",
        "mfu": "MFU",
        "total": "in all",
        "start": "until the first step",
    }.get(stem, stem.replace("_", " "))


def _between(name: str, interval: Sequence[float] | None) -> str:
    return (
        ""
        if not interval
        else f"{format_named(name, interval[0])} to {format_named(name, interval[1])}"
    )


def _plain(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
