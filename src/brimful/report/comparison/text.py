"""A comparison of runs as a table and plain sentences: for a terminal, and as Markdown."""

import textwrap
from collections.abc import Callable, Sequence
from functools import partial

from brimful.report.comparison.compare import (
    SIGNIFICANT,
    Pair,
    RunComparison,
    Variant,
    is_lower_better,
)
from brimful.report.quantities import format_quantity, label, with_interval
from brimful.report.table import Table, aligned
from brimful.report.tables import PREDICTED_NAMES

UNITS: dict[str, tuple[str, float, str, str]] = {
    "nats/token": (".3f", 1, "nats/token", "nats/token"),
    "nats/text": (".4f", 1, "nats/text", "nats/text"),
    "nats/masked token": (".3f", 1, "nats/masked token", "nats/masked token"),
    "area": (".3f", 1, "", ""),
    "share": (".1f", 100, "%", "points"),
    "BLEU": (".1f", 1, "", "BLEU"),
    "tokens": (".0f", 1, "tokens", "tokens"),
    "perplexity": (",.1f", 1, "", ""),
    "bits/byte": (".3f", 1, "", "bits/byte"),
    "cosine": (".3f", 1, "", ""),
}
"""By unit of a score: how it prints, times what, its name in a heading and that of a difference."""
OTHER_UNIT = (".3g", 1.0, "", "")
MOST_FIGURES = 3
"""Pairs without a clear difference whose differences a sentence still gives."""


def comparison_table(comparison: RunComparison) -> Table:
    """One row for each variant: scores, then figures, each with its interval where there is one."""
    seeds = ("Seeds",) * any(len(variant.runs) > 1 for variant in comparison.variants)
    columns = (
        "",
        *seeds,
        *(heading(comparison, metric) for metric in comparison.metrics),
        *(PREDICTED_NAMES.get(name, label(name)) for name in comparison.costs),
    )
    rows = tuple(
        (variant.name, *([str(len(variant.runs))] * len(seeds)), *_cells(comparison, variant))
        for variant in comparison.variants
    )
    return Table(columns, rows)


def heading(comparison: RunComparison, metric: str) -> str:
    """`Code-syntax syntax (%)`."""
    unit = UNITS.get(comparison.unit(metric), OTHER_UNIT)[2]
    return f"{metric[:1].upper()}{metric[1:]}".replace("_", " ") + f" ({unit})" * bool(unit)


def _cells(comparison: RunComparison, variant: Variant) -> list[str]:
    found = []
    for name in (*comparison.metrics, *comparison.costs):
        figure = variant.figure(name)
        form = (
            form_of(comparison.unit(name))
            if name in comparison.metrics
            else partial(format_quantity, name)
        )
        interval = (
            None
            if figure is None or (name in comparison.costs and _is_narrow(figure.interval, form))
            else figure.interval
        )
        found.append("" if figure is None else with_interval(figure.value, interval, form))
    return found


def _is_narrow(interval: tuple[float, float] | None, form: Callable[[float], str]) -> bool:
    """Whether both ends print alike, as of a figure that does not depend on the seed."""
    return interval is not None and form(interval[0]) == form(interval[1])


def form_of(unit: str, sign: str = "") -> Callable[[float], str]:
    """How scores of a unit print, without it."""
    digits, factor, *_ = UNITS.get(unit, OTHER_UNIT)
    return lambda value: format(value * factor, f"{sign}{digits}")


def sentences(comparison: RunComparison) -> list[str]:
    """For every metric which differences are real and which are not, in one plain sentence."""
    found = []
    for metric in dict.fromkeys(pair.metric for pair in comparison.pairs if not pair.obstacle):
        pairs = [pair for pair in comparison.pairs if pair.metric == metric and not pair.obstacle]
        parts = [_better(comparison, pairs), _alike(comparison, pairs)]
        found.append(
            f"{metric[:1].upper()}{metric[1:]}: {'; '.join(part for part in parts if part)}. n ="
            f" {_counts(pairs)}."
        )
    return found


def _counts(pairs: Sequence[Pair]) -> str:
    return " and ".join(f"{count:,}" for count in sorted({pair.n or 0 for pair in pairs}))


def _better(comparison: RunComparison, pairs: Sequence[Pair]) -> str:
    """`b is better than a (+12.0 [+8.0, +16.0]) and c (...)`, for every variant that is better than
    others.
    """
    beaten: dict[str, list[str]] = {}
    for pair in (pair for pair in pairs if pair.is_real):
        winner, loser, turned = (
            (pair.first, pair.second, False)
            if pair.first_is_better
            else (pair.second, pair.first, True)
        )
        beaten.setdefault(winner, []).append(
            f"{loser} ({_difference(comparison, pair, turned=turned)})"
        )
    better = "better (lower)" if is_lower_better(pairs[0].metric) else "better"
    return "; ".join(
        f"{winner} is {better} than {_listed(losers)}" for winner, losers in beaten.items()
    )


def _alike(comparison: RunComparison, pairs: Sequence[Pair]) -> str:
    """`a and b cannot be told apart: difference +0.8 [-3.1, +4.6]`, or several such pairs; of many
    the names alone, JSON has the figures.
    """
    unclear = [
        (f"{pair.first} and {pair.second}", _difference(comparison, pair) + _why(pair))
        for pair in pairs
        if not pair.is_real
    ]
    if len(unclear) == 1:
        return f"{unclear[0][0]} cannot be told apart: difference {unclear[0][1]}"
    if len(unclear) > MOST_FIGURES:
        return (
            f"these {len(unclear)} pairs cannot be told apart:"
            f" {', '.join(names for names, _ in unclear)}"
        )
    return "these cannot be told apart: " * bool(unclear) + ", ".join(
        f"{names} ({difference})" for names, difference in unclear
    )


def _why(pair: Pair) -> str:
    """Where the pair's own interval leaves out 0, what does not."""
    if pair.interval is None or pair.interval[0] <= 0 <= pair.interval[1]:
        return ""
    if pair.p_value is not None and pair.p_value < SIGNIFICANT:
        return ", no more than between seeds"
    return f", p = {pair.p_value:.2g} after correction for the number of comparisons"


def _difference(comparison: RunComparison, pair: Pair, *, turned: bool = False) -> str:
    sign, unit = -1 if turned else 1, comparison.unit(pair.metric)
    low, high = sorted(sign * bound for bound in pair.interval or (0.0, 0.0))
    return (
        f"{with_interval(sign * (pair.difference or 0.0), (low, high), form_of(unit, '+'))}"
        f" {UNITS.get(unit, OTHER_UNIT)[3]}".rstrip()
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def comparison_text(comparison: RunComparison, width: int) -> str:
    """For a terminal of `width` columns: the table, in blocks of columns where it is wider, then
    the sentences and notes.
    """
    lines = _blocks(comparison_table(comparison), width)
    for kind, told in (("", sentences(comparison)), ("note: ", remarks(comparison))):
        lines += [""] * bool(told)
        for each in told:
            lines += textwrap.wrap(
                f"{kind}{each}", width, subsequent_indent="  ", break_on_hyphens=False
            )
    return "\n".join(lines)


def _blocks(table: Table, width: int) -> list[str]:
    widths = [
        max(len(row[column]) for row in (table.columns, *table.text_rows)) + 2
        for column in range(len(table.columns))
    ]
    blocks: list[list[int]] = [[]]
    for column in range(1, len(table.columns)):
        if (
            blocks[-1]
            and widths[0] + sum(widths[each] for each in (*blocks[-1], column)) - 2 > width
        ):
            blocks.append([])
        blocks[-1].append(column)
    lines: list[str] = []
    for block in blocks:
        lines += [""] * bool(lines) + aligned(
            [[row[column] for column in (0, *block)] for row in (table.columns, *table.text_rows)]
        )
    return lines


def comparison_markdown(comparison: RunComparison) -> str:
    """The same as a Markdown table with paragraphs below it."""
    table = comparison_table(comparison)
    rows = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)], *table.text_rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return (
        "\n".join(
            [
                *lines,
                "",
                *(f"- {each}" for each in sentences(comparison)),
                *(f"- Note: {each}" for each in remarks(comparison)),
            ]
        )
        + "\n"
    )


def remarks(comparison: RunComparison, place: str = "in brackets") -> list[str]:
    """The notes, and how to read the intervals, which stand at a `place`."""
    several = [variant.name for variant in comparison.variants if len(variant.runs) > 1]
    tested = [pair for pair in comparison.pairs if not pair.obstacle]
    notes = list(comparison.notes)
    if any(pair.over_seeds is None for pair in tested):
        several_seeds = (
            "seed=N run.name=NAME"
            if comparison.variants[0].runs[0].kind == "labels"
            else "study.seeds"
        )
        notes.append(
            "differences between variants of one seed may come from the seed: another one can"
            f" differ by as much; several tell ({several_seeds})"
        )
    how = f"{place} 95 % intervals over examples"
    if several:
        how += f"; over seeds for {_listed(several)}"
    if tested:
        how += (
            f"; differences are called real after correction for all {len(tested)} of them (Holm,"
            f" {SIGNIFICANT:g})"
        )
    return [*notes, how]
