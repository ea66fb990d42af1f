"""What the last evaluation saw inside a model of kernel attention or feedback alignment: a row for
each layer.
"""

from dataclasses import dataclass

from brimful.report.quantities import format_number
from brimful.report.table import Table
from brimful.runs.runfiles import LAYERS, Json, RunFiles, items, number, section


@dataclass(frozen=True)
class LayerTable:
    """A table, and a sentence on how to read it."""

    title: str
    sentence: str
    table: Table


def layer_tables(run: RunFiles) -> list[LayerTable]:
    """Of feedback and of attention, as far as scores.json has them."""
    record = section(run.scores, LAYERS)
    tokens = number(record.get("tokens"))
    where = "" if tokens is None else f" On {tokens:,.0f} held-out tokens."
    found = [
        _feedback(section(record, "alignment"), where),
        _attention(section(record, "attention"), where),
    ]
    return [each for each in found if each is not None]


def _feedback(record: Json, where: str) -> LayerTable | None:
    rows = tuple(
        (
            str(row.get("name")),
            *(
                format_number(row.get(key), 3) or "-"
                for key in ("cosine", "norm_ratio", "relative_error")
            ),
        )
        for row in _rows(record, "segments")
    )
    mean = number(record.get("mean_cosine"))
    told = (
        "Nothing is fed back to the layers below the top."
        if mean is None
        else f"Mean cosine below the top {mean:.3f}; 1 is backpropagation itself."
    )
    columns = (
        "Parameters",
        "Cosine with backpropagation",
        "Norm / backpropagation",
        "Relative error",
    )
    return LayerTable("Gradient by feedback", told + where, Table(columns, rows)) if rows else None


def _attention(record: Json, where: str) -> LayerTable | None:
    layers, dead = _rows(record, "layers"), [str(name) for name in items(record.get("dead"))]
    mean = number(record.get("mean_cosine"))
    told = (
        ""
        if mean is None
        else (
            "Mean cosine of kernel attention with softmax attention of the same queries, keys and"
            f" values {mean:.3f}. "
        )
    )
    told += (
        f"Dead, because it adds nothing to the text that passes it: {', '.join(dead)}. "
        if dead
        else "Every layer adds something. "
    )
    of_kernel = (
        {"cosine": "Cosine with softmax", "norm_ratio": "Norm / softmax"}
        if mean is not None
        else {}
    )
    names = {
        **of_kernel,
        "output_norm": "Output / values",
        "violation": "Orthogonality violation",
        "worst_violation": "Of the worst head",
    }
    rows = tuple(
        (
            str(row.get("name")),
            *(_short(row.get(key)) for key in names),
            _range(row.get("temperatures")),
        )
        for row in layers
    )
    return (
        LayerTable(
            "Attention",
            (told + where.strip()).strip(),
            Table(("Layer", *names.values(), "Temperatures"), rows),
        )
        if rows
        else None
    )


def _rows(record: Json, key: str) -> list[Json]:
    return [row for row in items(record.get(key)) if isinstance(row, dict)]


def _short(value: object) -> str:
    found = number(value)
    return "-" if found is None else f"{found:.3g}"


def _range(values: object) -> str:
    """Of all heads: `0.98 to 2.5`."""
    known = [found for value in items(values) if (found := number(value)) is not None]
    return f"{min(known):.3g} to {max(known):.3g}" if known else "-"
