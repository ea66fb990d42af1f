"""What earlier runs on a device change in a plan: its predicted memory, and a line that says so."""

from brimful.base.text import plural
from brimful.base.units import format_bytes
from brimful.hardware.calibration import Correction
from brimful.hardware.residuals import Residuals
from brimful.planning.plan import Choice, Prediction
from brimful.recipe import Recipe
from brimful.recipe.rewards import draws_by_vllm

NAME = "earlier_runs"
"""Of the choice, as of the key `plan.earlier_runs`."""


def memory_kind(recipe: Recipe, precision: str) -> str:
    """Return what runs have in common whose memory differs from its prediction alike, as `adapters,
    rows of many lengths, bf16`.
    """
    trained = "all weights" if recipe.adapter is None else "adapters"
    if recipe.quantize != "none":
        trained += f" on {recipe.quantize}"
    lengths = "many lengths" if recipe.kind.lengths_vary(recipe.data.layout) else "one length"
    beside = ", beside vLLM" * draws_by_vllm(recipe)
    return f"{trained}, rows of {lengths}, {precision}{beside}"


def corrected(
    peak: Prediction, tensors_bytes: float, least_bytes: float, residuals: Residuals
) -> Prediction:
    """Return a predicted peak as earlier runs took it, with an interval that holds those runs and
    is never narrower than before.

    Args:
        peak: Peak as a run measures it.
        tensors_bytes: What tensors take of it.
        least_bytes: What it takes at least.
        residuals: The runs.
    """
    found = residuals.at(tensors_bytes, peak.value)
    if found is None:
        return peak
    value, low, high = (
        max(least_bytes, peak.value + more) for more in (found.bytes_, found.low, found.high)
    )
    return Prediction(
        value,
        min(peak.low, low),
        max(peak.high, high),
        f"{peak.basis}; corrected by {found.runs} earlier runs of this kind here",
    )


def earlier_runs_choice(
    residuals: Residuals, correction_bytes: float, times: Correction
) -> Choice | None:
    """Return the plan's line about what earlier runs changed, or that they could not be read; None
    where they changed nothing.

    Args:
        residuals: Those of this kind.
        correction_bytes: Added to the predicted peak.
        times: What was applied to the times.
    """
    parts = []
    if correction_bytes:
        sign = "+" if correction_bytes > 0 else "-"
        parts.append(
            f"memory {sign}{format_bytes(abs(correction_bytes))} as {len(residuals.runs)} runs of"
            " this kind took"
        )
    if times.runs:
        parts.append(f"times x{times.factor:.2f} as {plural(times.runs, 'run')} took")
    if residuals.unread:
        return Choice(NAME, False, residuals.unread, True)
    if not parts:
        return None
    return Choice(NAME, True, f"measured on this machine: {'; '.join(parts)}", False)
