"""What the last evaluation measured inside a model of kernel attention or feedback alignment: a row
for each layer.
"""

from collections.abc import Iterator

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
    return _with_sentences("Gradient by feedback", [*alignment_sentences(alignment), where], table)


def alignment_sentences(alignment: FeedbackAlignment) -> Iterator[str]:
    """Say how near the gradient by feedback is to that by backpropagation."""
    if alignment.mean_cosine is not None:
        mean = alignment.mean_cosine
        yield f"Mean cosine with backpropagation, below the top: {mean:.3f}; 1 is the same."
    elif alignment.segments:
        yield "Nothing is fed back to the layers below the top."


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
    return _with_sentences("Attention", [*attention_sentences(attention), where], table)


def attention_sentences(attention: Attention) -> Iterator[str]:
    """Say how near attention is to softmax attention, and which layers add nothing."""
    if attention.mean_cosine is not None:
        yield (
            "Mean cosine of kernel attention with softmax attention of the same queries, keys and"
            f" values {attention.mean_cosine:.3f}."
        )
    if attention.mean_violation is not None:
        yield f"Mean orthogonality violation {attention.mean_violation:.3g}."
    if attention.dead:
        names = ", ".join(attention.dead)
        yield f"Dead, because it adds nothing to the text that passes it: {names}."
    elif attention.layers:
        yield "Every layer adds something."


def _with_sentences(title: str, sentences: list[str], table: Table | None) -> tuple[Block, ...]:
    """A table, and sentences on how to read it."""
    if table is None:
        return ()
    told = Paragraph(" ".join(filter(None, sentences)), "note")
    count = len(table.rows)
    return Heading(title), told, *fold(f"{count} layers", table, is_folded=count > FEW_LAYERS)


def _range(values: tuple[float, ...]) -> Cell:
    """Of all heads: `0.98 to 2.5`."""
    return Cell(f"{min(values):.3g} to {max(values):.3g}" if values else "-")
