"""The page of a training that another program ran: what was predicted beside what was measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from brimful.base.rundir import write_text_atomically
from brimful.base.text import plural
from brimful.base.units import GIB, MIB, format_bytes, format_count, format_duration
from brimful.planning.memory import Footprint
from brimful.planning.plan import Prediction
from brimful.report.bars import Part, parts
from brimful.report.drawing import AXIS, BEST, INK, TRAIN, Drawing, style, tick
from brimful.report.judgement import BANDS, GUESS_WIDTH, judgements_in_words
from brimful.report.kinds import Card
from brimful.report.page.html import render_page
from brimful.report.page.memory_page import NEAR, SIZE, SIZE_ON_PHONES, draw_level, draw_stack
from brimful.report.page.plots import thin
from brimful.report.page.predicted import prediction_rows
from brimful.report.predictions import PREDICTED_NAMES, Comparison
from brimful.report.quantities import capitalised, format_quantity, label
from brimful.report.table import Table, table_of
from brimful.trainers.fitting import TrainerPlan, division_in_words
from brimful.trainers.measuring import WARM_UP_STEPS, MeasuredTraining

MEMORY_SOURCE = {
    "cuda": "held by torch's allocator, the highest of all steps",
    "cpu": "of the process without mapped files, the highest since the training began",
}


@dataclass(frozen=True)
class Predicted:
    """What a page shows of a plan.

    Attributes:
        device: Name of the device that was planned for.
        kind: "cuda", "mps" or "cpu".
        footprint: Predicted memory.
        step_time: Predicted seconds of a step; None where no rate is known.
        reason: Why the step is divided so; empty where nothing was decided.
    """

    device: str
    kind: str
    footprint: Footprint
    step_time: Prediction | None = None
    reason: str = ""


@dataclass(frozen=True)
class Trained:
    """What was trained, and what was measured of it.

    Attributes:
        what: Class of the model.
        by: What trained it.
        on: Name of the device.
        parameters, trainable: Of the model.
        division: Rows of a micro-batch, and micro-batches of a step.
        rows: Of an optimizer step, of all devices together.
    """

    what: str
    by: str
    on: str
    parameters: int
    trainable: int
    division: tuple[int, int]
    rows: int
    measured: MeasuredTraining


def predicted_by(plan: TrainerPlan | None) -> Predicted | None:
    """Return what a page shows of a Trainer's plan."""
    if plan is None:
        return None
    return Predicted(
        plan.device.name, plan.device.kind, plan.footprint, plan.step_time, plan.reason
    )


def write_page(path: Path, trained: Trained, predicted: Predicted | None, note: str = "") -> None:
    """Write the page.

    Args:
        note: Why nothing was predicted.

    Raises:
        RunFolderError: it cannot be written there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, render(trained, predicted, note))


def render(trained: Trained, predicted: Predicted | None, note: str = "") -> str:
    """Return the page as text. What was planned for another device is not compared."""
    is_same = predicted is not None and predicted.device == trained.on
    compared = comparisons(trained.measured, predicted, is_same=is_same) if predicted else []
    rows, scale = prediction_rows(compared)
    terms = parts(_terms(predicted), "bytes") if predicted else []
    values: dict[str, Any] = {
        "title": trained.what,
        "sentence": _sentence(trained),
        "verdict": judgements_in_words([each.judgement for each in compared]),
        "elsewhere": predicted.device if predicted and not is_same else "",
        "note": note,
        "cards": _cards(trained, predicted if is_same else None),
        "rows": rows,
        "scale": scale,
        "bands": [f"{band.limit * 100:.0f} %" for band in BANDS[:-1]],
        "guess_width": f"{GUESS_WIDTH:g}",
        "origins": _origins(compared),
        "division": capitalised(division_in_words(*trained.division)),
        "reason": predicted.reason if predicted else "",
        "memory": _memory_drawing(trained.measured, predicted if is_same else None, terms),
        "terms": terms,
        "usable": format_bytes(predicted.footprint.usable_bytes) if predicted else "",
        "phase": predicted.footprint.peak_phase if predicted else "",
        "times": _time_drawing(trained.measured, predicted if is_same else None),
    }
    return render_page("trainer.html.j2", values)


def comparisons(
    measured: MeasuredTraining, predicted: Predicted, *, is_same: bool
) -> list[Comparison]:
    """Return the predictions beside what was measured; not measured on another device."""
    footprint, on_host = predicted.footprint, predicted.kind == "cpu"
    peak = footprint.driver if on_host else footprint.reserved
    found: list[tuple[str, Prediction | None, float | None, str]] = [
        ("peak_memory_bytes", peak, measured.peak_bytes, MEMORY_SOURCE.get(predicted.kind, "")),
        (
            "allocated_memory_bytes",
            None if on_host else footprint.allocated,
            measured.tensors_bytes,
            "tensors, by torch's allocator",
        ),
        (
            "step_time_s",
            predicted.step_time,
            measured.step_time_s,
            f"median of {plural(len(measured.steady_s), 'step')}",
        ),
    ]
    return [
        Comparison(
            key,
            PREDICTED_NAMES[key],
            prediction.value,
            (prediction.low, prediction.high),
            value if is_same else None,
            prediction.basis,
            source if is_same and value is not None else "",
        )
        for key, prediction, value, source in found
        if prediction is not None
    ]


def _terms(predicted: Predicted) -> list[tuple[str, float]]:
    known = [(label(name), float(size)) for name, size in predicted.footprint.terms.items()]
    return sorted([term for term in known if term[1] > 0], key=lambda term: -term[1])


def _origins(compared: list[Comparison]) -> Table | None:
    rows = [(each.name, each.basis, each.source) for each in compared]
    return table_of(("Quantity", "Predicted from", "MeasuredTraining as"), rows)


def _sentence(trained: Trained) -> str:
    some = ""
    if trained.trainable != trained.parameters:
        some = f", {format_count(trained.trainable)} of them trained"
    times = trained.measured.step_times_s
    return (
        f"{trained.what} with {format_count(trained.parameters)} parameters{some}, trained for"
        f" {plural(len(times), 'optimizer step')} by {trained.by} on {trained.on}, in"
        f" {format_duration(sum(times))}."
    )


def _cards(trained: Trained, predicted: Predicted | None) -> list[Card]:
    measured, peak, step = trained.measured, "", ""
    if predicted is not None:
        footprint = predicted.footprint
        expected = footprint.driver if predicted.kind == "cpu" else footprint.reserved
        peak = f"predicted {format_bytes(expected.value)}"
        if predicted.step_time is not None:
            step = f"predicted {format_quantity('step_time_s', predicted.step_time.value)}"
    cards = [Card("Peak memory", format_bytes(measured.peak_bytes), peak)]
    step_s = measured.step_time_s
    if step_s is not None:
        cards += [
            Card("Time per optimizer step", format_quantity("step_time_s", step_s), step),
            Card("Rows per second", f"{trained.rows / step_s:.3g}", ""),
        ]
    return [*cards, Card("Effective batch", f"{trained.rows:,}", "rows of an optimizer step")]


def _memory_drawing(
    measured: MeasuredTraining, predicted: Predicted | None, terms: list[Part]
) -> Drawing | None:
    if len(measured.looks) < 2:
        return None
    seconds_N, bytes_N = (np.array(each, np.float64) for each in zip(*measured.looks, strict=True))
    levels = [float(bytes_N.max())]
    if predicted is not None:
        peak = predicted.footprint
        expected = peak.driver if predicted.kind == "cpu" else peak.reserved
        levels += [expected.value, expected.high]
        if peak.usable_bytes < NEAR * max(levels):
            levels.append(peak.usable_bytes)
    top = 1.08 * max(levels)
    unit, scale = ("GiB", GIB) if top >= 1.08 * GIB else ("MiB", MIB)

    def draw(figure: Figure) -> None:
        if predicted is None:
            axes = figure.add_subplot()
        else:
            stack, axes = figure.subplots(1, 2, width_ratios=(1, 11), sharey=True)
            draw_stack(stack, terms, scale)
            axes.axhspan(
                expected.low / scale, expected.high / scale, color=AXIS, alpha=0.14, linewidth=0
            )
            text = f"predicted peak {format_bytes(expected.value)}"
            draw_level(axes, expected.value / scale, text, INK)
            if peak.usable_bytes in levels:
                text = f"usable {format_bytes(peak.usable_bytes)}"
                draw_level(axes, peak.usable_bytes / scale, text, BEST)
        axes.set_ylim(0, top / scale)
        _draw_line(axes, seconds_N, bytes_N / scale, "measured, highest so far")
        figure.axes[0].set_ylabel(unit, color=AXIS, fontsize=11)

    description = f"Memory over the training, highest {format_bytes(float(bytes_N.max()))}."
    title = "Memory: predicted at the peak, measured" if predicted else "Memory, highest so far"
    return Drawing("memory", title, description, SIZE, draw, SIZE_ON_PHONES)


def _draw_line(axes: Axes, at_N: Any, values_N: Any, name: str) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(tick))
    axes.plot(*thin(at_N, values_N), color=TRAIN, linewidth=1.8, label=name)
    axes.legend(loc="lower right", frameon=False, fontsize=11, labelcolor=AXIS)
    style(axes, "seconds", integer=False)


def _time_drawing(measured: MeasuredTraining, predicted: Predicted | None) -> Drawing | None:
    times_N = np.array(measured.step_times_s, np.float64)
    if len(times_N) < 3:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.set_ylim(0, 1.15 * float(times_N.max()))
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
        steps_N = np.arange(1, len(times_N) + 1, dtype=np.float64)
        axes.plot(*thin(steps_N, times_N), color=TRAIN, linewidth=1.8)
        if predicted is not None and predicted.step_time is not None:
            expected_s = predicted.step_time.value
            if expected_s < 1.15 * float(times_N.max()):
                text = f"predicted {format_quantity('step_time_s', expected_s)}"
                draw_level(axes, expected_s, text, INK)
        style(axes)
        axes.set_ylabel("seconds", color=AXIS, fontsize=11)

    median_s = format_quantity("step_time_s", measured.step_time_s or 0.0)
    left_out = f"; the first {WARM_UP_STEPS} left out" if WARM_UP_STEPS else ""
    description = f"Time of each optimizer step, median {median_s}{left_out}."
    return Drawing("times", "Time per optimizer step", description, SIZE, draw, SIZE_ON_PHONES)
