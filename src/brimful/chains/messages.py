"""What a run says when it begins and when it ends, and what later plans learn from it."""

from dataclasses import replace
from pathlib import Path

from brimful.base.errors import BrimfulError
from brimful.base.libraries import untried
from brimful.base.text import plural, shortened_at_a_word
from brimful.base.units import GIB, format_between, format_bytes, format_duration
from brimful.base.warning_codes import as_note
from brimful.chains.devices import process_bytes
from brimful.hardware import kept_rates
from brimful.hardware.calibration import note_run
from brimful.hardware.device import Device
from brimful.hardware.environment import versions_here
from brimful.planning.described import described
from brimful.planning.plan import Plan
from brimful.planning.target import target_of
from brimful.recipe import Recipe
from brimful.recipe.summary import summary_of
from brimful.report.page.advice import advice
from brimful.report.plan.answer import memory_of, time_and_cost
from brimful.report.text import prediction_lines
from brimful.runs.folder import read_run
from brimful.runs.measurements import comparable
from brimful.training.admission import Admission


def greeting(recipe: Recipe, device: Device, admission: Admission, width: int) -> list[str]:
    """Return the run, the machine, and what changed since the last session, a line each; of what
    is trained and of the machine what fits `width`.
    """
    machine = [f"machine: {device.name}"]
    if device.threads:
        machine.append(plural(device.threads, "thread"))
    if device.free_memory_bytes:
        machine.append(f"{format_bytes(device.free_memory_bytes)} free")
    for dtype, rate in device.dense_flop_per_s.items():
        machine.append(f"{dtype} {rate / 1e9:,.0f} GFLOP/s")
    title = shortened_at_a_word(f"{recipe.run_name}: {summary_of(recipe)}", width)
    while len(", ".join(machine)) > width and len(machine) > 1:
        machine.pop()
    lines = [title, ", ".join(machine)]
    if admission.moved_aside:
        lines.append(f"the unfinished run was moved to {admission.moved_aside}")
    if admission.lost_model:
        lines.append(f"{admission.lost_model}; it is written again from its checkpoint")
    if names := "; ".join(untried()):
        lines.append(as_note(names, "B411"))
    lines += [f"changed since the last session: {change}" for change in admission.changed]
    return lines


def plan_lines(plan: Plan, device: Device, leave_gib: float = 0.0) -> list[str]:
    """Return a plan in three lines: memory, time and cost of the run; its step; where the rest is
    found. `leave_gib`: the recipe's plan.leave_gib.
    """
    predicted = plan.predicted
    used = predicted.get("device_memory_bytes", predicted.get("peak_memory_bytes"))
    summary = "plan: a part of the model on each device, whose memory is not predicted"
    if used is not None:
        leave_bytes = round(leave_gib * GIB)
        usable_bytes = target_of(device, process_bytes(device), leave_bytes).usable_bytes
        summary = f"plan: {memory_of(used.value, usable_bytes)}"
    step = [f"{plan.passes()} x {plan.sequence_length:,} tokens", plan.precision]
    if plan.compile:
        step.append("compiled")
    if plan.recompute:
        step.append("recomputed" if plan.recompute is True else "recomputed selectively")
    if plan.devices > 1:
        summary += "; how long ranks wait for each other is not predicted"
    elif "step_time_s" in predicted:
        summary += time_and_cost(predicted, intervals=True)
        entry = predicted["step_time_s"]
        between = format_between(format_duration, entry.low, entry.high)
        step_time = format_duration(entry.value)
        step.insert(0, f"{step_time} ({between})" if between else step_time)
    return [
        summary,
        f"  a step: {', '.join(step)}",
        "  why: run with --explain, or see the report",
    ]


def outcome_lines(folder: Path) -> list[str]:
    """Return what was predicted beside what was measured, and what would have been faster."""
    tips = [f"advice: {tip}" for tip in advice(read_run(folder))]
    return [*prediction_lines(folder), *tips]


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
