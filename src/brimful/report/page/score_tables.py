"""The losses of a run as tables: of documents, of examples and of masked tokens."""

from brimful.report.quantities import format_quantity
from brimful.report.scores import SplitScore, baselines_of
from brimful.report.table import Cell, Row, Table, table_of
from brimful.report.tuned import before_tuning
from brimful.runs import RunFolder
from brimful.runs.scores import LikelihoodScore

THREE_DECIMALS, TWO_DECIMALS = "{:,.3f}".format, "{:,.2f}".format


def document_scores(run: RunFolder) -> Table | None:
    """One row for each scored split, its counting baselines below it."""
    rows: list[Row] = []
    for split, score in run.scores.likelihood.items():
        window = [str(each) for each in (score.context, score.stride) if each is not None]
        rows.append(
            (
                split,
                *_quality(score),
                Cell(score.tokens),
                Cell(score.documents),
                " / ".join(window),
                _speed(score),
            )
        )
        rows += [_baseline_row(baseline) for baseline in baselines_of(score)]
    columns = (
        "Split",
        "Loss (nats/token)",
        "Perplexity",
        "Bits per byte",
        "Tokens",
        "Documents",
        "Context / stride",
        "Tokens/s",
    )
    return table_of(columns, rows)


def example_scores(run: RunFolder) -> Table | None:
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
        "Loss (nats/token)",
        "Perplexity",
        "Bits per byte",
        "Learned tokens",
        "Examples",
    )
    return table_of(columns, rows)


def masked_scores(run: RunFolder) -> Table | None:
    """One row for each scored split of a model of masked tokens, whose loss makes neither a
    perplexity nor bits per byte of the text.
    """
    rows = [
        (
            split,
            Cell(score.loss, THREE_DECIMALS, score.loss_interval),
            Cell(score.tokens),
            Cell(score.masked_share, "{:.0%}".format),
            Cell(score.documents),
            Cell(score.context),
            _speed(score),
        )
        for split, score in run.scores.likelihood.items()
    ]
    columns = (
        "Split",
        "Loss (nats/masked token)",
        "Masked tokens",
        "Of all",
        "Documents",
        "Context",
        "Masked tokens/s",
    )
    return table_of(columns, rows)


def _quality(score: LikelihoodScore) -> tuple[Cell, Cell, Cell]:
    return (
        Cell(score.loss, THREE_DECIMALS, score.loss_interval),
        Cell(score.perplexity, TWO_DECIMALS),
        Cell(score.bits_per_byte, THREE_DECIMALS, score.bits_per_byte_interval),
    )


def _speed(score: LikelihoodScore) -> Cell:
    return Cell(score.tokens_per_second, lambda value: format_quantity("tokens_per_s", value))


def _baseline_row(baseline: SplitScore) -> Row:
    loss = Cell(baseline.loss, THREE_DECIMALS)
    bits = Cell(baseline.bits_per_byte, THREE_DECIMALS)
    return (baseline.name, loss, None, bits, None, None, None, None)
