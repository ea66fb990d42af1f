"""The scores of a model of masked tokens: a loss over the hidden ones, which makes neither a
perplexity nor bits per byte of the text.
"""

from collections.abc import Mapping
from typing import Any

from brimful.base.units import format_duration
from brimful.report.quantities import format_number, format_quantity, with_interval
from brimful.report.table import Table
from brimful.report.tables import score_of, scored_splits
from brimful.runs.runfiles import Json, RunFiles, number, pair

KIND = "masked"


def masked_lines(name: str, score: Mapping[str, Any]) -> list[str]:
    """One split's score for a terminal."""
    loss, interval = number(score["loss"]), pair(score["loss_interval"])
    told = "not finite" if loss is None else f"{loss:.4f}"
    told_interval = f" (95 % {interval[0]:.4f} to {interval[1]:.4f})" if interval else ""
    return [
        (
            f"{name}: {score['tokens']:,} masked tokens, {score['masked_share']:.0%} of all,"
            f" predicted from both sides, context {score['context']}"
        ),
        f"  loss {told} nats/masked token{told_interval}",
        f"  {score['tokens_per_second']:,.0f} masked tokens/s, {format_duration(score['seconds'])}",
    ]


def masked_table(run: RunFiles) -> Table | None:
    """One row for each scored split."""
    rows = tuple(_row(name, record) for name, record in scored_splits(run.scores).items())
    columns = (
        "Split",
        "Loss (nats/masked token)",
        "Masked tokens",
        "Of all",
        "Documents",
        "Context",
        "Masked tokens/s",
    )
    return Table(columns, rows) if rows else None


def _row(name: str, record: Json) -> tuple[str, ...]:
    score, share, speed = (
        score_of(name, record),
        number(record.get("masked_share")),
        number(record.get("tokens_per_second")),
    )
    counts = (format_number(record.get(key)) for key in ("documents", "context"))
    return (
        name,
        with_interval(score.loss, score.loss_interval),
        format_number(record.get("tokens")),
        "" if share is None else f"{share:.0%}",
        *counts,
        "" if speed is None else format_quantity("tokens_per_second", speed),
    )
