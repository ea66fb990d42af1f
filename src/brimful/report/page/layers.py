"""What the last evaluation measured inside a model of kernel attention or feedback alignment: a row
for each layer.
"""

from brimful.report.labels import known_cell
from brimful.report.table import Cell, Table, table_of
from brimful.report.views import Block, Chapter, Heading, Paragraph, fold, section
from brimful.runs.folder import RunFolder
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
FEW_LAYERS = 6
"""Tables of so many layers, or fewer, are shown without a fold."""
THREE_DECIMALS, THREE_DIGITS = "{:,.3f}".format, "{:.3g}".format


def layers_section(run: RunFolder) -> Chapter | None:
    """The tables on feedback and on attention, as far as scores.json has them."""
    layers = run.scores.layers
    where = f"On {layers.tokens:,.0f} held-out tokens." if layers.tokens is not None else ""
    blocks = (*_alignment(layers.alignment, where), *_attention(layers.attention, where))
    return section("layers", "Inside the layers", *blocks, title="Layers") if blocks else None


def _alignment(alignment: FeedbackAlignment, where: str) -> tuple[Block, ...]:
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


def _attention(attention: Attention, where: str) -> tuple[Block, ...]:
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


def _with_sentence(title: str, sentences: list[str], table: Table | None) -> tuple[Block, ...]:
    """A table, and a sentence on how to read it."""
    if table is None:
        return ()
    told = Paragraph(" ".join(filter(None, sentences)), "note")
    count = len(table.rows)
    return Heading(title), told, *fold(f"{count} layers", table, is_folded=count > FEW_LAYERS)


def _range(values: tuple[float, ...]) -> Cell:
    """Of all heads: `0.98 to 2.5`."""
    return Cell(f"{min(values):.3g} to {max(values):.3g}" if values else "-")
