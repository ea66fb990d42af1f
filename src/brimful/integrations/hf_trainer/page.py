"""The page of a training that another program ran: what was predicted beside what was measured."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from brimful.base.text import plural
from brimful.base.units import format_bytes, format_count, format_duration
from brimful.integrations.hf_trainer.fitting import division_in_words
from brimful.integrations.hf_trainer.measuring import WARM_UP_STEPS, MeasuredTraining
from brimful.planning.memory import Footprint
from brimful.planning.plan import Prediction
from brimful.report.bars import Bar, Bars, Part, parts
from brimful.report.chart import Chart, Rule, series_of
from brimful.report.judgement import judgements_in_words
from brimful.report.page.html import write_view
from brimful.report.page.memory_page import memory_chart
from brimful.report.page.plots import STEPS
from brimful.report.page.predicted import judged_blocks
from brimful.report.predictions import PREDICTED_NAMES, Comparison, largest_first
from brimful.report.quantities import capitalised, format_quantity
from brimful.report.views import Block, Card, Paragraph, View, section, text

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

    @property
    def peak(self) -> Prediction:
        """What is measured at the peak: of the process, or by torch's allocator."""
        return self.footprint.driver if self.kind == "cpu" else self.footprint.reserved


@dataclass(frozen=True)
class Trained:
    """What was trained, and what was measured of it.

    Attributes:
        what: Class of the model.
        by: What trained it.
        on: Name of the device.
        parameters, trainable: Counts of the model.
        division: Rows of a micro-batch, and micro-batches of a step.
        rows: Rows of an optimizer step, of all devices together.
    """

    what: str
    by: str
    on: str
    parameters: int
    trainable: int
    division: tuple[int, int]
    rows: int
    measured: MeasuredTraining


def trained(
    model: nn.Module,
    by: str,
    on: str,
    division: tuple[int, int],
    measured: MeasuredTraining,
    world: int = 1,
) -> Trained:
    """Return what was trained, on `world` devices together."""
    sizes = [(each.numel(), each.requires_grad) for each in model.parameters()]
    return Trained(
        what=type(model).__name__,
        by=by,
        on=on,
        parameters=sum(size for size, _ in sizes),
        trainable=sum(size for size, trains in sizes if trains),
        division=division,
        rows=division[0] * division[1] * world,
        measured=measured,
    )


def write_page(path: Path, seen: Trained, predicted: Predicted | None, note: str = "") -> None:
    """Write the page.

    Args:
        note: Why nothing was predicted.

    Raises:
        RunFolderError: it cannot be written there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_view(training_view(seen, predicted, note), path)


def training_view(seen: Trained, predicted: Predicted | None, note: str = "") -> View:
    """Return all that is told of the training. What was planned for another device is not
    compared.
    """
    is_same = predicted is not None and predicted.device == seen.on
    compared = comparisons(seen.measured, predicted, is_same=is_same) if predicted else []
    here = predicted if is_same else None
    reason = f" {predicted.reason}" if predicted and predicted.reason else ""
    verdict = judgements_in_words([each.judgement for each in compared])
    elsewhere = ""
    if predicted and not is_same:
        elsewhere = (
            f"Planned for {predicted.device} and trained on another device, so that predictions are"
            " not compared."
        )
    division = Paragraph(f"{capitalised(division_in_words(*seen.division))}.{reason}")
    sections = (
        section("predictions", "Predicted and measured", *_predictions(compared, note)),
        section("division", "Optimizer step", division),
        section("memory", "Memory", *_memory(seen.measured, predicted, here)),
        section("time", "Time", _time_chart(seen.measured, here)),
    )
    return View(
        seen.what,
        "training report",
        _sentence(seen),
        (*text(f"{verdict}." if verdict else "", "verdict"), *text(elsewhere, "verdict")),
        tuple(each for each in sections if each.blocks),
        tuple(_cards(seen, here)),
        footer="Written by brimful when the training ended.",
    )


def _memory(
    measured: MeasuredTraining, predicted: Predicted | None, here: Predicted | None
) -> Iterator[Block]:
    """What is usable, memory over the training, and the plan's parts where these do not stand in
    the chart.
    """
    terms = parts(largest_first(predicted.footprint.terms), "bytes") if predicted else []
    if predicted:
        footprint = predicted.footprint
        yield Paragraph(
            f"{format_bytes(footprint.usable_bytes)} are usable on the planned device. The step"
            f" needs most in its {footprint.peak_phase} phase."
        )
    if chart := _memory_chart(measured, here, terms):
        yield chart
    if terms and not (chart and chart.stack):
        yield Bars("", "Predicted peak", (Bar("predicted", tuple(terms)),))


def comparisons(
    measured: MeasuredTraining, predicted: Predicted, *, is_same: bool
) -> list[Comparison]:
    """Return the predictions beside what was measured; not measured on another device."""
    allocated = None if predicted.kind == "cpu" else predicted.footprint.allocated
    found: list[tuple[str, Prediction | None, float | None, str]] = [
        (
            "peak_memory_bytes",
            predicted.peak,
            measured.peak_bytes,
            MEMORY_SOURCE.get(predicted.kind, ""),
        ),
        (
            "allocated_memory_bytes",
            allocated,
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


def _predictions(compared: list[Comparison], note: str) -> tuple[Block, ...]:
    if not compared:
        nothing = note or "Nothing was predicted: the training was only measured."
        return text(nothing, "missing")
    return judged_blocks(compared)


def _sentence(seen: Trained) -> str:
    some = ""
    if seen.trainable != seen.parameters:
        some = f", {format_count(seen.trainable)} of them trained"
    times = seen.measured.step_times_s
    return (
        f"{seen.what} with {format_count(seen.parameters)} parameters{some}, trained for"
        f" {plural(len(times), 'optimizer step')} by {seen.by} on {seen.on}, in"
        f" {format_duration(sum(times))}."
    )


def _cards(seen: Trained, predicted: Predicted | None) -> list[Card]:
    measured, peak, step = seen.measured, "", ""
    if predicted is not None:
        peak = f"predicted {format_bytes(predicted.peak.value)}"
        if predicted.step_time is not None:
            step = f"predicted {format_quantity('step_time_s', predicted.step_time.value)}"
    cards = [Card("Peak memory", format_bytes(measured.peak_bytes), peak)]
    step_s = measured.step_time_s
    if step_s is not None:
        cards += [
            Card("Time per optimizer step", format_quantity("step_time_s", step_s), step),
            Card("Rows per second", f"{seen.rows / step_s:.3g}", ""),
        ]
    return [*cards, Card("Effective batch", f"{seen.rows:,}", "rows of an optimizer step")]


def _memory_chart(
    measured: MeasuredTraining, predicted: Predicted | None, terms: list[Part]
) -> Chart | None:
    if len(measured.looks) < 2:
        return None
    seconds_N, bytes_N = (np.array(each, np.float64) for each in zip(*measured.looks, strict=True))
    lines = {"measured, highest so far": (seconds_N, bytes_N)}
    if predicted is None:
        title, nothing = "Memory, highest so far", {"predicted peak": None, "usable": None}
        return memory_chart(title, "seconds", lines, nothing, None, ())
    peak = predicted.peak
    levels = {"predicted peak": peak.value, "usable": predicted.footprint.usable_bytes}
    title = "Memory: predicted at the peak, measured"
    return memory_chart(title, "seconds", lines, levels, (peak.low, peak.high), terms)


def _time_chart(measured: MeasuredTraining, predicted: Predicted | None) -> Chart | None:
    times_s = measured.step_times_s
    if len(times_s) < 3:
        return None
    top, levels = 1.15 * max(times_s), ()  # type: float, tuple[Rule, ...]
    if predicted is not None and predicted.step_time is not None:
        expected_s = predicted.step_time.value
        name = f"predicted {format_quantity('step_time_s', expected_s)}"
        levels = (Rule(expected_s, name, "plain"),) if expected_s < top else ()
    median_s = format_quantity("step_time_s", measured.step_time_s or 0.0)
    left_out = f"; the first {WARM_UP_STEPS} left out" if WARM_UP_STEPS else ""
    return Chart(
        "times",
        "Time per optimizer step",
        f"Time of each optimizer step, median {median_s}{left_out}.",
        STEPS,
        (series_of("", range(1, len(times_s) + 1), times_s, role="training"),),
        "seconds",
        levels,
        y_range=(0.0, top),
        is_main=True,
    )
