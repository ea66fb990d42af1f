"""The losses of a run as a table."""

from collections.abc import Mapping, Sequence
from functools import partial

from brimful.base.units import format_duration
from brimful.report.quantities import format_quantity, label
from brimful.report.scores import SplitScore, baselines_of
from brimful.report.table import Cell, Row, Table, table_of
from brimful.runs.scores import LikelihoodScore

THREE_DECIMALS, TWO_DECIMALS = "{:,.3f}".format, "{:,.2f}".format
Scores = Mapping[str, LikelihoodScore]
"""Scores by split."""


def loss_table(
    scores: Scores,
    *,
    unit: str = "",
    tokens: str = "Tokens",
    texts: str = "Documents",
    before: Scores | None = None,
) -> Table | None:
    """Return a row for each scored split, below it the untuned model and counting baselines;
    columns of which nothing is known are left out.

    Args:
        scores: Scores by split.
        unit: Unit of the loss; "" for that of the scores.
        tokens: Name of what the loss is over.
        texts: Name of what holds it.
        before: Scores of the untuned model.
    """
    named = list(dict.fromkeys(name for score in scores.values() for name in score.named))
    if any(score.is_masked for score in scores.values()):
        unit, tokens = "nats/masked token", "Masked tokens"
    unit = unit or "nats/token" * (not named)
    rows: list[Row] = []
    for split, score in scores.items():
        rows.append(_row(split, score, named))
        if before and split in before:
            rows.append(_row(f"{split}, before tuning", before[split], named))
        rows += [_baseline_row(each, len(named)) for each in baselines_of(score)]
    columns = (
        "Split",
        f"Loss ({unit})" if unit else "Loss",
        "Perplexity",
        "Bits per byte",
        "Perplexity per word",
        tokens,
        "Of all",
        texts,
        "Context / stride",
        f"{tokens}/s",
        "Time",
        *map(label, named),
    )
    table = table_of(columns, rows)
    return table.without_empty_columns() if table else None


def _row(name: str, score: LikelihoodScore, named: Sequence[str]) -> Row:
    window = [f"{each:g}" for each in (score.context, score.stride) if each is not None]
    # Each example is a window of its own; longer texts are cut into several.
    is_whole = score.windows is not None and score.windows == score.documents
    # The loss of hidden tokens makes neither a perplexity nor bits per byte of the text.
    perplexity = score.perplexity if score.named else _finite(score.perplexity)
    return (
        name,
        Cell(_finite(score.loss), THREE_DECIMALS, score.loss_interval),
        Cell(None if score.is_masked else perplexity, TWO_DECIMALS),
        Cell(score.bits_per_byte, THREE_DECIMALS, score.bits_per_byte_interval),
        Cell(score.perplexity_per_word, TWO_DECIMALS),
        Cell(score.tokens),
        Cell(score.masked_share, "{:.0%}".format),
        Cell(score.documents),
        "" if is_whole else " / ".join(window),
        Cell(score.tokens_per_second, partial(format_quantity, "tokens_per_s")),
        Cell(score.seconds, format_duration),
        *(Cell(score.named.get(name), THREE_DECIMALS) for name in named),
    )


def _finite(value: float | None) -> float | str:
    return "not finite" if value is None else value


def _baseline_row(baseline: SplitScore, num_named: int) -> Row:
    loss = Cell(baseline.loss, THREE_DECIMALS)
    bits = Cell(baseline.bits_per_byte, THREE_DECIMALS)
    return (baseline.name, loss, None, bits, *[None] * (7 + num_named))
