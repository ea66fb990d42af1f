"""The curves of a report as inline SVG: text stays text, colours are CSS variables so that light and dark pages both work."""

import io
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
import numpy as np
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from brimful.base.units import format_count
from brimful.report.labels import WATCHED, watched
from brimful.report.runfiles import Json, RunFiles, is_tuned, kind_of, number, section, series
from brimful.report.tables import Score, baselines, best_evaluation
from brimful.report.tuned import score_before

FloatArray = NDArray[np.float64]

VARIABLES = {
    "#fa0001": "--axis",
    "#fa0002": "--grid",
    "#fa0003": "--train",
    "#fa0004": "--validation",
    "#fa0005": "--baseline",
    "#fa0006": "--best",
    "#fa0007": "--ink",
}
"""Colours drawn with, and the CSS variables they become. Without a style sheet, `FALLBACK` is used."""
FALLBACK = "#808080"
AXIS, GRID, TRAIN, VALIDATION, BASELINE, BEST, INK = VARIABLES
MAX_POINTS = 600
"""Points drawn of a longer series; extremes are kept."""
SMOOTH_SHARE = 0.03
"""Width of the running mean, as a share of the series."""
POINTS_PER_INCH = 72


@dataclass(frozen=True)
class Curve:
    """A figure in two shapes: for a page's full width, and for a phone's."""

    key: str
    title: str
    wide: str
    narrow: str


def curves(run: RunFiles) -> list[Curve]:
    """Loss, learning rate, gradient norm and speed; those without at least two points are left out."""
    steps = run.of_kind("step")
    drawn = []
    if len(series(steps, "loss")[0]) > 1:
        wide, narrow = (_draw_loss(run, f"loss-{shape}", size) for shape, size in (("wide", (820, 360)), ("narrow", (350, 300))))
        drawn.append(Curve("loss", _loss_title(run), wide, narrow))
    drawn += [curve] if (curve := _label_metrics(run)) else []
    for key, title in (
        ("learning_rate", "Learning rate"),
        ("grad_norm", "Gradient norm before clipping"),
        ("tokens_per_second", "Tokens per second"),
    ):
        if len(series(steps, key)[0]) > 1:
            svg = _draw_small(steps, key, title)
            drawn.append(Curve(key, title, svg, svg))
    return drawn


def _loss_title(run: RunFiles) -> str:
    kind = kind_of(run)
    if kind == "labels":
        is_weighted = section(run.recipe, "labels").get("class_weights") not in (None, "none")
        return f"Loss, nats per text{', weighted in training' if is_weighted else ''}"
    if kind == "masked":
        return "Loss, nats per masked token"
    learns_answers = is_tuned(run) and section(run.recipe, "data").get("loss_on") != "all"
    return "Loss over answers, nats per token" if learns_answers else "Loss, nats per target token"


def _label_metrics(run: RunFiles) -> Curve | None:
    """What a classifier reached at each evaluation; None for other models and with fewer than two evaluations."""
    evaluations = run.of_kind("evaluation")
    known = dict.fromkeys(name for record in evaluations for name in watched(record))
    found = [name for name in known if len(series(evaluations, name)[0]) > 1]
    if not found:
        return None

    def draw(axes: Axes) -> None:
        for name, colour, line in zip(found, (TRAIN, VALIDATION, BASELINE), ("solid", (0, (5, 2)), (0, (1, 1.5))), strict=False):
            axes.plot(*_arrays(evaluations, name), color=colour, linestyle=line, linewidth=1.6, marker="o", markersize=3.5, label=WATCHED[name])
        best = best_evaluation(run)
        if best is not None and (value := number(best.get(found[0]))) is not None:
            axes.plot([best["step"]], [value], "o", markersize=10, markerfacecolor="none", markeredgecolor=BEST, markeredgewidth=1.6)
        axes.legend(loc="best", frameon=False, fontsize=11, labelcolor=AXIS)

    title = "Scores on validation; circle: kept"
    svg = _render("label-metrics", (310, 215), f"{', '.join(WATCHED[name] for name in found)} on validation by optimizer step", draw)
    return Curve("label_metrics", title, svg, svg)


def _draw_loss(run: RunFiles, key: str, size: tuple[int, int]) -> str:
    def draw(axes: Axes) -> None:
        steps, loss = _arrays(run.of_kind("step"), "loss")
        highest = float(np.max(loss))
        axes.plot(*thin(steps, loss), color=TRAIN, linewidth=0.8, alpha=0.35)
        axes.plot(*thin(steps, smooth(loss)), color=TRAIN, linewidth=1.8)
        evaluations = run.of_kind("evaluation")
        at, held_out = _arrays(evaluations, "loss")
        if len(at):
            axes.plot(at, held_out, color=VALIDATION, linewidth=1.2, marker="o", markersize=4)
            kept = best_evaluation(run) or {}
            best = int(np.argmin(np.abs(at - float(kept["step"])))) if "objective" in kept else int(np.argmin(held_out))
            axes.plot(at[best], held_out[best], "o", markersize=10, markerfacecolor="none", markeredgecolor=BEST, markeredgewidth=1.6)
            axes.annotate(
                f"{'kept' if 'objective' in kept else 'best'} {held_out[best]:.3f}",
                (at[best], held_out[best]),
                (0, 14),
                textcoords="offset points",
                ha="center",
                color=BEST,
                weight="bold",
            )
        before = score_before(run)
        for baseline in baselines(run) if before is None else [before]:
            _draw_baseline(axes, baseline, highest, float(steps[-1]))

    return _render(key, size, "Loss by optimizer step", draw)


def _draw_baseline(axes: Axes, baseline: Score, highest: float, last_step: float) -> None:
    """A level line, named at its left end; one far above every loss would only squeeze the curves."""
    if baseline.loss is None or baseline.loss > highest * 1.15:
        return
    axes.axhline(baseline.loss, color=BASELINE, linewidth=1, linestyle=(0, (4, 3)))
    text = f"{baseline.name.lower()} {baseline.loss:.2f}"
    axes.annotate(text, (last_step / 2, baseline.loss), (0, 3), textcoords="offset points", ha="center", color=BASELINE, fontsize=11)


def _draw_small(steps: list[Json], key: str, title: str) -> str:
    def draw(axes: Axes) -> None:
        at, values = _arrays(steps, key)
        if key == "learning_rate":
            axes.plot(*thin(at, values), color=TRAIN, linewidth=1.8)
            axes.set_ylim(0, float(np.max(values)) * 1.08 or 1.0)
            axes.yaxis.set_major_formatter(FuncFormatter(_scientific))
            return
        axes.plot(*thin(at, values), color=TRAIN, linewidth=0.8, alpha=0.35)
        axes.plot(*thin(at, smooth(values)), color=TRAIN, linewidth=1.8)
        low, high = np.quantile(values, (0.005, 0.995))
        axes.set_ylim(0, float(max(high, low)) * 1.2 or 1.0)

    return _render(key.replace("_", "-"), (310, 215), f"{title} by optimizer step", draw)


def smooth(values: FloatArray) -> FloatArray:
    """Centred running mean over `SMOOTH_SHARE` of the series; shorter at the ends, so the same length comes back."""
    half = max(1, round(len(values) * SMOOTH_SHARE / 2))
    sums = np.concatenate(([0.0], np.cumsum(values)))
    centre = np.arange(len(values))
    first, last = np.maximum(centre - half, 0), np.minimum(centre + half + 1, len(values))
    return np.asarray((sums[last] - sums[first]) / (last - first), dtype=np.float64)


def thin(steps: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At most about `MAX_POINTS` points: the lowest and the highest of each stretch, and both ends."""
    if len(values) <= MAX_POINTS:
        return steps, values
    edges = np.linspace(0, len(values), MAX_POINTS // 2 + 1).astype(int).tolist()
    kept = {0, len(values) - 1}
    for start, stop in itertools.pairwise(edges):
        kept |= {start + int(np.argmin(values[start:stop])), start + int(np.argmax(values[start:stop]))}
    chosen = np.array(sorted(kept))
    return steps[chosen], values[chosen]


def _arrays(records: list[Json], name: str) -> tuple[FloatArray, FloatArray]:
    steps, values = series(records, name)
    return np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)


def _render(key: str, size: tuple[int, int], description: str, draw: Callable[[Axes], None]) -> str:
    """Draw on fresh axes, over optimizer steps."""

    def draw_steps(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.yaxis.set_major_formatter(FuncFormatter(_tick))
        draw(axes)
        _style(axes)

    return render_figure(key, size, description, draw_steps)


def render_figure(key: str, size: tuple[int, int], description: str, draw: Callable[[Figure], None]) -> str:
    """Draw on a fresh figure of `size` points and give back an `<svg>` element whose ids are its own; `description` is its text alternative."""
    buffer = io.StringIO()
    with matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": key,
            "font.size": 12,
            "font.family": ["DejaVu Sans"],
            "axes.edgecolor": AXIS,
            "text.usetex": False,
            "text.parse_math": False,
        }
    ):
        figure = Figure(figsize=(size[0] / POINTS_PER_INCH, size[1] / POINTS_PER_INCH), layout="constrained")
        draw(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _as_element(buffer.getvalue(), key, description)


def _style(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=AXIS, length=0, labelsize=11)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.set_xlabel("optimizer step", color=AXIS, fontsize=11)


def _tick(value: float, _: object) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return format_count(value).replace(".00", "")
    return f"{value:.0e}" if abs(value) < 0.001 else f"{value:.4g}"


def _scientific(value: float, _: object) -> str:
    return f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e") if value else "0"


def _as_element(document: str, key: str, description: str) -> str:
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{key}-\1"', svg)
    svg = re.sub(r'url\(#|href="#', lambda found: f"{found[0]}{key}-", svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--font, sans-serif)", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable}, {FALLBACK})")
    opening = re.match(r"<svg[^>]*>", svg)
    box = re.search(r'viewBox="[^"]*"', opening[0]) if opening else None
    if opening is None or box is None:
        raise AssertionError("matplotlib wrote an SVG without a viewBox")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img" aria-label="{escape(description)}">'
    )
    return head + svg[opening.end() :].strip()
