"""What the last evaluation measured inside a model of kernel attention or feedback alignment: a row
for each layer.
"""

from dataclasses import dataclass

from brimful.report.labels import known_cell
from brimful.report.table import Cell, Table, table_of
from brimful.runs import RunFolder
from brimful.runs.scores import Attention, FeedbackAlignment

ALIGNMENT = {
    "cosine": "Cosine with backpropagation",
    "norm_ratio": "Norm / backpropagation",
    "relative_error": "Relative error",
}
OF_KERNEL = {"cosine": "Cosine with softmax", "norm_ratio": "Norm / softmax"}
ATTENTION = {
    "output_norm": "Output / values",
    "violation": "Orthogonality violation",
    "worst_violation": "Of the worst head",
}
THREE_DECIMALS, THREE_DIGITS = "{:,.3f}".format, "{:.3g}".format


@dataclass(frozen=True)
class LayerTable:
    """A table, and a sentence on how to read it."""

    title: str
    sentence: str
    table: Table


def layer_tables(run: RunFolder) -> list[LayerTable]:
    """Return the tables on feedback and on attention, as far as scores.json has them."""
    layers = run.scores.layers
    where = f"On {layers.tokens:,.0f} held-out tokens." if layers.tokens is not None else ""
    tables = [_alignment(layers.alignment, where), _attention(layers.attention, where)]
    return [each for each in tables if each is not None]


def _alignment(alignment: FeedbackAlignment, where: str) -> LayerTable | None:
    rows = [
        (each.name, *(known_cell(getattr(each, key), THREE_DECIMALS) for key in ALIGNMENT))
        for each in alignment.segments
    ]
    table = table_of(("Parameters", *ALIGNMENT.values()), rows)
    sentence = "Nothing is fed back to the layers below the top."
    if alignment.mean_cosine is not None:
        mean = alignment.mean_cosine
        sentence = f"Mean cosine below the top {mean:.3f}; 1 is backpropagation itself."
    return _with_sentence("Gradient by feedback", [sentence, where], table)


def _attention(attention: Attention, where: str) -> LayerTable | None:
    columns = ATTENTION if attention.mean_cosine is None else {**OF_KERNEL, **ATTENTION}
    rows = [
        (
            each.name,
            *(known_cell(getattr(each, key), THREE_DIGITS) for key in columns),
            _range(each.temperatures),
        )
        for each in attention.layers
    ]
    table = table_of(("Layer", *columns.values(), "Temperatures"), rows)
    cosine = ""
    if attention.mean_cosine is not None:
        cosine = (
            "Mean cosine of kernel attention with softmax attention of the same queries, keys and"
            f" values {attention.mean_cosine:.3f}."
        )
    dead = "Every layer adds something."
    if attention.dead:
        names = ", ".join(attention.dead)
        dead = f"Dead, because it adds nothing to the text that passes it: {names}."
    return _with_sentence("Attention", [cosine, dead, where], table)


def _with_sentence(title: str, sentences: list[str], table: Table | None) -> LayerTable | None:
    return LayerTable(title, " ".join(filter(None, sentences)), table) if table else None


def _range(values: tuple[float, ...]) -> Cell:
    """Of all heads: `0.98 to 2.5`."""
    return Cell(f"{min(values):.3g} to {max(values):.3g}" if values else "-")
