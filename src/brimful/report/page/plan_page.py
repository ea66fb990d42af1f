"""The plan in a report: every choice with its reason, and how a batch is cut to the device."""

from brimful.base.text import plural
from brimful.planning.plan import Plan
from brimful.report.quantities import format_value
from brimful.report.table import Table, table_of
from brimful.runs.folder import RunFolder


def choice_table(plan: Plan | None) -> Table | None:
    """Every choice of a plan, its reason and the runner-up."""
    choices = plan.choices if plan else ()
    rows = [
        (
            each.name,
            format_value(each.name, each.value),
            each.reason,
            format_value(each.name, each.alternative),
        )
        for each in choices
    ]
    return table_of(("Choice", "Value", "Reason", "Runner-up"), rows)


def sequence_batch(run: RunFolder) -> str:
    """Say how the sequences of a step are cut into micro-batches; "" where the plan does not."""
    sizes = run.plan.micro_batches if run.plan else ()
    if not sizes:
        return ""
    full = sum(size == sizes[0] for size in sizes)
    rest = sum(sizes) - full * sizes[0]
    split = f"{plural(full, 'micro-batch', 'micro-batches')} of {sizes[0]}"
    if rest:
        split += f" + {rest}"
    return f"Every optimizer step sees {sum(sizes)} sequences: {split}."


def example_batch(run: RunFolder, samples: str = "examples") -> str:
    """Say how the samples of a step are cut into micro-batches; "" where the plan does not."""
    sizes, length = run.plan.micro_batches if run.plan else (), run.recipe.sequence_length
    batch = run.recipe.batch
    if not sizes or not length:
        return ""
    examples = batch.sequences or (batch.tokens or 0) / length
    if not examples:
        return ""
    rows = run.kind.rows_per_sample * sizes[0]
    tokens = f"{rows * length:,.0f} tokens ({rows} x {length:.0f})"
    return (
        f"Every optimizer step sees {examples:,.0f} {samples}, in micro-batches of at most"
        f" {tokens}."
    )
