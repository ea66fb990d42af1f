"""A comparison of runs in plain sentences: for a terminal, and as Markdown."""

import textwrap
from collections.abc import Sequence

from brimful.base.warning_codes import as_note
from brimful.report.comparison.compare import (
    SIGNIFICANT,
    PairComparison,
    RunComparison,
    is_lower_better,
)
from brimful.report.comparison.units import (
    comparison_table,
    unit_of,
)
from brimful.report.quantities import capitalised, listed
from brimful.report.table import Cell, block_lines, markdown_lines

MAX_DIFFERENCES = 3
"""With more pairs without a clear difference than these, a sentence names the pairs alone."""


def sentences(comparison: RunComparison) -> list[str]:
    """Return one sentence for every metric: which differences are real and which are not."""
    by_metric: dict[str, list[PairComparison]] = {}
    for pair in comparison.tested:
        by_metric.setdefault(pair.metric, []).append(pair)
    lines = []
    for metric, pairs in by_metric.items():
        parts = [_better(comparison, pairs), _unclear(comparison, pairs)]
        counts = " and ".join(f"{count:,}" for count in sorted({pair.n or 0 for pair in pairs}))
        lines.append(f"{capitalised(metric)}: {'; '.join(filter(None, parts))}. n = {counts}.")
    return lines


def _better(comparison: RunComparison, pairs: Sequence[PairComparison]) -> str:
    """`b is better than a (+12.0 [+8.0, +16.0]) and c (...)`, for every variant that is better than
    others.
    """
    losers: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.is_real:
            difference = _difference(comparison, pair, winner_first=True)
            losers.setdefault(pair.winner, []).append(f"{pair.loser} ({difference})")
    better = "better (lower)" if is_lower_better(pairs[0].metric) else "better"
    return "; ".join(
        f"{winner} is {better} than {listed(beaten)}" for winner, beaten in losers.items()
    )


def _unclear(comparison: RunComparison, pairs: Sequence[PairComparison]) -> str:
    """`a and b cannot be told apart: difference +0.8 [-3.1, +4.6]`, or several such pairs. Of many
    pairs only the names are given; the JSON has the differences.
    """
    unclear = [
        (f"{pair.first} and {pair.second}", _difference(comparison, pair) + _reason(pair))
        for pair in pairs
        if not pair.is_real
    ]
    if not unclear:
        return ""
    if len(unclear) == 1:
        return f"{unclear[0][0]} cannot be told apart: difference {unclear[0][1]}"
    if len(unclear) > MAX_DIFFERENCES:
        names = ", ".join(names for names, _ in unclear)
        return f"these {len(unclear)} pairs cannot be told apart: {names}"
    listed = ", ".join(f"{names} ({difference})" for names, difference in unclear)
    return f"these cannot be told apart: {listed}"


def _reason(pair: PairComparison) -> str:
    """Return why a difference whose own interval excludes 0 is still not real."""
    if pair.interval is None or pair.interval[0] <= 0 <= pair.interval[1]:
        return ""
    if pair.p_value is not None and pair.p_value < SIGNIFICANT:
        return ", no more than between seeds"
    return f", p = {pair.p_value:.2g} after correction for the number of comparisons"


def _difference(
    comparison: RunComparison, pair: PairComparison, *, winner_first: bool = False
) -> str:
    """`+12.0 [+8.0, +16.0] points`: the first variant minus the second, or winner minus loser."""
    unit = unit_of(comparison, pair.metric)
    sign = -1 if winner_first and pair.winner == pair.second else 1
    low, high = sorted(sign * bound for bound in pair.interval or (0.0, 0.0))
    cell = Cell(sign * (pair.difference or 0.0), unit.formatter("+"), (low, high))
    return f"{cell} {unit.of_difference}".rstrip()


def comparison_text(comparison: RunComparison, width: int) -> str:
    """Return the table, the sentences and the notes for a terminal of `width` columns."""
    lines = block_lines(comparison_table(comparison), width)
    notes = [as_note(each, "B502") for each in remarks(comparison)]
    for paragraphs in (sentences(comparison), notes):
        if paragraphs:
            lines.append("")
        for paragraph in paragraphs:
            lines += textwrap.wrap(paragraph, width, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def comparison_markdown(comparison: RunComparison) -> str:
    """Return the same as a Markdown table with a list below it."""
    lines = [
        *markdown_lines(comparison_table(comparison)),
        "",
        *(f"- {sentence}" for sentence in sentences(comparison)),
        *(f"- {as_note(each, 'B502')}" for each in remarks(comparison)),
    ]
    return "\n".join(lines) + "\n"


def remarks(comparison: RunComparison, place: str = "in brackets") -> list[str]:
    """Return the notes of a comparison and how to read its intervals.

    Args:
        comparison: The comparison.
        place: Place of the intervals.
    """
    notes = list(comparison.notes)
    if any(pair.over_seeds is None for pair in comparison.tested):
        is_classifier = comparison.variants[0].runs[0].kind.gives_labels
        how = "seed=N run.name=NAME" if is_classifier else "study.seeds"
        notes.append(
            "differences between variants of one seed may come from the seed: another seed can"
            f" change a score by as much; train several seeds to find out ({how})"
        )
    reading = f"{place} 95 % intervals over examples"
    if several := [variant.name for variant in comparison.variants if len(variant.runs) > 1]:
        reading += f"; over seeds for {listed(several)}"
    if comparison.tested:
        number = len(comparison.tested)
        corrected = f" after correction for all {number} of them (Holm)" * (number > 1)
        reading += f"; differences are called real{corrected} where p < {SIGNIFICANT:g}"
    return [*notes, reading]
