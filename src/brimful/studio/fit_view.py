"""Whether a recipe fits, as a piece of the page: bars against the memory of each device, a table
with the same numbers, and reasons.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from brimful.base.text import setting_text
from brimful.base.units import (
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_money,
)
from brimful.planning.plan import Prediction
from brimful.studio.fit import DeviceFit, Fit
from brimful.studio.html import render

TONES = {"fits": "good", "uncertain": "maybe", "does not fit": "bad", "unknown": "open"}
WORDS = {
    "fits": "fits",
    "uncertain": "may not fit",
    "does not fit": "does not fit",
    "unknown": "unknown",
}
FORMS = {
    "peak_bytes": format_bytes,
    "step_time_s": format_duration,
    "total_time_s": format_duration,
    "billion_tokens_s": format_duration,
    "cost_usd": format_money,
    "billion_tokens_usd": format_money,
    "energy_wh": format_energy,
}
COLOURS = 10
"""Of the style sheet, from 1."""
LEAST_TERM = 0.002
"""Terms below this share of the peak have no piece of the bar."""
LEAST_SPREAD = 0.3
"""Width of the interval at least, in percent of the bar."""


def fit_view(fit: Fit, *, stale: bool = False, looks_closely: bool = False) -> str:
    """Return what a recipe takes on each device as HTML.

    Args:
        fit: What it takes.
        stale: It belongs to an earlier request.
        looks_closely: What would make it fit is still looked for.
    """
    colours = _colours(fit.devices)
    is_length_known = any(device.total_time_s for device in fit.devices)
    return render(
        "fit.html.j2",
        title=fit.title,
        notes=fit.notes,
        stale=stale,
        looks_closely=looks_closely,
        counted=_counted(fit),
        legend=[{"name": name, "colour": colour} for name, colour in colours.items()],
        devices=[
            _device(device, colours, is_length_known=is_length_known) for device in fit.devices
        ],
        is_length_known=is_length_known,
        has_cost=any(device.cost_usd or device.billion_tokens_usd for device in fit.devices),
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


def _colours(devices: Sequence[DeviceFit]) -> dict[str, int]:
    """Return a colour for every term that a bar shows. The same terms have the same colours in the
    next answer.
    """
    shown = dict.fromkeys(
        name
        for device in devices
        for name, size in device.terms
        if size >= LEAST_TERM * sum(dict(device.terms).values())
    )
    return {name: place % COLOURS + 1 for place, name in enumerate(shown)}


def _device(device: DeviceFit, colours: dict[str, int], *, is_length_known: bool) -> dict[str, Any]:
    """Return the values of one device for the template."""
    times = ["billion_tokens_s", "billion_tokens_usd"]
    if is_length_known:
        times = ["total_time_s", "cost_usd", "energy_wh"]
    peak = _peak(device)
    batch = f"{device.micro_batch} x {device.accumulation}" if peak else "-"
    return {
        "name": device.device,
        "verdict": WORDS[device.verdict],
        "tone": TONES[device.verdict],
        "capacity": format_bytes(device.capacity_bytes),
        "label": _label(device),
        "reason": "" if device.verdict == "fits" else device.reason,
        "remedies": device.remedies,
        "terms": [{"name": name, "size": format_bytes(size)} for name, size in device.terms],
        "choices": [
            {"name": each.name, "value": setting_text(each.value), "reason": each.reason}
            for each in device.choices
        ],
        "cells": [
            _cell("peak_bytes", peak),
            {"value": batch, "interval": _largest(device)},
            *(_cell(name, getattr(device, name)) for name in ("step_time_s", *times)),
        ],
        **_bar(device, colours),
    }


def _bar(device: DeviceFit, colours: dict[str, int]) -> dict[str, Any]:
    """Return the stacked bar of a device with the interval of its peak. A full bar is what the
    device has; more is cut off and told in words.
    """
    peak, capacity = _peak(device), device.capacity_bytes
    if peak is None:
        return {"peak": "", "bar": [], "low": 0.0, "spread": 0.0, "beyond": ""}
    low, high = (min(100.0, _percent(end / capacity)) for end in (peak.low, peak.high))
    return {
        "peak": format_bytes(peak.value),
        "bar": _pieces(device, capacity, colours),
        "low": min(low, 100 - LEAST_SPREAD),
        "spread": 0.0 if peak.value > capacity else max(high - low, LEAST_SPREAD),
        "beyond": _beyond(peak, capacity),
    }


def _beyond(peak: Prediction, capacity: int) -> str:
    """`needs 2.5 x what it has`; empty where even the upper end of the peak fits."""
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


def _pieces(device: DeviceFit, width_bytes: float, colours: dict[str, int]) -> list[dict[str, Any]]:
    """Return the stacked terms, from the left to the end of the bar."""
    pieces, start = [], 0
    for name, size in device.terms:
        if name in colours and start < width_bytes:
            width = min(size, width_bytes - start)
            pieces.append(
                {
                    "name": name,
                    "size": format_bytes(size),
                    "colour": colours[name],
                    "left": _percent(start / width_bytes),
                    "width": _percent(width / width_bytes),
                }
            )
        start += size
    return pieces


def _label(device: DeviceFit) -> str:
    """Return the bar in words, for screen readers."""
    if device.peak_bytes is None:
        return ""
    terms = ", ".join(f"{name} {format_bytes(size)}" for name, size in device.terms)
    return (
        f"{device.device} {WORDS[device.verdict]}: {format_bytes(device.peak_bytes.value)} of"
        f" {format_bytes(device.capacity_bytes)}. {terms}"
    )


def _cell(name: str, prediction: Prediction | None) -> dict[str, str]:
    if prediction is None:
        return {"value": "-", "interval": ""}
    form = FORMS[name]
    low, high = form(prediction.low), form(prediction.high)
    if low == high:  # both below a cent, say
        return {"value": form(prediction.value), "interval": ""}
    number, _, unit = low.partition(" ")
    if unit and number != "<" and high.endswith(f" {unit}"):
        low = number
    return {"value": form(prediction.value), "interval": f"{low} to {high}"}


def _percent(share: float) -> float:
    return round(100 * share, 3)
