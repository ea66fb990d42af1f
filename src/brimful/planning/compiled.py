"""Memory of a compiled step: of a trace of its compiled blocks or, where there is none, between the
eager step and a share of it.
"""

from dataclasses import replace

from brimful.base.errors import PlanError
from brimful.planning.plan import Prediction
from brimful.planning.step import Compiled, Recompute
from brimful.planning.survey import Memory, Prepared, Tracer

SHARE_OF_EAGER = 0.6
"""The least that a step with compiled blocks takes of the memory of the eager one: 0.70 was the
least of those traced both ways, of GPT-2 with dropout (docs/log, 2026-11-23), less a margin.
"""


class Untraced(PlanError):
    """A compiled step is not traced for this question, because that takes too long."""


def compiled_memory(
    prepared: Prepared, tracer: Tracer, eager: Memory, *, recompute: Recompute
) -> Memory | str:
    """Return the memory of a recipe's step with compiled blocks, or why it was not traced.

    Args:
        prepared: The recipe on its device.
        tracer: Returns traces.
        eager: The memory of the same step without compiling.
        recompute: Whether activations are checkpointed.
    """
    if prepared.device.kind != "cuda":
        return "compiled steps are traced for GPUs"
    if prepared.ranks > 1:
        return "compiled steps of a model in parts are not traced"
    if prepared.recipe.feedback_points:
        return "steps of method feedback are traced without compiling"
    blocks: Compiled = "open_blocks" if prepared.choices["packing"].value == "packed" else "blocks"
    try:
        return prepared.memory(tracer, recompute=recompute, compiled=blocks).with_work_of(eager)
    except PlanError as error:
        return str(error)


def bounded_by_eager(peak: Prediction, reason: str) -> Prediction:
    """Return the peak of a compiled step that was not traced: at most that of the eager one."""
    return replace(
        peak,
        low=peak.low * SHARE_OF_EAGER,
        basis=f"{peak.basis}; of the step without compiling, which takes more: {reason}",
    )
