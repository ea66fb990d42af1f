"""The losses of a run as tables: of documents, of examples and of masked tokens."""

from collections.abc import Mapping
from functools import partial

from brimful.base.units import format_duration
from brimful.report.quantities import format_quantity, label
from brimful.report.scores import SplitScore, baselines_of
from brimful.report.table import Cell, Row, Table, table_of
from brimful.report.tuned import before_tuning
from brimful.runs.folder import RunFolder
from brimful.runs.scores import LikelihoodScore

THREE_DECIMALS, TWO_DECIMALS = "{:,.3f}".format, "{:,.2f}".format


def document_scores(scores: Mapping[str, LikelihoodScore]) -> Table | None:
    """One row for each scored split, its counting baselines below it."""
    rows: list[Row] = []
    named = list(dict.fromkeys(name for score in scores.values() for name in score.named))
    for split, score in scores.items():
        window = [str(each) for each in (score.context, score.stride) if each is not None]
        # Each example is a window of its own; longer texts are cut into several.
        is_whole = score.windows is not None and score.windows == score.documents
        rows.append(
            (
                split,
                *_quality(score),
                Cell(score.perplexity_per_word, TWO_DECIMALS),
                Cell(score.tokens),
                Cell(score.documents),
                "" if is_whole else " / ".join(window),
                *_speed(score),
                *(Cell(score.named.get(name), THREE_DECIMALS) for name in named),
            )
        )
        baseline_rows = map(_baseline_row, baselines_of(score))
        rows += [(*row, *(None for _ in named)) for row in baseline_rows]
    columns = (
        "Split",
        "Loss" if named else "Loss (nats/token)",
        "Perplexity",
        "Bits per byte",
        "Perplexity per word",
        "Tokens",
        "Documents",
        "Context / stride",
        "Tokens/s",
        "Time",
        *(label(name) for name in named),
    )
    table = table_of(columns, rows)
    return table.without_empty_columns() if table else None


def example_scores(run: RunFolder, unit: str) -> Table | None:
    """The loss over the answers of every scored split, the untuned model's below it."""
    before = before_tuning(run)
    rows: list[Row] = []
    for split, score in run.scores.likelihood.items():
        rows.append((split, *_quality(score), Cell(score.tokens), Cell(score.documents)))
        earlier = before.scores.likelihood.get(split) if before else None
        if earlier:
            name = f"{split}, before tuning"
            rows.append((name, *_quality(earlier), Cell(earlier.tokens), Cell(earlier.documents)))
    columns = (
        "Split",
        f"Loss ({unit})",
        "Perplexity",
        "Bits per byte",
        "Learned tokens",
        "Examples",
    )
    return table_of(columns, rows)


def masked_scores(scores: Mapping[str, LikelihoodScore]) -> Table | None:
    """One row for each scored split of a model of masked tokens, whose loss makes neither a
    perplexity nor bits per byte of the text.
    """
    rows = [
        (
            split,
            Cell(_finite(score.loss), THREE_DECIMALS, score.loss_interval),
            Cell(score.tokens),
            Cell(score.masked_share, "{:.0%}".format),
            Cell(score.documents),
            Cell(score.context),
            *_speed(score),
        )
        for split, score in scores.items()
    ]
    columns = (
        "Split",
        "Loss (nats/masked token)",
        "Masked tokens",
        "Of all",
        "Documents",
        "Context",
        "Masked tokens/s",
        "Time",
    )
    return table_of(columns, rows)


def _quality(score: LikelihoodScore) -> tuple[Cell, Cell, Cell]:
    return (
        Cell(_finite(score.loss), THREE_DECIMALS, score.loss_interval),
        Cell(score.perplexity if score.named else _finite(score.perplexity), TWO_DECIMALS),
        Cell(score.bits_per_byte, THREE_DECIMALS, score.bits_per_byte_interval),
    )


def _finite(value: float | None) -> float | str:
    return "not finite" if value is None else value


def _speed(score: LikelihoodScore) -> tuple[Cell, Cell]:
    return (
        Cell(score.tokens_per_second, partial(format_quantity, "tokens_per_s")),
        Cell(score.seconds, format_duration),
    )


def _baseline_row(baseline: SplitScore) -> Row:
    loss = Cell(baseline.loss, THREE_DECIMALS)
    bits = Cell(baseline.bits_per_byte, THREE_DECIMALS)
    return (baseline.name, loss, None, bits, *[None] * 6)
