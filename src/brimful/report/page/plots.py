"""The curves of a run: by optimizer step, and what the monitor sampled over the time of the run."""

from collections.abc import Iterator, Sequence

import numpy as np

from brimful.base.arrays import Floats
from brimful.report.chart import Chart, Mark, Rule, Series, noisy, series_of, usual_range
from brimful.report.kinds import report_kind
from brimful.report.quantities import REWARD, WATCHED, label, watched
from brimful.report.scores import baselines, best_evaluation
from brimful.report.tuned import score_before
from brimful.runs.folder import RunFolder
from brimful.runs.records import EvaluationRecord, StepRecord, series

STEPS, MINUTES = "optimizer step", "minutes"
STEP_CURVES = {
    "learning_rate": "Learning rate",
    "grad_norm": "Gradient norm before clipping",
    "tokens_per_second": "Tokens per second",
}
NAMED = {
    REWARD: "Reward of an answer, mean of a round",
    "tokens": "Tokens of an answer, mean of a round",
    "cut": "Share of answers that reach the most tokens",
    "equal": "Share of questions whose answers all get the same reward, and teach nothing",
    "entropy": "Entropy of answers, nats per token",
    "clipped": "Share of tokens whose ratio is clipped",
}
"""Titles of values that methods name, where their words do not say enough."""
SAMPLED: dict[str, tuple[str, float, float | None]] = {
    "device_utilization": ("Device busy, %", 100.0, 105.0),
    "power_w": ("Power, W", 1.0, None),
    "temperature_c": ("Temperature, \N{DEGREE SIGN}C", 1.0, None),
    "process_cpu_cores": ("CPU cores in use", 1.0, None),
}
"""Readings of the monitor: title, the factor that makes the value drawn, and the end of the axis
where that is known.
"""
LONGEST_WAIT_S = 60.0
"""Between two samples of one session: the monitor takes one every 30 s at least."""
FAR_ABOVE = 1.15
"""A baseline so many times above every loss is left out, because it would squeeze the curves."""


def curves(run: RunFolder) -> list[Chart]:
    """Return the curves of loss, bits per byte, learning rate, gradient norm and speed, and of what
    was sampled beside them, rewards before all; those with fewer than two points are left out.
    """
    names = dict.fromkeys(_names(run.steps))
    named = [_named(run, name) for name in names]
    if REWARD in names:
        charts = [*named, _loss(run, is_main=False)]
    else:
        charts = [_loss(run), _label_metrics(run), _bits_per_byte(run), *named]
    charts += [_by_step(run, key, title) for key, title in STEP_CURVES.items()]
    charts += [_sampled(run, name) for name in SAMPLED]
    return [each for each in charts if each is not None]


def _label_metrics(run: RunFolder) -> Chart | None:
    """What a classifier reached at each evaluation."""
    names = dict.fromkeys(name for each in run.evaluations for name in watched(each.values))
    points = {name: series(run.evaluations, name) for name in names}
    points = {name: each for name, each in points.items() if len(each[0]) > 1}
    if not points:
        return None
    best, first = best_evaluation(run), next(iter(points))
    value = best.number(first) if best else None
    drawn = tuple(
        series_of(WATCHED[name], *each, look="dotted", place=place)
        for place, (name, each) in enumerate(points.items())
    )
    title = "Scores on validation; circle: kept"
    about = f"{', '.join(WATCHED[name] for name in points)} on validation by optimizer step"
    marks = (Mark(best.step, value),) if best and value is not None else ()
    return Chart("label-metrics", title, about, STEPS, drawn, marks=marks)


def _names(steps: Sequence[StepRecord]) -> Iterator[str]:
    for record in steps:
        yield from record.named


def _named(run: RunFolder, name: str) -> Chart | None:
    """A value that the method names, in training and at evaluations."""
    training = _points_of_named(run.steps, name)
    if len(training) < 2:
        return None
    at, values = zip(*training, strict=True)
    drawn: tuple[Series, ...] = noisy("training, smoothed", at, values)
    if held_out := _points_of_named(run.evaluations, name):
        points = zip(*held_out, strict=True)
        drawn += (series_of("validation", *points, look="dotted", role="validation"),)
    title = NAMED.get(name, label(name))
    about = f"{title}, by optimizer step; with marks: validation"
    key = f"named-{name.replace('_', '-')}"
    return Chart(key, title, about, STEPS, drawn, is_main=name == REWARD)


def _points_of_named(
    records: Sequence[StepRecord | EvaluationRecord], name: str
) -> list[tuple[float, float]]:
    return [(each.step, each.named[name]) for each in records if name in each.named]


def _loss(run: RunFolder, *, is_main: bool = True) -> Chart | None:
    steps, losses = series(run.steps, "loss")
    if len(steps) < 2:
        return None
    drawn: tuple[Series, ...] = noisy("training, smoothed", steps, losses)
    marks: tuple[Mark, ...] = ()
    at, evaluated = series(run.evaluations, "loss")
    if at:
        drawn += (series_of("validation", at, evaluated, look="dotted", role="validation"),)
        kept, best = best_evaluation(run), int(np.argmin(evaluated))
        marks = (Mark(at[best], evaluated[best], f"best {evaluated[best]:.3f}"),)
        if kept is not None and kept.objective is not None and kept.loss is not None:
            marks = (Mark(kept.step, kept.loss, f"kept {kept.loss:.3f}"),)
    before = score_before(run)
    levels = tuple(
        Rule(each.loss, f"{each.name.lower()} {each.loss:.2f}")
        for each in (baselines(run) if before is None else [before])
        if each.loss is not None and each.loss <= max(losses) * FAR_ABOVE
    )
    title, about = report_kind(run).loss_title(run), "Loss by optimizer step"
    return Chart("loss", title, about, STEPS, drawn, levels=levels, marks=marks, is_main=is_main)


def _bits_per_byte(run: RunFolder) -> Chart | None:
    """Bits per byte of every evaluation; None for a run whose loss does not give them."""
    steps, bits = series(run.evaluations, "bits_per_byte")
    if not report_kind(run).has_bits_per_byte or len(steps) < 2:
        return None
    best, title = int(np.argmin(bits)), "Bits per byte of held-out text"
    drawn = series_of("", steps, bits, look="dotted", role="validation")
    marks = (Mark(steps[best], bits[best], f"{bits[best]:.3f}"),)
    about = f"{title} by optimizer step"
    return Chart("bits-per-byte", title, about, STEPS, (drawn,), marks=marks)


def _by_step(run: RunFolder, key: str, title: str) -> Chart | None:
    at, values = series(run.steps, key)
    if len(at) < 2:
        return None
    drawn: tuple[Series, ...] = noisy("", at, values)
    if key == "learning_rate":
        drawn = (series_of("", at, values, role="training"),)
    about = f"{title} by optimizer step"
    return Chart(key.replace("_", "-"), title, about, STEPS, drawn, y_range=usual_range(values))


def _sampled(run: RunFolder, name: str) -> Chart | None:
    """A reading of the monitor over the time that the run ran."""
    title, factor, highest = SAMPLED[name]
    times, values = run.monitored.series(name)
    if len(times) < 2:
        return None
    values_N = np.asarray(values, dtype=np.float64) * factor
    mean = f"mean {values_N.mean():.3g}, highest {values_N.max():.3g}"
    return Chart(
        f"sampled-{name.replace('_', '-')}",
        title,
        f"{title} over the time of the run: {mean}",
        MINUTES,
        noisy("", running_minutes(times), values_N),
        y_range=(0.0, highest) if highest else usual_range(values_N),
    )


def running_minutes(times: Sequence[float]) -> Floats:
    """Unix seconds as minutes that the run ran: a pause between sessions counts as the longest wait
    between two samples of one.
    """
    waits_N = np.minimum(
        np.diff(np.asarray(times, dtype=np.float64), prepend=times[0]), LONGEST_WAIT_S
    )
    return np.asarray(np.cumsum(np.maximum(waits_N, 0.0)) / 60, dtype=np.float64)
