"""What a run says when it ends, and what later plans learn from it."""

from dataclasses import replace
from pathlib import Path

from brimful.base.errors import BrimfulError
from brimful.base.warning_codes import as_note
from brimful.hardware import kept_rates
from brimful.hardware.calibration import note_run
from brimful.hardware.environment import versions_here
from brimful.planning.described import described
from brimful.planning.plan import Plan
from brimful.recipe import Recipe
from brimful.report.page.advice import advice
from brimful.report.text import prediction_lines
from brimful.runs.folder import read_run
from brimful.runs.measurements import comparable


def outcome_lines(folder: Path) -> list[str]:
    """Return what was predicted beside what was measured, and what would have been faster."""
    run = read_run(folder)
    return [*prediction_lines(run), *(f"advice: {tip}" for tip in advice(run))]


def remember_run(folder: Path, plan: Plan, recipe: Recipe) -> list[str]:
    """Keep what was measured for later plans on this device. Return a note if that failed, which
    does not fail the run.
    """
    if plan.devices > 1:  # what several devices take says nothing of one
        return []
    predicted = {name: prediction.value for name, prediction in plan.predicted.items()}
    for peak in ("peak_memory_bytes", "device_memory_bytes"):
        if peak in predicted:
            predicted[peak] -= plan.memory_correction_bytes
    name, about = str(plan.device["name"]), described(recipe, plan)
    try:
        run = read_run(folder)
        taken = comparable(run)
        if run.out_of_memory:  # micro-batches became smaller than planned
            about = replace(about, memory_kind="")
        note_run(
            name,
            measured=taken,
            predicted=predicted,
            key=plan.recipe,
            versions=versions_here(),
            applied={"step_time_s": plan.correction},
            basis=plan.rates_basis,
            described=about,
        )
    except (BrimfulError, OSError) as error:
        return [as_note(f"this run's figures are not remembered for later plans: {error}", "B315")]
    return contradictions(plan, taken.get("step_time_s"))


def contradictions(plan: Plan, step_time_s: float | None) -> list[str]:
    """Have the kept rates of a CPU measured again where a run took another time than they say, and
    raise those of products that the run exceeded. Return a note for each.
    """
    predicted = plan.predicted.get("step_time_s")
    if predicted is None or step_time_s is None or plan.device["kind"] != "cpu":
        return []
    name, notes = str(plan.device["name"]), []
    if not predicted.low <= step_time_s <= predicted.high:
        kept_rates.doubt(name)
        notes.append(
            as_note(
                "a step took another time than this machine's kept rates say; they are measured"
                " again at the next start",
                "B316",
            )
        )
    mfu = plan.predicted.get("mfu")
    share = mfu.value * predicted.value / step_time_s if mfu is not None else 0.0
    if share > 1 and plan.threads:
        reached = share * float(plan.device["dense_flop_per_s"][plan.precision])
        kept_rates.raise_matrix_rate(name, plan.precision, reached / plan.threads)
        notes.append(
            as_note(
                f"this run multiplied at {reached / 1e9:,.0f} GFLOP/s, faster than the single"
                " products that were timed at its start, so those were slowed down by other"
                " programs; it has no MFU, and later plans count from the faster rate",
                "B317",
            )
        )
    return notes
