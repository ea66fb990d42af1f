"""The answer to "will it fit?" as a piece of the page: bars against what each device has, a table
with the same numbers, reasons.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
LEAST_SCALE, LARGEST_SCALE = 1.1, 1.6
"""Of the bars, as shares of what a device has; what is longer is cut, and says by how much."""
COLOURS = 10
"""Of the style sheet, from 1."""
ONE_OF_MANY = 0.002
"""Terms below this share of the peak have no piece of the bar."""


def fit_view(fit: Fit, *, stale: bool = False, looks_closely: bool = False) -> str:
    """The answer as HTML.

    Args:
        fit: The answer.
        stale: It answers an earlier question.
        looks_closely: What would make it fit is still looked for.
    """
    scale = _scale(fit.devices)
    colours = _colours(fit.devices)
    is_length_known = any(device.total_time_s for device in fit.devices)
    return render(
        "fit.html.j2",
        title=fit.title,
        notes=fit.notes,
        stale=stale,
        looks_closely=looks_closely,
        brim=_percent(1 / scale),
        counted=_counted(fit),
        legend=[{"name": name, "colour": colour} for name, colour in colours.items()],
        devices=[
            _device(device, scale, colours, is_length_known=is_length_known)
            for device in fit.devices
        ],
        is_length_known=is_length_known,
        has_cost=any(device.cost_usd or device.billion_tokens_usd for device in fit.devices),
    )


def _counted(fit: Fit) -> str:
    if not fit.parameters:
        return ""
    trains = (
        "" if fit.trainable == fit.parameters else f", of which {format_count(fit.trainable)} train"
    )
    return f"{format_count(fit.parameters)} parameters{trains}."


def _scale(devices: Sequence[DeviceFit]) -> float:
    """How much of a device's memory the whole width of a bar stands for."""
    largest = max(
        (peak.high / device.capacity_bytes for device in devices if (peak := _peak(device))),
        default=1.0,
    )
    return min(max(largest * 1.03, LEAST_SCALE), LARGEST_SCALE)


def _peak(device: DeviceFit) -> Prediction | None:
    """What the driver shows at the peak. Where a step fits, the allocator holds no more than there
    is: it gives back what it only keeps.
    """
    peak = device.peak_bytes
    if peak is None:
        return None
    most = max(device.capacity_bytes, peak.value) if device.verdict == "fits" else peak.high
    return replace(peak, low=max(0, peak.low), high=min(peak.high, most))


def _colours(devices: Sequence[DeviceFit]) -> dict[str, int]:
    """A colour for every term that a bar shows; terms keep theirs from one answer to the next as
    long as they are the same.
    """
    shown = dict.fromkeys(
        name
        for device in devices
        for name, size in device.terms
        if size >= ONE_OF_MANY * sum(dict(device.terms).values())
    )
    return {name: place % COLOURS + 1 for place, name in enumerate(shown)}


def _device(
    device: DeviceFit, scale: float, colours: dict[str, int], *, is_length_known: bool
) -> dict[str, Any]:
    peak, capacity = _peak(device), device.capacity_bytes
    bar, low, high, beyond = [], 0.0, 0.0, ""
    if peak is not None:
        ratio = peak.value / capacity
        bar = _pieces(device, capacity * scale, colours)
        low, high = _percent(peak.low / capacity / scale), _percent(peak.high / capacity / scale)
        beyond = f"needs {ratio:.1f} x what it has" if ratio > scale else ""
    times = (
        "step_time_s",
        *(
            ("total_time_s", "cost_usd", "energy_wh")
            if is_length_known
            else ("billion_tokens_s", "billion_tokens_usd")
        ),
    )
    return {
        "name": device.device,
        "verdict": WORDS[device.verdict],
        "tone": TONES[device.verdict],
        "capacity": format_bytes(capacity),
        "peak": format_bytes(peak.value) if peak else "",
        "bar": bar,
        "low": low,
        "spread": max(high - low, 0.3),
        "beyond": beyond,
        "label": _label(device),
        "reason": device.reason if device.verdict != "fits" else "",
        "remedies": device.remedies,
        "terms": [{"name": name, "size": format_bytes(size)} for name, size in device.terms],
        "choices": [
            {"name": each.name, "value": _plain(each.value), "reason": each.reason}
            for each in device.choices
        ],
        "cells": [
            _cell("peak_bytes", peak),
            {
                "value": f"{device.micro_batch} x {device.accumulation}" if peak else "-",
                "interval": _largest(device),
            },
            *(_cell(name, getattr(device, name)) for name in times),
        ],
    }


def _largest(device: DeviceFit) -> str:
    """How many sequences at a time fit; `largest_micro_batch` counts those that surely do."""
    is_uncertain = device.verdict == "uncertain"
    if device.peak_bytes is None:
        return ""
    if device.largest_micro_batch:
        return f"up to {device.largest_micro_batch} {'surely fit' if is_uncertain else 'fit'}"
    if device.micro_batch > 1:
        return "not even 1 surely fits"
    return "1 may fit" if is_uncertain else "not even 1 fits"


def _pieces(device: DeviceFit, width_bytes: float, colours: dict[str, int]) -> list[dict[str, Any]]:
    """The stacked terms, from the left; nothing beyond the bar's end."""
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
    """The bar in words."""
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
    number, _, unit = low.partition(" ")
    return {
        "value": form(prediction.value),
        "interval": f"{number if unit and high.endswith(f' {unit}') else low} to {high}",
    }


def _plain(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _percent(share: float) -> float:
    return round(100 * share, 3)
